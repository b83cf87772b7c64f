"""Prototypes: class means of penultimate features, and inference by the nearest of them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


class Prototypes(NamedTuple):
    """One row per class; a class that is not present has a zero row, which no function here ever reads.

    `width` is d for prototypes in full and s (the CPS dimension) for compressed ones.
    """

    values: Tensor  # (K, w) float
    present: Tensor  # (K,) bool

    @classmethod
    def absent(cls, num_classes: int, width: int, device: torch.device | str = "cpu") -> Prototypes:
        """No class present: what a client holds before the server has sent anything."""
        return cls(
            torch.zeros(num_classes, width, device=device), torch.zeros(num_classes, dtype=torch.bool).to(device)
        )

    @property
    def num_classes(self) -> int:
        """K."""
        return self.values.shape[0]

    @property
    def width(self) -> int:
        """Values per class."""
        return self.values.shape[1]

    def to(self, device: torch.device | str) -> Prototypes:
        """The same prototypes on another device."""
        return Prototypes(self.values.to(device), self.present.to(device))

    def packed(self) -> PackedRows:
        """The rows present, as they travel."""
        present = self.present.cpu()
        return PackedRows(self.num_classes, present.numpy().nonzero()[0], self.values.cpu()[present].numpy())


class PackedRows(NamedTuple):
    """Prototypes as they travel: the rows present, one after the other, and their classes."""

    num_classes: int
    classes: NDArray[np.intp]  # (n,), ascending
    values: NDArray[np.float32]  # (n, w); may be a view of the frame it came in

    @property
    def parameters(self) -> int:
        """How many numbers travel."""
        return self.values.size

    def present(self) -> Tensor:
        """(K,) bool: which classes have a row."""
        present = torch.zeros(self.num_classes, dtype=torch.bool)
        present.numpy()[self.classes] = True
        return present

    def unpacked(self) -> Prototypes:
        """The same rows among zeros, in memory of their own."""
        values = torch.zeros(self.num_classes, self.values.shape[1])
        values.numpy()[self.classes] = self.values
        return Prototypes(values, self.present())


class ClassSums(NamedTuple):
    """Per-class sums and counts, from which means follow; sums of parts add up to the sums of the whole."""

    sums: Tensor  # (K, w)
    counts: Tensor  # (K,) int64

    def means(self) -> Prototypes:
        """Sum over count for every class that was counted at least once."""
        present = self.counts > 0
        means = self.sums / self.counts.clamp_min(1).unsqueeze(1).to(self.sums.dtype)
        return Prototypes(torch.where(present.unsqueeze(1), means, torch.zeros_like(means)), present)


def class_sums(features: Tensor, labels: Tensor, num_classes: int) -> ClassSums:
    """Sum the rows of `features` (N, w) by their class."""
    sums = features.new_zeros(num_classes, features.shape[1]).index_add_(0, labels, features)
    counts = labels.new_zeros(num_classes).index_add_(0, labels, torch.ones_like(labels))
    return ClassSums(sums, counts)


def class_means(features: Tensor, labels: Tensor, num_classes: int) -> Prototypes:
    """Local prototypes c̄ᴸ_ij, eq. (3): the mean feature of every class among the samples given."""
    return class_sums(features, labels, num_classes).means()


def nearest(features: Tensor, prototypes: Prototypes) -> Tensor:
    """Inference, eq. (12): the class whose prototype is nearest in L2, over the classes present, of which there is one.

    The paper prints this with local prototypes; its tables need the global ones, so the caller chooses.
    ‖f − c‖² differs from ‖c‖² − 2 f·c by a term that is equal for all classes, so that is what is compared. Both sides
    are taken relative to the median prototype: an offset they share would cancel only up to rounding, and a mean would
    follow a single prototype that is far away. Where prototypes form groups far from each other, compared with their
    spread, float32 still cannot tell a group's members apart. About 1.4 times the time of the form without a centre
    (3000 × 500 features, 100 classes, one core), where float64 takes 2.8 and differences 22.
    """
    classes = prototypes.present.nonzero().squeeze(1)  # (n,); absent rows take no part, not even in the median
    values = prototypes.values[classes]
    centre = values.sort(0).values[len(classes) // 2]  # not torch.median, which is not deterministic on a GPU
    values = values - centre
    scores = torch.addmm(values.square().sum(1), features - centre, values.T, alpha=-2.0)  # (N, n)
    return classes[scores.argmin(1)]
