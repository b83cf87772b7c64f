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


def iid_shares(
    labels: Indices, num_clients: int, seed: int, train_fraction: float = 0.75, min_samples: int = 1
) -> list[Share]:
    """All samples shuffled and dealt out in equal parts."""
    check_enough(labels, num_clients, min_samples)
    random = np.random.RandomState(seed)
    parts = np.array_split(random.permutation(len(labels)), num_clients)
    return [split(part, train_fraction, random) for part in parts]


def quantity_shares(
    labels: Indices, num_clients: int, alpha: float, seed: int, train_fraction: float = 0.75, min_samples: int = 1
) -> list[Share]:
    """Sizes by one Dirichlet(α) draw over the clients, classes at random; drawn again until all have enough."""
    check_enough(labels, num_clients, min_samples)
    random = np.random.RandomState(seed)

    def draw() -> list[Indices]:
        cuts = (np.cumsum(draw_shares(num_clients, alpha, random)) * len(labels)).astype(int)[:-1]
        return np.split(random.permutation(len(labels)), cuts)

    return [split(part, train_fraction, random) for part in draw_enough(draw, min_samples)]


def pathological_shares(
    labels: Indices, num_clients: int, classes_per_client: int, seed: int, train_fraction: float = 0.75,
    min_samples: int = 1,
) -> list[Share]:  # fmt: skip
    """Every client holds exactly k classes; a class is split evenly among its holders."""
    random = np.random.RandomState(seed)
    holders = _holders(labels, num_clients, classes_per_client, random)
    parts: list[list[Indices]] = [[] for _ in range(num_clients)]
    for label, clients in holders.items():
        members = random.permutation(np.flatnonzero(labels == label))
        if len(members) < len(clients):
            raise DataError(
                f"class {label} has {len(members)} samples for {len(clients)} clients; lower partition.num_clients or "
                "partition.classes_per_client"
            )
        for client, piece in zip(clients, np.array_split(members, len(clients)), strict=True):
            parts[client].append(piece)
    held = [np.concatenate(pieces) for pieces in parts]
    smallest = min(len(part) for part in held)
    if smallest < min_samples:
        raise DataError(
            f"a client of {classes_per_client} classes gets {smallest} samples, partition.min_samples asks for "
            f"{min_samples}; lower partition.num_clients or partition.min_samples"
        )
    return [split(part, train_fraction, random) for part in held]


def _holders(
    labels: Indices, num_clients: int, classes_per_client: int, random: np.random.RandomState
) -> dict[int, list[int]]:
    """Which clients hold each class: a client takes those with the fewest holders so far, so that none is left out."""
    classes = np.unique(labels)
    if classes_per_client > len(classes):
        raise DataError(f"partition.classes_per_client is {classes_per_client}, the dataset has {len(classes)} classes")
    if num_clients * classes_per_client < len(classes):
        raise DataError(
            f"{num_clients} clients of {classes_per_client} classes cannot hold {len(classes)} classes between them; "
            f"raise partition.classes_per_client to {-(-len(classes) // num_clients)} or more"
        )
    holders: dict[int, list[int]] = {int(label): [] for label in classes}
    for client in range(num_clients):
        shuffled = random.permutation(classes).tolist()
        for label in sorted(shuffled, key=lambda label: len(holders[label]))[:classes_per_client]:
            holders[label].append(client)
    return holders
