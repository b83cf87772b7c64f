"""Three plainer partitions: all clients alike, a few classes each, or as many samples as a draw gives each."""

from __future__ import annotations

import numpy as np

from tinyproto.data.partition import Indices, Share, check_enough, draw_enough, draw_shares, split
from tinyproto.errors import DataError


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
