"""The paper's Figure 1: parameters a client sends a round under FedAvg and as prototypes, by number of classes."""

from __future__ import annotations

from functools import cache

from tinyproto.models.count import count_parameters
from tinyproto.models.shufflenet_v2 import WIDTH, X0_5, ShuffleNetV2

CLASSES = (10, 20, 50, 100, 200, 500, 1000)
DIMS = (50, 100, 500, 1000)
"""Prototype dimensions; 50 of 500 is also what CPS sends."""


@cache
def trunk_parameters() -> int:
    """Of ShuffleNetV2 ×0.5 without its last layer: the network whose 1.36 M over 1 000 classes the paper speaks of."""
    network = ShuffleNetV2(X0_5)
    return count_parameters(network) - count_parameters(network.fc)


def fedavg_parameters(num_classes: int) -> int:
    """The whole network, whose last layer has a weight per feature and a bias for every class."""
    return trunk_parameters() + (WIDTH + 1) * num_classes


def prototype_parameters(num_classes: int, dim: int) -> int:
    """K · d: one prototype of every class."""
    return num_classes * dim
