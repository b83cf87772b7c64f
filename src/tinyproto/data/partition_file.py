"""A fixed split from a file: which samples each client trains and tests on, by their places in the dataset.

JSON: `{"clients": [{"train": [0, 5, …], "test": [7, …]}, …]}`. An .npz has the arrays `train_0`, `test_0`, `train_1` …
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tinyproto.data.partition import Indices, Share
from tinyproto.errors import DataError, one_line


def shares_from_file(path: Path, samples: int, num_clients: int | None = None) -> list[Share]:
    """Every client's share; a sample has at most one place, and one that nobody holds is left out."""
    try:
        parts = _from_arrays(path) if path.suffix == ".npz" else _from_json(path)
    except FileNotFoundError:
        raise DataError(f"partition.file: there is no {path}") from None
    except (OSError, ValueError) as error:  # json's and zipfile's errors among them
        raise DataError(f"partition.file: {path} cannot be read: {one_line(error)}") from error
    if not parts:
        raise DataError(f"partition.file: {path} has no clients")
    if num_clients is not None and num_clients != len(parts):
        raise DataError(
            f"partition.file: {path} has {len(parts)} clients, partition.num_clients says {num_clients}; leave "
            "num_clients out"
        )
    shares = [
        Share(*(_indices(path, client, name, part.get(name, ()), samples) for name in ("train", "test")))
        for client, part in enumerate(parts)
    ]
    _check_places(path, shares, samples)
    return shares


def _from_json(path: Path) -> list[Mapping[str, Any]]:
    content = json.loads(path.read_text(encoding="utf-8"))
    clients = content.get("clients") if isinstance(content, dict) else None
    if not isinstance(clients, list) or not all(isinstance(client, dict) for client in clients):
        raise DataError(f'partition.file: {path} has to look like {{"clients": [{{"train": [0, 1], "test": [2]}}, …]}}')
    return clients


def _from_arrays(path: Path) -> list[Mapping[str, Any]]:
    with np.load(path, allow_pickle=False) as arrays:
        clients = sum(name.startswith("train_") for name in arrays.files)
        names = {f"{part}_{client}" for part in ("train", "test") for client in range(clients)}
        for name in arrays.files:
            if name not in names:
                raise DataError(
                    f"partition.file: {path}: {name!r} is not one of train_0 … train_{clients - 1}, test_0 …"
                )
        return [
            {part: arrays[f"{part}_{client}"] for part in ("train", "test") if f"{part}_{client}" in arrays.files}
            for client in range(clients)
        ]


def _indices(path: Path, client: int, name: str, given: Any, samples: int) -> Indices:
    where = f"partition.file: {path}: client {client}: {name}"
    try:
        indices = np.asarray(given)
    except ValueError:
        raise DataError(f"{where} has to be a list of whole numbers") from None
    if indices.size == 0:
        if name == "train":
            raise DataError(f"{where} is empty; every client needs something to train on")
        return np.zeros(0, dtype=np.int64)
    if indices.ndim != 1 or indices.dtype.kind not in "iu":
        raise DataError(f"{where} has to be a list of whole numbers")
    if indices.min() < 0 or indices.max() >= samples:
        raise DataError(
            f"{where} goes from {indices.min()} to {indices.max()}, the dataset has samples 0 … {samples - 1}"
        )
    return indices.astype(np.int64)


def _check_places(path: Path, shares: list[Share], samples: int) -> None:
    owner = np.full(samples, -1)
    for client, share in enumerate(shares):
        held = np.concatenate([share.train, share.test])
        values, counts = np.unique(held, return_counts=True)
        if (counts > 1).any():
            raise DataError(f"partition.file: {path}: client {client} has sample {values[counts > 1][0]} twice")
        taken = held[owner[held] >= 0]
        if len(taken):
            raise DataError(
                f"partition.file: {path}: sample {taken[0]} belongs to client {owner[taken[0]]} and to client {client}"
            )
        owner[held] = client
