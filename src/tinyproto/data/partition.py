"""Who holds what: the Dirichlet partition of the published runs, entry for entry, and the train/test split."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tinyproto.errors import DataError

Indices = NDArray[np.int64]

MOST_DRAWS = 1000
"""After so many draws with a client below the minimum, the last one is repaired instead."""


@dataclass(frozen=True)
class Share:
    """One client's samples, as positions in the dataset."""

    train: Indices
    test: Indices


def dirichlet_shares(
    labels: Indices, num_clients: int, alpha: float, seed: int, train_fraction: float = 0.75, min_samples: int = 1
) -> list[Share]:
    """Each class spread over the clients by one Dirichlet(α) draw, then each client's part split into train and test.

    The routine and its random numbers are those of the published runs (numpy's legacy generator, whose stream is
    frozen), so seed 1 gives the paper's partitions.
    """
    check_enough(labels, num_clients, min_samples)
    random = np.random.RandomState(seed)
    parts = draw_enough(lambda: _draw(labels, num_clients, alpha, random), min_samples)
    return [split(part, train_fraction, random) for part in parts]


def draw_enough(draw: Callable[[], list[Indices]], min_samples: int) -> list[Indices]:
    """Drawn again until every client has enough; the last of many draws is repaired instead."""
    for _ in range(MOST_DRAWS):
        parts = draw()
        if min(len(part) for part in parts) >= min_samples:
            return parts
    repair(parts, min_samples)
    return parts


def draw_shares(num_clients: int, alpha: float, random: np.random.RandomState) -> NDArray[np.float64]:
    """One Dirichlet(α) draw over the clients; where every share underflows, as a tiny α has it, one client gets all."""
    shares = random.dirichlet(np.repeat(alpha, num_clients))
    return shares if np.isfinite(shares).all() else np.eye(num_clients)[random.randint(num_clients)]


def check_enough(labels: Indices, num_clients: int, min_samples: int) -> None:
    """Refuse more clients than the samples can serve."""
    if num_clients * min_samples > len(labels):
        raise DataError(
            f"{num_clients} clients of at least {min_samples} samples need {num_clients * min_samples}, the dataset "
            f"has {len(labels)}; lower partition.num_clients or partition.min_samples"
        )


def _draw(labels: Indices, num_clients: int, alpha: float, random: np.random.RandomState) -> list[Indices]:
    full = len(labels) / num_clients
    samples, owners = [], []
    sizes = np.zeros(num_clients, dtype=np.int64)
    for label in range(int(labels.max()) + 1):
        members = np.flatnonzero(labels == label)
        random.shuffle(members)
        shares = draw_shares(num_clients, alpha, random)
        # A client that has its fair share gets no more; if no other client was drawn at all, the draw stands.
        wanted = shares * (sizes < full)
        shares = wanted / wanted.sum() if wanted.sum() > 0 else shares
        cuts = (np.cumsum(shares) * len(members)).astype(int)[:-1]
        pieces = np.diff(cuts, prepend=0, append=len(members))
        samples.append(members)
        owners.append(np.repeat(np.arange(num_clients), pieces))
        sizes += pieces
    # Each client's samples in the order of classes, as if every piece had been handed to it in turn.
    order = np.argsort(np.concatenate(owners), kind="stable")
    return np.split(np.concatenate(samples)[order], np.cumsum(sizes)[:-1])


def repair(parts: list[Indices], min_samples: int) -> None:
    """Move samples, the last first, from the largest client to the smallest until each has enough."""
    while True:
        sizes = [len(part) for part in parts]
        smallest, largest = int(np.argmin(sizes)), int(np.argmax(sizes))
        missing = min_samples - sizes[smallest]
        if missing <= 0:
            return
        moved = min(missing, sizes[largest] - min_samples)
        parts[smallest] = np.concatenate([parts[smallest], parts[largest][-moved:]])
        parts[largest] = parts[largest][:-moved]


def split(part: Indices, train_fraction: float, random: np.random.RandomState) -> Share:
    """A random ⌊fraction·n⌋ train, the rest test; a client with a single sample trains on it."""
    order = random.permutation(len(part))
    train = max(int(train_fraction * len(part)), min(1, len(part)))
    test = len(part) - train
    return Share(train=part[order[test:]], test=part[order[:test]])
