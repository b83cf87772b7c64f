"""Samples, networks and messages as files: an .npz for each part of each client, torch's serialisation for the rest."""

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
    """One part of one client's samples, all read when it is made."""

    def __init__(self, path: Path) -> None:
        with np.load(path) as arrays:
            inputs, labels = torch.tensor(arrays["x"]), torch.tensor(arrays["y"])
        self.samples: list[Sample] = list(zip(inputs, labels, strict=True))

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Sample:
        return self.samples[index]


def write_samples(path: Path, data: TensorData) -> None:
    """As floats, as a network sees them."""
    batch = data.batch(slice(None))
    np.savez(path, x=batch.inputs.cpu().numpy(), y=batch.labels.cpu().numpy())


def loader(path: Path, batches: Sequence[Sequence[int]]) -> DataLoader[Sample]:
    """The samples read anew, in these batches."""
    return DataLoader(Samples(path), batch_sampler=batches)  # type: ignore[arg-type]


def in_order(samples: int, size: int) -> list[list[int]]:
    """Batches of all samples in the order in which they are stored."""
    return [list(range(start, min(start + size, samples))) for start in range(0, samples, size)]


def write_message(path: Path, rows: Rows) -> None:
    """What one side says."""
    torch.save(rows, path)


def read_message(path: Path, device: torch.device) -> Rows:
    """What the other side said; nothing if it has not spoken yet."""
    if not path.exists():
        return {}
    rows: Rows = torch.load(path, map_location=device, weights_only=True)
    return rows


def write_network(path: Path, network: nn.Module) -> None:
    """Put a network away until it is used next."""
    torch.save(network.state_dict(), path)


def read_network(path: Path, network: nn.Module) -> None:
    """Fetch it again."""
    network.load_state_dict(torch.load(path, weights_only=True))
