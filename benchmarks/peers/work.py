"""The work that all contenders do: FedAvg with one small CNN on CIFAR-10, 1 000 clients, 50 of them a round.

Clients, batches and initial weights are equal on all sides, so the weights after some rounds can be compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.contenders import Asked, Trained
from benchmarks.synthetic import NUM_CLASSES as NUM_CLASSES
from benchmarks.synthetic import synthetic_images
from tinyproto.algorithms.exchange import drawn
from tinyproto.config import parse_config
from tinyproto.core.task import TensorData
from tinyproto.engine.participation import draw_participants
from tinyproto.experiment import Experiment
from tinyproto.models.split import SplitModel

TEST_SHARE = 6
"""One of so many samples of a client is for testing: CIFAR-10's 60 000 images are 50 + 10 for each of 1 000 clients."""


@dataclass(frozen=True)
class Work:
    """FedAvg as all contenders run it."""

    clients: int = 1000
    participants: int = 50
    samples: int = 50  # for training, per client
    batch_size: int = 10
    learning_rate: float = 0.1
    network: str = "small_cnn_a"  # no batch normalisation, whose statistics the peer does not average
    data: str | None = None  # the folder of real CIFAR-10; None: synthetic images of its shape
    device: str = "auto"

    def experiment(self) -> Experiment:
        """Build the federation; rounds after the first evaluate nothing."""
        pooled = self.clients * self.samples * TEST_SHARE // (TEST_SHARE - 1)
        images = None if self.data else synthetic_images(pooled)
        return Experiment(parse_config(self._values(), "the benchmark's config"), images)

    def _values(self) -> dict[str, Any]:
        return {
            "data": {"name": "cifar10", **({"root": str(Path(self.data).expanduser())} if self.data else {})},
            "partition": {
                "kind": "iid",
                "num_clients": self.clients,
                "train_fraction": 1 - 1 / TEST_SHARE + 1e-9,  # rounded down to a number of samples
            },
            "models": [self.network],
            "train": {
                "batch_size": self.batch_size,
                "learning_rate": self.learning_rate,
                "participation": self.participants / self.clients,
                "shuffle": False,  # the peer takes the samples in their order
                "last_batch": "keep",
                "device": self.device,
            },
            "evaluate": {"every": 1_000_000},
            "algorithms": ["fedavg"],
        }


class Ours(Trained):
    """tinyproto's rounds, and the weights that they lead to."""

    def __init__(self, experiment: Experiment, asked: Asked, rounds: int) -> None:
        super().__init__(experiment, 0, asked, rounds)

    @property
    def weights(self) -> Mapping[str, Tensor]:
        """Return the shared network as the server holds it."""
        return self.simulation.server.state

    @property
    def steps(self) -> int | None:
        """Return the steps of the latest round; with stacks, also those computed in vain."""
        return self.paid_steps


def initial_network(experiment: Experiment) -> SplitModel:
    """Return the network that FedAvg's server draws before round 1."""
    (entry,) = experiment.config.model.models
    return drawn(entry, experiment.shape, experiment.setup(experiment.cells[0]).streams)


def cohort(experiment: Experiment, round_number: int) -> Sequence[int]:
    """Return the clients that tinyproto draws for a round."""
    streams = experiment.setup(experiment.cells[0]).streams
    share = experiment.config.model.train.participation
    return draw_participants(experiment.data.num_clients, share, streams, round_number)


def pooled_test(experiment: Experiment) -> TensorData:
    """Return the test samples of all clients."""
    rows = torch.cat([torch.from_numpy(share.test) for share in experiment.data.shares])
    return experiment.images.take(rows)


@torch.no_grad()
def scores(experiment: Experiment, weights: Mapping[str, Tensor], batch: int = 1000) -> dict[str, float]:
    """Return accuracy and loss of a network with these weights on the test samples of all clients."""
    network, samples = initial_network(experiment), pooled_test(experiment)
    network.load_state_dict(dict(weights))
    network.eval()
    correct = loss = 0.0
    for start in range(0, len(samples), batch):
        inputs, labels = samples.batch(slice(start, start + batch))
        logits = network(inputs).logits
        correct += float((logits.argmax(1) == labels).sum())
        loss += float(functional.cross_entropy(logits, labels, reduction="sum"))
    return {"accuracy": correct / len(samples), "loss": loss / len(samples)}


def distance(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> float:
    """Return |ours - theirs| / |ours| over all weights."""
    apart = sum(float((ours[name].double() - theirs[name].double()).square().sum()) for name in ours)
    return float((apart / sum(float(value.double().square().sum()) for value in ours.values())) ** 0.5)
