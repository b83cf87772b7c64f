"""Clients over one pool of samples, trained by any trainer, and what of two trainings has to be equal."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import nn

from tinyproto.algorithms import ALGORITHMS
from tinyproto.algorithms.base import Client, ClientSide, FederationSpec
from tinyproto.core.prototypes import Prototypes
from tinyproto.core.streams import Streams
from tinyproto.core.task import FitResult, Task, TensorData, Trainer, batch_plan
from tinyproto.engine.graphed import GraphedTrainer
from tinyproto.models import ModelShape, SplitModel, build_model
from tinyproto.models.efficientnet import StochasticDepth
from tinyproto.stacked.trainer import StackedTrainer

CLASSES, DIM, SIZE = 10, 20, 32
POOL = torch.randint(0, 256, (240, 3, SIZE, SIZE), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
LABELS = torch.randint(0, CLASSES, (240,), generator=torch.Generator().manual_seed(1))
NETWORKS = ["small_cnn_a", "small_cnn_d", "resnet8", "mobilenet_v2", "shufflenet_v2", "efficientnet_b0"]


def stacked_trainer() -> StackedTrainer:
    return StackedTrainer(GraphedTrainer())


def without_randomness(model: nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        if isinstance(module, StochasticDepth):
            module.dropped = 0.0


def built(name: str, seed: int) -> SplitModel:
    model = build_model(name, ModelShape((3, SIZE, SIZE), DIM, CLASSES, 0.0), seed).double()
    without_randomness(model)
    return model


def clients_of(side: ClientSide, network: str, sizes: Sequence[int]) -> list[Client]:
    """Return clients of unequal size over one pool, one with fewer samples than a batch."""
    clients = []
    for number, size in enumerate(sizes):
        rows = torch.arange(60 * number, 60 * number + size)
        data = TensorData(POOL, LABELS[rows], 2 / 255, -1.0, rows)
        absent = Prototypes.absent(CLASSES, DIM)
        counts = torch.bincount(data.labels, minlength=CLASSES)
        client = Client(number, network, built(network, number), data, data, counts, absent)
        side.init(client, Streams(0))
        client.modules.double()
        without_randomness(client.modules)
        if "values" in client.state:
            shape = client.state["values"].shape
            client.state["values"] = torch.rand(shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
            client.state["present"] = torch.arange(CLASSES) < 8
        clients.append(client)
    return clients


def trained(
    side: ClientSide,
    trainer: Trainer,
    network: str,
    sizes: Sequence[int],
    changed: Callable[[Task], Task] = lambda t: t,
) -> tuple[list[Client], list[FitResult]]:
    clients = clients_of(side, network, sizes)
    results: list[FitResult] = []
    for round_number in range(2):
        tasks = []
        for client in clients:
            shuffle = torch.Generator().manual_seed(100 * round_number + client.id)
            plan = batch_plan(len(client.train), 8, 2, last="join", shuffle=shuffle)
            tasks.append(changed(side.task(client, plan, seed=0)))
        results = trainer.fit(tasks)
    return clients, results


OPTIONS: Mapping[str, dict[str, str]] = {
    "fedkd, updates": {"factorised": "updates"},
    "feddistill, others": {"teachers": "others"},
    "fedproto, running": {"prototype_source": "running"},
    "fedtgp, stale": {"prototype_source": "stale"},
}
"""Forms of a method that are not its default."""


def side_of(algorithm: str, network: str) -> ClientSide:
    spec = ALGORITHMS[algorithm.partition(",")[0]]
    return spec.build(
        spec.hyper(**OPTIONS.get(algorithm, {})), FederationSpec(CLASSES, DIM, 0.01, (3, SIZE, SIZE), 0.0, (network,))
    ).client


def assert_alike(mine: list[Client], other: list[Client], tolerance: float = 1e-9) -> None:
    for one, two in zip(mine, other, strict=True):
        for left, right in ((one.model, two.model), (one.modules, two.modules)):
            expected = left.state_dict()
            for name, value in right.state_dict().items():
                assert torch.allclose(value.double(), expected[name].double(), rtol=1e-6, atol=tolerance), name
