"""Partitions: which client holds which samples, and which of them it trains and tests on.

The Dirichlet partition and the train/test split draw the same random numbers as the published runs, so `seed=1` gives
the paper's partitions entry for entry. The generator is numpy's legacy one, whose stream is frozen.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.random import RandomState
from numpy.typing import NDArray

from tinyproto.errors import DataError, one_line

Indices = NDArray[np.int64]
PartitionKind = Literal["dirichlet", "iid", "pathological", "quantity", "file"]

REQUIRED = object()
KEYS_OF_KIND: Mapping[str, Mapping[str, Any]] = {
    "dirichlet": {"num_clients": 20, "alpha": 0.1},
    "iid": {"num_clients": 20},
    "pathological": {"num_clients": 20, "classes_per_client": REQUIRED},
    "quantity": {"num_clients": 20, "alpha": 0.1},
    "file": {"num_clients": None, "file": REQUIRED},
}
"""Config keys that only some kinds read, with the default of each kind."""

MOST_DRAWS = 1000
"""Number of draws that may leave a client below the minimum; the last one is then repaired."""


@dataclass(frozen=True)
class Share:
    """The samples of one client, as positions in the dataset."""

    train: Indices
    test: Indices


@dataclass(frozen=True)
class Partition:
    """A partition as the config describes it; `shares` draws it, or reads it from `file`."""

    kind: PartitionKind = "dirichlet"
    num_clients: int = 0  # 0, only for kind "file": as many as in the file
    alpha: float = 0.1
    classes_per_client: int = 2
    file: str = ""
    seed: int = 1
    train_fraction: float = 0.75
    min_samples: int = 1

    def shares(self, labels: Indices) -> list[Share]:
        """Return the share of each client; raise DataError if the samples do not suffice."""
        if self.kind == "file":
            return _shares_from_file(Path(self.file).expanduser().absolute(), len(labels), self.num_clients)
        if self.kind != "pathological" and self.num_clients * self.min_samples > len(labels):
            raise DataError(
                f"{self.num_clients} clients with at least {self.min_samples} samples each need "
                f"{self.num_clients * self.min_samples} samples, the dataset has {len(labels)}; lower "
                "partition.num_clients or partition.min_samples"
            )
        random = RandomState(self.seed)
        return [split_part(part, self.train_fraction, random) for part in _DRAWS[self.kind](self, labels, random)]


def train_rows(shares: Sequence[Share]) -> Indices:
    """Return the training samples of all clients."""
    return np.concatenate([share.train for share in shares])


def holdings(labels: Indices, shares: Sequence[Share], num_classes: int) -> dict[str, Any]:
    """Return n_ij over training and test samples, one row per client, and the sizes of both parts."""
    return {
        "counts": count_matrix(labels, shares, num_classes).tolist(),
        "train": [len(share.train) for share in shares],
        "test": [len(share.test) for share in shares],
    }


def count_matrix(labels: Indices, shares: Sequence[Share], num_classes: int) -> NDArray[np.int64]:
    """Return n_ij over training and test samples, (M, K)."""
    held = [np.concatenate([share.train, share.test]) for share in shares]
    return np.stack([np.bincount(labels[part], minlength=num_classes) for part in held])


def split_part(part: Indices, train_fraction: float, random: RandomState) -> Share:
    """Put a random ⌊fraction·n⌋ samples into train and the others into test; a single sample goes into train."""
    order = random.permutation(len(part))
    train = max(int(train_fraction * len(part)), min(1, len(part)))
    test = len(part) - train
    return Share(train=part[order[test:]], test=part[order[:test]])


def _dirichlet(asked: Partition, labels: Indices, random: RandomState) -> list[Indices]:
    """Spread each class over the clients by one Dirichlet(α) draw."""
    return _draw_enough(lambda: _draw(labels, asked.num_clients, asked.alpha, random), asked.min_samples)


def _draw(labels: Indices, num_clients: int, alpha: float, random: RandomState) -> list[Indices]:
    full = len(labels) / num_clients
    samples, owners = [], []
    sizes = np.zeros(num_clients, dtype=np.int64)
    for label in range(int(labels.max()) + 1):
        members = np.flatnonzero(labels == label)
        random.shuffle(members)
        fractions = _draw_fractions(num_clients, alpha, random)
        # A client that has its fair share gets no more; if no other client was drawn at all, the draw stands.
        wanted = fractions * (sizes < full)
        fractions = wanted / wanted.sum() if wanted.sum() > 0 else fractions
        cuts = (np.cumsum(fractions) * len(members)).astype(int)[:-1]
        pieces = np.diff(cuts, prepend=0, append=len(members))
        samples.append(members)
        owners.append(np.repeat(np.arange(num_clients), pieces))
        sizes += pieces
    # Each client's samples in the order of classes, as if every piece had been handed to it in turn.
    order = np.argsort(np.concatenate(owners), kind="stable")
    return np.split(np.concatenate(samples)[order], np.cumsum(sizes)[:-1])


def _draw_fractions(num_clients: int, alpha: float, random: RandomState) -> NDArray[np.float64]:
    """Return one Dirichlet(α) draw over the clients; if a tiny α underflows every fraction, one client gets all."""
    fractions = random.dirichlet(np.repeat(alpha, num_clients))
    return fractions if np.isfinite(fractions).all() else np.eye(num_clients)[random.randint(num_clients)]


def _draw_enough(draw: Callable[[], list[Indices]], min_samples: int) -> list[Indices]:
    """Draw until each client has enough samples; after MOST_DRAWS repair the last draw."""
    for _ in range(MOST_DRAWS):
        parts = draw()
        if min(len(part) for part in parts) >= min_samples:
            return parts
    while True:  # move samples, the last first, from the largest client to the smallest
        sizes = [len(part) for part in parts]
        smallest, largest = int(np.argmin(sizes)), int(np.argmax(sizes))
        missing = min_samples - sizes[smallest]
        if missing <= 0:
            return parts
        moved = min(missing, sizes[largest] - min_samples)
        parts[smallest] = np.concatenate([parts[smallest], parts[largest][-moved:]])
        parts[largest] = parts[largest][:-moved]


def _iid(asked: Partition, labels: Indices, random: RandomState) -> list[Indices]:
    """Shuffle all samples and deal them out in equal parts."""
    return np.array_split(random.permutation(len(labels)), asked.num_clients)


def _quantity(asked: Partition, labels: Indices, random: RandomState) -> list[Indices]:
    """Draw the clients' sizes from Dirichlet(α) and their samples at random."""

    def draw() -> list[Indices]:
        cuts = (np.cumsum(_draw_fractions(asked.num_clients, asked.alpha, random)) * len(labels)).astype(int)[:-1]
        return np.split(random.permutation(len(labels)), cuts)

    return _draw_enough(draw, asked.min_samples)


def _pathological(asked: Partition, labels: Indices, random: RandomState) -> list[Indices]:
    """Give each client exactly k classes and split each class evenly among its holders."""
    parts: list[list[Indices]] = [[] for _ in range(asked.num_clients)]
    for label, clients in _holders(labels, asked.num_clients, asked.classes_per_client, random).items():
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
    if smallest < asked.min_samples:
        raise DataError(
            f"a client with {asked.classes_per_client} classes gets {smallest} samples, partition.min_samples is "
            f"{asked.min_samples}; lower partition.num_clients or partition.min_samples"
        )
    return held


def _holders(labels: Indices, num_clients: int, classes_per_client: int, random: RandomState) -> dict[int, list[int]]:
    """Return the clients that hold each class; each client takes the classes with the fewest holders so far."""
    classes = np.unique(labels)
    if classes_per_client > len(classes):
        raise DataError(f"partition.classes_per_client is {classes_per_client}, the dataset has {len(classes)} classes")
    if num_clients * classes_per_client < len(classes):
        raise DataError(
            f"{num_clients} clients with {classes_per_client} classes each cannot cover {len(classes)} classes; "
            f"raise partition.classes_per_client to {-(-len(classes) // num_clients)} or more"
        )
    holders: dict[int, list[int]] = {int(label): [] for label in classes}
    for client in range(num_clients):
        shuffled = random.permutation(classes).tolist()
        for label in sorted(shuffled, key=lambda label: len(holders[label]))[:classes_per_client]:
            holders[label].append(client)
    return holders


_DRAWS: Mapping[str, Callable[[Partition, Indices, RandomState], list[Indices]]] = {
    "dirichlet": _dirichlet, "iid": _iid, "pathological": _pathological, "quantity": _quantity,
}  # fmt: skip


def _shares_from_file(path: Path, samples: int, num_clients: int) -> list[Share]:
    """Read the share of each client from a JSON or .npz file; samples that the file does not name are not used.

    JSON: `{"clients": [{"train": [0, 5, …], "test": [7, …]}, …]}`. An .npz has arrays `train_0`, `test_0`, `train_1` …
    """
    where = f"partition.file: {path}"
    try:
        parts = _parts_of_npz(path) if path.suffix == ".npz" else _parts_of_json(path)
    except FileNotFoundError:
        raise DataError(f"{where}: no such file") from None
    except (OSError, ValueError) as error:  # also the errors of json and zipfile
        raise DataError(f"{where} cannot be read: {one_line(error)}") from error
    if not parts:
        raise DataError(f"{where} has no clients")
    if num_clients not in (0, len(parts)):
        raise DataError(
            f"{where} has {len(parts)} clients, partition.num_clients is {num_clients}; remove partition.num_clients"
        )
    shares: list[Share] = []
    owner = np.full(samples, -1)
    for client, part in enumerate(parts):
        share = Share(
            *(_indices(part.get(name, ()), samples, f"{where}: client {client}: {name}") for name in ("train", "test"))
        )
        if not len(share.train):
            raise DataError(f"{where}: client {client}: train is empty; each client needs training samples")
        held = np.concatenate([share.train, share.test])
        values, counts = np.unique(held, return_counts=True)
        if (counts > 1).any():
            raise DataError(f"{where}: client {client} has sample {values[counts > 1][0]} twice")
        taken = held[owner[held] >= 0]
        if len(taken):
            raise DataError(f"{where}: client {owner[taken[0]]} and client {client} both have sample {taken[0]}")
        owner[held] = client
        shares.append(share)
    return shares


def _parts_of_json(path: Path) -> list[Mapping[str, Any]]:
    content = json.loads(path.read_text(encoding="utf-8"))
    clients = content.get("clients") if isinstance(content, dict) else None
    if not isinstance(clients, list) or not all(isinstance(client, dict) for client in clients):
        raise DataError(f'partition.file: {path}: expected {{"clients": [{{"train": [0, 1], "test": [2]}}, …]}}')
    return clients


def _parts_of_npz(path: Path) -> list[Mapping[str, Any]]:
    with np.load(path, allow_pickle=False) as arrays:
        clients = sum(name.startswith("train_") for name in arrays.files)
        names = [{part: f"{part}_{client}" for part in ("train", "test")} for client in range(clients)]
        strange = set(arrays.files).difference(*(of_client.values() for of_client in names))
        if strange:
            raise DataError(
                f"partition.file: {path}: unknown array {min(strange)!r}; expected train_0 … train_{clients - 1}, "
                "test_0 …"
            )
        return [{part: arrays[name] for part, name in of_client.items() if name in arrays} for of_client in names]


def _indices(given: Any, samples: int, where: str) -> Indices:
    try:
        indices = np.asarray(given)
    except ValueError:
        raise DataError(f"{where} has to be a list of integers") from None
    if indices.size == 0:
        return np.zeros(0, dtype=np.int64)
    if indices.ndim != 1 or indices.dtype.kind not in "iu":
        raise DataError(f"{where} has to be a list of integers")
    if indices.min() < 0 or indices.max() >= samples:
        raise DataError(
            f"{where} has samples {indices.min()} … {indices.max()}, the dataset has samples 0 … {samples - 1}"
        )
    return indices.astype(np.int64)
