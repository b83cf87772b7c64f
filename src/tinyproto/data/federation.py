"""The federation's data: each client's train and test part, and what it holds of each class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from tinyproto.core.task import TensorData
from tinyproto.data.images import Images
from tinyproto.data.partition import Share

CountedSamples = Literal["train", "all"]
"""What n_ij counts: training samples, or training and test samples as the published runs do."""


@dataclass(frozen=True)
class FederatedData:
    """A dataset and who holds which of its samples: one pool of pixels, and each client's places in it."""

    images: Images
    shares: Sequence[Share]

    @property
    def num_clients(self) -> int:
        """M."""
        return len(self.shares)

    @cached_property
    def train_counts(self) -> Tensor:
        """n_ij over training samples, (M, K)."""
        return torch.stack([self.images.class_counts(torch.from_numpy(share.train)) for share in self.shares])

    @cached_property
    def counts(self) -> Tensor:
        """n_ij over training and test samples, (M, K): what the paper's Table 2 counts K_i over."""
        tests = [self.images.class_counts(torch.from_numpy(share.test)) for share in self.shares]
        return self.train_counts + torch.stack(tests)

    def counted(self, samples: CountedSamples) -> Tensor:
        """n_ij as the scaling is told to count it, (M, K)."""
        return self.train_counts if samples == "train" else self.counts

    def to(self, device: torch.device | str) -> FederatedData:
        """The same federation with its one pool of pixels on another device."""
        return FederatedData(self.images.to(device), self.shares)

    def train(self, client: int) -> TensorData:
        """A client's training samples."""
        return self.images.take(torch.from_numpy(self.shares[client].train))

    def test(self, client: int) -> TensorData:
        """A client's test samples."""
        return self.images.take(torch.from_numpy(self.shares[client].test))
