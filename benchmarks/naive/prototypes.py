"""Prototypes as dictionaries from class to tensor, gathered and compared one sample at a time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import functional

Rows = dict[int, Tensor]
"""One vector for each known class."""


def gather(gathered: defaultdict[int, list[Tensor]], features: Tensor, labels: Tensor) -> None:
    """Append each sample's feature to the list of its class."""
    for index, label in enumerate(labels):
        gathered[int(label.item())].append(features[index, :].detach())


def average(gathered: Mapping[int, Sequence[Tensor]]) -> Rows:
    """Return the mean of each list, adding one feature at a time."""
    means = {}
    for label, listed in gathered.items():
        total = torch.zeros_like(listed[0])
        for feature in listed:
            total += feature
        means[label] = total / len(listed)
    return means


def class_means(features: Tensor, labels: Tensor) -> Rows:
    """Return the mean feature of each class."""
    gathered: defaultdict[int, list[Tensor]] = defaultdict(list)
    gather(gathered, features, labels)
    return average(gathered)


def nearest(features: Tensor, prototypes: Rows, num_classes: int) -> Tensor:
    """Return the class of the nearest prototype, from one distance per sample and class."""
    distances = torch.full((len(features), num_classes), torch.inf, device=features.device)
    for index, feature in enumerate(features):
        for label, prototype in prototypes.items():
            distances[index, label] = functional.mse_loss(feature, prototype)
    return torch.argmin(distances, dim=1)
