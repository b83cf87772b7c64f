"""Images as every source delivers them: uint8 pixels, labels, and how pixels become the floats a network sees."""

from __future__ import annotations

import math
import mmap
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tinyproto.core.task import TensorData

_AT_ONCE = 1000
"""Images moved at a time."""


class SharedPixels:
    """uint8 pixels in an open file. Whoever maps it sees the same memory, so workers add nothing to it.

    Where the system allows no such file, they are in this process's memory alone.
    """

    def __init__(
        self, descriptor: int | None, shape: Sequence[int], offset: int = 0, *, writable: bool = False
    ) -> None:
        self.descriptor = descriptor
        self.shape = tuple(shape)
        self.offset = offset
        size = offset + math.prod(self.shape)
        # A private mapping shares its pages until one is written to, and nobody can write through it to the file.
        access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_COPY
        memory = mmap.mmap(-1, size) if descriptor is None else mmap.mmap(descriptor, size, access=access)
        self.tensor: Tensor = torch.frombuffer(memory, dtype=torch.uint8, offset=offset).reshape(self.shape)

    @classmethod
    def blank(cls, shape: Sequence[int]) -> SharedPixels:
        """Memory to be filled through `array`; it is in no folder, and gone with the last process that maps it."""
        return cls(_nameless_file(math.prod(shape)), shape, writable=True)

    @property
    def array(self) -> NDArray[np.uint8]:
        """The same memory for numpy."""
        return self.tensor.numpy()

    def keep(self, places: NDArray[np.int64]) -> None:
        """Keep the images at these places, which ascend, and give back the memory of the others.

        For memory from `blank`, while nobody else has it.
        """
        for start in range(0, len(places), _AT_ONCE):
            moved = places[start : start + _AT_ONCE]
            self.array[start : start + len(moved)] = self.array[moved]
        self.tensor = self.tensor[: len(places)]
        self.shape = tuple(self.tensor.shape)
        if self.descriptor is not None:
            os.ftruncate(self.descriptor, self.offset + math.prod(self.shape))

    def address(self) -> dict[str, Any]:
        """How a process that inherits the open file finds the pixels."""
        return {"descriptor": self.descriptor, "shape": list(self.shape), "offset": self.offset}

    def __del__(self) -> None:
        if self.descriptor is not None:
            os.close(self.descriptor)


def _nameless_file(size: int) -> int | None:
    """Open, of that size, in memory where there are such files; None where a limit on file sizes is in the way."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("tinyproto")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    try:
        os.ftruncate(descriptor, size)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


@dataclass(frozen=True)
class Images:
    """A labelled dataset in memory."""

    name: str
    pixels: Tensor = field(repr=False)  # (N, C, H, W) uint8
    labels: Tensor = field(repr=False)  # (N,) int64
    num_classes: int
    scale: float  # a network sees pixel · scale + shift
    shift: float
    shared: SharedPixels | None = field(default=None, repr=False)  # holds `pixels`, for workers to map

    @property
    def input_shape(self) -> tuple[int, ...]:
        """(C, H, W)."""
        return tuple(self.pixels.shape[1:])

    def __len__(self) -> int:
        return len(self.labels)

    def class_counts(self, indices: Tensor) -> Tensor:
        """How many of the samples at `indices` each class has, (K,)."""
        return torch.bincount(self.labels[indices], minlength=self.num_classes)

    def take(self, indices: Tensor) -> TensorData:
        """The samples at `indices`; their pixels stay where they are."""
        indices = indices.to(self.labels.device)
        return TensorData(self.pixels, self.labels[indices], self.scale, self.shift, rows=indices)

    def to(self, device: torch.device | str) -> Images:
        """The same images on another device."""
        if self.pixels.device == torch.device(device):
            return self
        return replace(self, pixels=self.pixels.to(device), labels=self.labels.to(device), shared=None)
