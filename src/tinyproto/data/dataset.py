"""Samples as every source delivers them (uint8 images, float32 values or token ids), and a federation's share."""

from __future__ import annotations

import math
import mmap
import os
import tempfile
from collections.abc import Mapping, Sequence
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

Factor = float | tuple[float, ...]
"""One number, or one per entry of a sample's first axis."""

AT_ONCE = 1000
"""Number of samples moved or summed at a time."""

Dtype = Literal["uint8", "float32", "int64"]
DTYPES: Mapping[str, torch.dtype] = {"uint8": torch.uint8, "float32": torch.float32, "int64": torch.int64}
"""How inputs are stored: images, values, and token ids."""


class SharedArray:
    """Samples in an open file; all processes that map it share its memory.

    Without a file (`descriptor` None) they are in the memory of this process.
    """

    def __init__(
        self, descriptor: int | None, shape: Sequence[int], dtype: str = "uint8", *, writable: bool = False
    ) -> None:
        self.descriptor = descriptor
        self.shape = tuple(shape)
        self.dtype = dtype
        size = _bytes(self.shape, dtype)
        # A private mapping shares its pages until one is written to, and writes never reach the file.
        access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_COPY
        memory = mmap.mmap(-1, size) if descriptor is None else mmap.mmap(descriptor, size, access=access)
        self.tensor: Tensor = torch.frombuffer(memory, dtype=DTYPES[dtype]).reshape(self.shape)

    @classmethod
    def blank(cls, shape: Sequence[int], dtype: str = "uint8") -> SharedArray:
        """Return zeros to fill through `array`; their file has no name and ends with the last process that maps it."""
        return cls(_nameless_file(_bytes(shape, dtype)), shape, dtype, writable=True)

    @classmethod
    def holding(cls, values: NDArray[Any]) -> SharedArray:
        """Return a copy of an array."""
        shared = cls.blank(values.shape, str(values.dtype))
        shared.array[:] = values
        return shared

    @property
    def array(self) -> NDArray[Any]:
        """Return the same memory as a numpy array."""
        return self.tensor.numpy()

    def keep(self, places: NDArray[np.int64]) -> None:
        """Keep the samples at these ascending places and free the memory of the others.

        Only for samples from `blank` that no other process has mapped yet.
        """
        for start in range(0, len(places), AT_ONCE):
            moved = places[start : start + AT_ONCE]
            self.array[start : start + len(moved)] = self.array[moved]
        self.tensor = self.tensor[: len(places)]
        self.shape = tuple(self.tensor.shape)
        if self.descriptor is not None:
            os.ftruncate(self.descriptor, _bytes(self.shape, self.dtype))

    def address(self) -> dict[str, Any]:
        """Return the constructor's arguments for a process that inherits the open file."""
        return {"descriptor": self.descriptor, "shape": list(self.shape), "dtype": self.dtype}

    def __del__(self) -> None:
        if self.descriptor is not None:
            os.close(self.descriptor)


def _bytes(shape: Sequence[int], dtype: str) -> int:
    return math.prod(shape) * DTYPES[dtype].itemsize


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
class Dataset:
    """A labelled dataset in memory: images, values of any shape, or token ids."""

    name: str
    inputs: Tensor = field(repr=False)  # (N, ...) uint8 (images: (N, C, H, W)), float32, or int64 (token ids)
    labels: Tensor = field(repr=False)  # (N,) int64
    num_classes: int
    scale: Factor | None  # a network sees input · scale + shift; None: still to be computed from training samples
    shift: Factor | None
    shared: SharedArray | None = field(default=None, repr=False)  # holds `inputs`, for workers to map
    class_names: tuple[str, ...] | None = field(default=None, repr=False)  # by label; None if classes have no names
    columns: tuple[str, ...] | None = field(default=None, repr=False)  # names of a table's features
    vocabulary: int | None = field(default=None, repr=False)  # the number of token ids; None for other inputs
    white: int = field(default=255, repr=False)  # the stored value of a white pixel

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Return the shape of one sample: (C, H, W) for images."""
        return tuple(self.inputs.shape[1:])

    @property
    def dtype(self) -> str:
        """Return how inputs are stored: uint8, float32 or int64."""
        return str(self.inputs.dtype).removeprefix("torch.")

    def __len__(self) -> int:
        return len(self.labels)

    def facts(self) -> dict[str, Any]:
        """Return what a trained network has to know of its classes and inputs, as JSON has it."""
        facts = {
            "dataset": self.name,
            "class_names": self.class_names,
            "input_shape": self.input_shape,
            "dtype": self.dtype,
            "scale": self.scale,
            "shift": self.shift,
            "white": self.white,
            "columns": self.columns,
        }
        return {name: list(fact) if isinstance(fact, tuple) else fact for name, fact in facts.items()}

    def class_counts(self, indices: Tensor) -> Tensor:
        """Count the samples at `indices` by class, (K,)."""
        return torch.bincount(self.labels[indices], minlength=self.num_classes)

    def take(self, indices: Tensor) -> TensorData:
        """Return the samples at `indices` without copying them."""
        indices = indices.to(self.labels.device)
        return TensorData(self.inputs, self.labels[indices], *self._factors, rows=indices)

    @cached_property
    def _factors(self) -> tuple[float | Tensor, float | Tensor]:
        """Return scale and shift with the shape that broadcasts over a sample, on the device of the samples."""
        rest = [1] * (self.inputs.dim() - 2)
        scale, shift = (
            torch.tensor(factor, device=self.inputs.device).view(-1, *rest) if isinstance(factor, tuple) else factor
            for factor in (self.scale, self.shift)
        )
        return 1.0 if scale is None else scale, 0.0 if shift is None else shift

    def to(self, device: torch.device | str) -> Dataset:
        """Return the same dataset on another device."""
        if self.inputs.device == torch.device(device):
            return self
        return replace(self, inputs=self.inputs.to(device), labels=self.labels.to(device), shared=None)


@dataclass(frozen=True)
class FederatedData:
    """A dataset and the clients' shares of it: one pool of samples, and each client's positions in it."""

    images: Dataset
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
        """Return the same federation with its samples on another device."""
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
