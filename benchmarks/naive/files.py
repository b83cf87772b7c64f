"""Samples, networks and messages as files: an .npz for each part of each client, torch's serialisation for others."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from benchmarks.naive.prototypes import Rows
from tinyproto.core.task import TensorData

Sample = tuple[Tensor, Tensor]


class Samples(Dataset[Sample]):
    """One part of one client's samples, read at construction."""

    def __init__(self, path: Path) -> None:
        with np.load(path) as arrays:
            inputs, labels = torch.tensor(arrays["x"]), torch.tensor(arrays["y"])
        self.samples: list[Sample] = list(zip(inputs, labels, strict=True))

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Sample:
        return self.samples[index]


def write_samples(path: Path, data: TensorData) -> None:
    """Convert pixels to the floats that a network takes."""
    batch = data.batch(slice(None))
    np.savez(path, x=batch.inputs.cpu().numpy(), y=batch.labels.cpu().numpy())


def loader(path: Path, batches: Sequence[Sequence[int]]) -> DataLoader[Sample]:
    """Read the samples again and return a loader over these batches."""
    return DataLoader(Samples(path), batch_sampler=batches)  # type: ignore[arg-type]


def in_order(samples: int, size: int) -> list[list[int]]:
    """Return batches of all samples in stored order."""
    return [list(range(start, min(start + size, samples))) for start in range(0, samples, size)]


def write_message(path: Path, rows: Rows) -> None:
    """Write a message."""
    torch.save(rows, path)


def read_message(path: Path, device: torch.device) -> Rows:
    """Read a message; return an empty one if there is none yet."""
    if not path.exists():
        return {}
    rows: Rows = torch.load(path, map_location=device, weights_only=True)
    return rows


def write_network(path: Path, network: nn.Module) -> None:
    """Save a network."""
    torch.save(network.state_dict(), path)


def read_network(path: Path, network: nn.Module) -> None:
    """Load a network."""
    network.load_state_dict(torch.load(path, weights_only=True))
