"""The server: means per class of the uploads, or FedTGP's fit with a loader over the uploads."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader

from benchmarks.naive.prototypes import Rows, average
from tinyproto.core.prototypes import TINY


class Trainable(nn.Module):
    """FedTGP's network, which returns one prototype per class id."""

    def __init__(self, num_classes: int, dim: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(num_classes, dim)
        self.hidden = nn.Linear(dim, dim)
        self.output = nn.Linear(dim, dim)

    def forward(self, classes: list[int]) -> Tensor:
        """Return prototypes (K, d)."""
        rows = self.embedding(torch.tensor(classes, device=self.embedding.weight.device))
        projected: Tensor = self.output(functional.relu(self.hidden(rows)))
        return projected


def merge(uploads: Sequence[Rows], summed: bool) -> Rows:
    """Return the mean over the clients that hold a class, or their sum."""
    gathered: defaultdict[int, list[Tensor]] = defaultdict(list)
    for upload in uploads:
        for label, row in upload.items():
            gathered[label].append(row)
    means = average(gathered)
    return {label: mean * len(gathered[label]) for label, mean in means.items()} if summed else means


def largest_gap(uploads: Sequence[Rows], cap: float) -> float:
    """Return FedTGP's adaptive margin, from the distances between the classes' centres."""
    centres = merge(uploads, summed=False)
    nearest = []
    for label, centre in centres.items():
        gaps = [torch.norm(centre - other).item() for name, other in centres.items() if name != label]
        if gaps:
            nearest.append(min(gaps))
    return min(max(nearest, default=0.0), cap)


def fit(
    network: Trainable, uploads: Sequence[Rows], epochs: Sequence[list[list[int]]], margin: float, learning_rate: float,
    offered: Tensor,
) -> None:  # fmt: skip
    """Train the network on the uploads; each row is a sample."""
    samples = [(row, label) for upload in uploads for label, row in sorted(upload.items())]
    optimiser = torch.optim.SGD(network.parameters(), lr=learning_rate)
    num_classes = len(offered)
    network.train()
    for batches in epochs:
        for rows, labels in DataLoader(samples, batch_sampler=batches):  # type: ignore[arg-type]
            labels = labels.to(offered.device)
            learned = network(list(range(num_classes)))
            squares = torch.sum(torch.pow(rows, 2), 1, keepdim=True) + torch.sum(torch.pow(learned, 2), 1)
            distances = torch.sqrt(torch.clamp(squares - 2.0 * torch.matmul(rows, learned.T), min=TINY))
            distances = distances + functional.one_hot(labels, num_classes) * margin
            loss = functional.cross_entropy((-distances).masked_fill(~offered, -torch.inf), labels)
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()


def scaled(rows: Mapping[int, Tensor], factor: float) -> Rows:
    """Multiply each row by a number."""
    return {label: row * factor for label, row in rows.items()}
