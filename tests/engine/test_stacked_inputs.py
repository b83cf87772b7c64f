"""Stacks of clients whose inputs are not images."""

from __future__ import annotations

import pytest
import torch

from tinyproto.config import parse_config
from tinyproto.core.task import Task, Trainer, batch_plan
from tinyproto.engine.eager import EagerTrainer
from tinyproto.engine.graphed import GraphedTrainer
from tinyproto.experiment import Experiment
from tinyproto.stacked.trainer import StackedTrainer

CLIENTS = 3


def trained(name: str, network: str, trainer: Trainer) -> list[torch.Tensor]:
    """The features of all clients after one epoch."""
    config = parse_config({
        "data": {"name": name}, "models": [network], "algorithms": ["local"], "prototypes": {"dim": 10, "cps_dim": 2},
        "partition": {"num_clients": CLIENTS, "alpha": 10.0},
    })  # fmt: skip
    experiment = Experiment(config)
    host = experiment.loopback(experiment.cells[0])
    side = experiment.setup(experiment.cells[0]).algorithm.client
    clients = [host.store[client] for client in range(CLIENTS)]
    tasks: list[Task] = []
    for client in clients:
        plan = batch_plan(len(client.train), 8, 1, last="join", shuffle=torch.Generator().manual_seed(client.id))
        tasks.append(side.task(client, plan, seed=0))
    trainer.fit(tasks)
    return trainer.features([client.model for client in clients], [client.test for client in clients])


@pytest.mark.parametrize(
    ("name", "network", "stacks"),
    [("wine", "small_mlp_a", True), ("wine", "small_mlp_b", True), ("signals", "small_cnn1d_b", False)],
)
def test_columns_normalised_each_by_its_own_numbers_train_alike_in_a_stack(
    name: str, network: str, stacks: bool
) -> None:
    stacked = StackedTrainer(GraphedTrainer())
    for mine, reference in zip(trained(name, network, stacked), trained(name, network, EagerTrainer()), strict=True):
        torch.testing.assert_close(mine, reference, atol=1e-4, rtol=1e-4)
    assert (not stacked.notes) == stacks
