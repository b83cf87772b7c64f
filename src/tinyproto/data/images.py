"""Images as every source delivers them (uint8 pixels, labels, scaling to floats), and a federation's share of them."""

from __future__ import annotations

import math
import mmap
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tinyproto.core.task import TensorData
from tinyproto.data.partition import Share

CountedSamples = Literal["train", "all"]
"""Samples that n_ij counts: training samples, or training and test samples as in the published runs."""

TestScope = Literal["own", "all"]
"""Test samples of a client: its own, or those of all clients, with classes that it never trained on."""

_AT_ONCE = 1000
"""Number of images moved at a time."""


class SharedPixels:
    """uint8 pixels in an open file; all processes that map it share its memory.

    Without a file (`descriptor` None) the pixels are in the memory of this process.
    """

    def __init__(self, descriptor: int | None, shape: Sequence[int], *, writable: bool = False) -> None:
        self.descriptor = descriptor
        self.shape = tuple(shape)
        size = math.prod(self.shape)
        # A private mapping shares its pages until one is written to, and writes never reach the file.
        access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_COPY
        memory = mmap.mmap(-1, size) if descriptor is None else mmap.mmap(descriptor, size, access=access)
        self.tensor: Tensor = torch.frombuffer(memory, dtype=torch.uint8).reshape(self.shape)

    @classmethod
    def blank(cls, shape: Sequence[int]) -> SharedPixels:
        """Return pixels to fill through `array`; their file has no name and ends with the last process that maps it."""
        return cls(_nameless_file(math.prod(shape)), shape, writable=True)

    @property
    def array(self) -> NDArray[np.uint8]:
        """Return the same memory as a numpy array."""
        return self.tensor.numpy()

    def keep(self, places: NDArray[np.int64]) -> None:
        """Keep the images at these ascending places and free the memory of the others.

        Only for pixels from `blank` that no other process has mapped yet.
        """
        for start in range(0, len(places), _AT_ONCE):
            moved = places[start : start + _AT_ONCE]
            self.array[start : start + len(moved)] = self.array[moved]
        self.tensor = self.tensor[: len(places)]
        self.shape = tuple(self.tensor.shape)
        if self.descriptor is not None:
            os.ftruncate(self.descriptor, math.prod(self.shape))

    def address(self) -> dict[str, Any]:
        """Return the constructor's arguments for a process that inherits the open file."""
        return {"descriptor": self.descriptor, "shape": list(self.shape)}

    def __del__(self) -> None:
        if self.descriptor is not None:
            os.close(self.descriptor)


def _nameless_file(size: int) -> int | None:
    """Open a file of that size, in memory where the system can; None if a limit on file sizes forbids it."""
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
    class_names: tuple[str, ...] | None = field(default=None, repr=False)  # by label; None if classes have no names
    white: int = 255  # the stored value of a white pixel

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Return (C, H, W)."""
        return tuple(self.pixels.shape[1:])

    def __len__(self) -> int:
        return len(self.labels)

    def facts(self) -> dict[str, Any]:
        """Return what a trained network has to know of its classes and inputs, as JSON has it."""
        return {
            "dataset": self.name,
            "class_names": None if self.class_names is None else list(self.class_names),
            "input_shape": list(self.input_shape),
            "dtype": str(self.pixels.dtype).removeprefix("torch."),
            "scale": self.scale,
            "shift": self.shift,
            "white": self.white,
            "columns": None,
        }

    def class_counts(self, indices: Tensor) -> Tensor:
        """Count the samples at `indices` by class, (K,)."""
        return torch.bincount(self.labels[indices], minlength=self.num_classes)

    def take(self, indices: Tensor) -> TensorData:
        """Return the samples at `indices` without copying their pixels."""
        indices = indices.to(self.labels.device)
        return TensorData(self.pixels, self.labels[indices], self.scale, self.shift, rows=indices)

    def to(self, device: torch.device | str) -> Images:
        """Return the same images on another device."""
        if self.pixels.device == torch.device(device):
            return self
        return replace(self, pixels=self.pixels.to(device), labels=self.labels.to(device), shared=None)


@dataclass(frozen=True)
class FederatedData:
    """A dataset and the clients' shares of it: one pool of pixels, and each client's positions in it."""

    images: Images
    shares: Sequence[Share]
    scope: TestScope = "own"

    @property
    def num_clients(self) -> int:
        """Return M."""
        return len(self.shares)

    @cached_property
    def train_counts(self) -> Tensor:
        """Count n_ij over training samples, (M, K)."""
        return torch.stack([self.images.class_counts(torch.from_numpy(share.train)) for share in self.shares])

    @cached_property
    def counts(self) -> Tensor:
        """Count n_ij over training and test samples, (M, K), as K_i in the paper's Table 2."""
        tests = [self.images.class_counts(torch.from_numpy(share.test)) for share in self.shares]
        return self.train_counts + torch.stack(tests)

    def counted(self, samples: CountedSamples) -> Tensor:
        """Return the n_ij that scaling uses, (M, K)."""
        return self.train_counts if samples == "train" else self.counts

    def to(self, device: torch.device | str) -> FederatedData:
        """Return the same federation with its pixels on another device."""
        return replace(self, images=self.images.to(device))

    def train(self, client: int) -> TensorData:
        """Return the training samples of a client."""
        return self.images.take(torch.from_numpy(self.shares[client].train))

    def test(self, client: int) -> TensorData:
        """Return the samples that a client is tested on."""
        return self._all_tests if self.scope == "all" else self.images.take(torch.from_numpy(self.shares[client].test))

    @cached_property
    def _all_tests(self) -> TensorData:
        return self.images.take(torch.from_numpy(np.concatenate([share.test for share in self.shares])))
