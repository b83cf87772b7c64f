"""Images as every source delivers them: uint8 pixels, labels, and how pixels become the floats a network sees."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from tinyproto.core.task import TensorData
from tinyproto.data.pixels import SharedPixels


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
