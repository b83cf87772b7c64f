"""The partitions that a config can name, and which of its keys each of them reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tinyproto.data.partition import Indices, Share, dirichlet_shares, iid_shares, pathological_shares, quantity_shares
from tinyproto.data.partition_file import shares_from_file

PartitionKind = Literal["dirichlet", "iid", "pathological", "quantity", "file"]


@dataclass(frozen=True)
class Partition:
    """Who is to hold what."""

    kind: PartitionKind = "dirichlet"
    num_clients: int | None = None  # only a file may leave it open
    alpha: float = 0.1
    classes_per_client: int = 2
    file: str = ""
    seed: int = 1
    train_fraction: float = 0.75
    min_samples: int = 1

    def shares(self, labels: Indices) -> list[Share]:
        """Every client's samples."""
        return _KINDS[self.kind](self, labels)

    @property
    def clients(self) -> int:
        """M."""
        assert self.num_clients is not None
        return self.num_clients

    @property
    def common(self) -> tuple[int, float, int]:
        """What every drawn partition reads."""
        return self.seed, self.train_fraction, self.min_samples


_KINDS: Mapping[PartitionKind, Callable[[Partition, Indices], list[Share]]] = {
    "dirichlet": lambda asked, labels: dirichlet_shares(labels, asked.clients, asked.alpha, *asked.common),
    "iid": lambda asked, labels: iid_shares(labels, asked.clients, *asked.common),
    "pathological": lambda asked, labels: pathological_shares(
        labels, asked.clients, asked.classes_per_client, *asked.common
    ),
    "quantity": lambda asked, labels: quantity_shares(labels, asked.clients, asked.alpha, *asked.common),
    "file": lambda asked, labels: shares_from_file(Path(asked.file), len(labels), asked.num_clients),
}

REQUIRED = object()
OWN_KEYS: Mapping[str, Mapping[str, Any]] = {
    "dirichlet": {"num_clients": 20, "alpha": 0.1},
    "iid": {"num_clients": 20},
    "pathological": {"num_clients": 20, "classes_per_client": REQUIRED},
    "quantity": {"num_clients": 20, "alpha": 0.1},
    "file": {"num_clients": None, "file": REQUIRED},
}
"""The keys that not every kind reads, and what each kind takes where one is not given."""


def holdings(labels: Indices, shares: Sequence[Share], num_classes: int) -> dict[str, Any]:
    """Who holds what: n_ij over train + test, one row per client, and the sizes of both parts."""
    return {
        "counts": count_matrix(labels, shares, num_classes).tolist(),
        "train": [len(share.train) for share in shares],
        "test": [len(share.test) for share in shares],
    }


def count_matrix(labels: Indices, shares: Sequence[Share], num_classes: int) -> NDArray[np.int64]:
    """n_ij over training and test samples, (M, K)."""
    held = [np.concatenate([share.train, share.test]) for share in shares]
    return np.stack([np.bincount(labels[part], minlength=num_classes) for part in held])
