"""All algorithms on CIFAR-shaped images with the paper's networks, on a CPU: they learn, share and count right."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from support import InProcess, SimulationSettings, make_patterns
from support_data import dirichlet_shares
from tinyproto.algorithms import ALGORITHMS, Algorithm, FederationSpec
from tinyproto.core.task import FeatureModel, FitResult, State, Task, TensorData, Trainer
from tinyproto.data.dataset import FederatedData
from tinyproto.engine.client import LocalTraining
from tinyproto.models import build_model
from tinyproto.models.count import count_parameters
from tinyproto.models.split import SplitModel

NETWORKS = ("resnet8", "mobilenet_v2", "shufflenet_v2", "efficientnet_b0")
SMALLEST = "resnet8"  # 1 232 704 parameters in its extractor; the next, ShuffleNetV2, has 1 253 604
CLASSES, DIM, CPS_DIM, CLIENTS, SAMPLES, ENOUGH = 10, 500, 50, 8, 2000, 32
ROUNDS, EPOCHS = 3, 5

pytestmark = pytest.mark.slow


class Recording:
    """A trainer that keeps what every client's training left behind, epoch by epoch."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self.device, self.notes = trainer.device, trainer.notes
        self.results: dict[str, list[FitResult]] = {}

    def fit(self, tasks: Sequence[Task]) -> list[FitResult]:
        results = self.trainer.fit(tasks)
        for task, result in zip(tasks, results, strict=True):
            self.results.setdefault(task.name, []).append(result)
        return results

    def features(self, models: Sequence[FeatureModel], data: Sequence[TensorData]) -> list[Tensor]:
        return self.trainer.features(models, data)

    def cross_entropies(self, client: int) -> list[float]:
        """Of every epoch of every round."""
        rounds = self.results[f"client {client}"]
        return [value for fit in rounds for value in fit.parts[:, fit.part_names.index("cross_entropy")].tolist()]


@pytest.fixture(scope="module")
def federation() -> FederatedData:
    images = make_patterns(SAMPLES, CLASSES, (3, 32, 32))
    data = FederatedData(images, dirichlet_shares(images.labels.numpy(), CLIENTS, alpha=0.3, seed=69))
    assert torch.equal(data.counts > 0, data.train_counts > 0), "every class held has to be in a training part"
    return data


def of_network(name: str) -> SplitModel:
    spec = FederationSpec(CLASSES, DIM, 0.01, (3, 32, 32))
    return build_model(name, spec.shape, seed=0)


def buffers(model: SplitModel) -> int:
    return sum(value.numel() for value in model.buffers() if value.is_floating_point())


def beyond_the_formula(name: str) -> int:
    """What one client sends and receives that Table 2 leaves out: biases of heads and running statistics."""
    if name in ("lg_fedavg", "fedgh"):
        return (2 if name == "lg_fedavg" else 1) * CLASSES
    return 2 * buffers(of_network(SMALLEST)) if name in ("fedavg", "fml") else 0


def changed(before: State, after: State) -> bool:
    return before.keys() != after.keys() or any(not torch.equal(before[name], after[name]) for name in after)


def build(name: str, networks: tuple[str, ...]) -> Algorithm:
    spec = ALGORITHMS[name]
    hyper = spec.hyper(cps_dim=CPS_DIM) if name.startswith("tinyproto") else spec.hyper()
    return spec.build(hyper, FederationSpec(CLASSES, DIM, 0.01, (3, 32, 32), networks=networks))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_learns_shares_and_sends_what_the_formula_says(name: str, federation: FederatedData) -> None:
    networks = (SMALLEST,) if name == "fedavg" else NETWORKS
    algorithm = build(name, networks)
    settings = SimulationSettings(LocalTraining(ROUNDS, EPOCHS, batch_size=64), DIM)
    simulation = InProcess(federation, networks, algorithm, settings, seed=0)
    trainer = Recording(simulation.loopback.clients.trainer)
    simulation.loopback.clients.trainer = trainer
    states, records = [simulation.server.state], []
    for played in simulation.rounds():
        states.append(simulation.server.state)
        records.append(played.record)

    large = [client for client in range(CLIENTS) if len(federation.shares[client].train) >= ENOUGH]
    assert len(large) >= 6
    for client in large:
        epochs = trainer.cross_entropies(client)
        assert len(epochs) == ROUNDS * EPOCHS
        assert epochs[-1] < epochs[0], f"client {client}: {epochs}"

    if name == "input_means":  # it exchanges once; tests/algorithms/test_input_means.py has its messages
        assert len(states[1]["means"]) > len(states[0]["means"])
        assert torch.equal(states[1]["means"], states[-1]["means"])
        return
    for before, after in pairwise(states[:-1]):
        assert changed(before, after) == (name not in ("local", "anchors"))
    assert not changed(states[-2], states[-1])  # the closing exchange only evaluates

    for state, record in zip(states[1:ROUNDS], records[1:ROUNDS], strict=True):
        up, down = (record.traffic["training"][way] for way in ("up", "down"))
        assert (up.payload, down.payload) == (4 * up.parameters, 4 * down.parameters)
        formula = algorithm.table2_parameters((federation.counts > 0).sum(1).tolist())
        if formula is None:  # FedKD sends factors where they are smaller, so only a bound is known beforehand
            shared = of_network(SMALLEST)
            whole = CLIENTS * (count_parameters(shared) + buffers(shared))
            assert 0 < up.parameters <= whole
            assert down.parameters == CLIENTS * sum(value.numel() for value in state.values()) <= whole
        else:
            assert up.parameters + down.parameters == formula + CLIENTS * beyond_the_formula(name)
