"""Networks of users on a GPU: captured or stacked where that gives the eager trainer's numbers, eager elsewhere."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import tinyproto as tp

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

DIM = 20
After = Callable[["Own", Tensor], Tensor]


class Own(nn.Module):
    """A linear layer, and a step after it."""

    mean: Tensor

    def __init__(self, after: After) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, DIM), nn.ReLU())
        self.last = nn.Linear(DIM, DIM)
        self.register_buffer("mean", torch.zeros(()))
        self.step, self.after = 0, after

    def forward(self, images: Tensor) -> Tensor:
        return self.after(self, self.body(images))


def counting(network: Own, features: Tensor) -> Tensor:
    network.step += network.training
    return features * (1 + 0.1 * network.step)


def changing_a_buffer(network: Own, features: Tensor) -> Tensor:
    if network.training:
        network.mean.mul_(0.9).add_(0.1 * features.detach().mean())
    return features - network.mean


def replacing_a_buffer(network: Own, features: Tensor) -> Tensor:
    if network.training:
        network.mean = 0.9 * network.mean + 0.1 * features.detach().mean()
    return features - network.mean


def skipping_by_torch(network: Own, features: Tensor) -> Tensor:
    return network.last(features) if network.training and torch.rand(()) < 0.5 else features


def skipping_by_numpy(network: Own, features: Tensor) -> Tensor:
    return network.last(features) if network.training and np.random.rand() < 0.5 else features


def skipping_by_python(network: Own, features: Tensor) -> Tensor:
    return network.last(features) if network.training and random.random() < 0.5 else features


def branching_on_values(network: Own, features: Tensor) -> Tensor:
    return network.last(features) if float(features.mean()) > 0 else features


def ordinary(network: Own, features: Tensor) -> Tensor:
    return torch.relu(network.last(features))


@pytest.mark.parametrize("trainer", ["graphed", "stacked"])
@pytest.mark.parametrize(
    "after",
    [
        counting, changing_a_buffer, replacing_a_buffer, skipping_by_torch, skipping_by_numpy, skipping_by_python,
        branching_on_values, ordinary,
    ],
)  # fmt: skip
def test_a_network_of_a_user_gives_the_eager_trainer_s_numbers(after: After, trainer: str) -> None:
    def simulated(trainer: str) -> tp.Result:
        train = {"device": "cuda", "trainer": trainer, "batch_size": 16, "precision": "exact"}
        return tp.simulate(
            algorithm="local", models=lambda: Own(after), num_clients=3, rounds=3, proto_dim=DIM,
            settings={"train": train},
        )  # fmt: skip

    for mine, other in zip(simulated(trainer).rounds, simulated("eager").rounds, strict=True):
        assert mine.loss == pytest.approx(other.loss, rel=1e-3)
