"""A federation ends in the bits of a simulation: the same server state, the same records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from support import same_tensors
from support_flower import Federation, make_federation
from tinyproto.algorithms import ALGORITHMS
from tinyproto.experiment import Experiment
from tinyproto.tracking.run_folder import record_values

pytestmark = pytest.mark.flower

ROUNDS = 3


def values_for(name: str, **more: Any) -> dict[str, Any]:
    hyper: dict[str, Any] = {"cps_dim": 3} if name.startswith("tinyproto") else {}
    if name in ("fedtgp", "tinyproto_ft"):
        hyper["server_epochs"] = 3
    return {
        "name": "trial",
        "partition": {"num_clients": 4, "alpha": 0.3, "min_samples": 10},
        "models": ["small_cnn_a"] if name == "fedavg" else ["small_cnn_a", "small_cnn_b", "small_cnn_c"],
        "prototypes": {"dim": 20, "cps_dim": 3},
        "train": {"rounds": ROUNDS, "batch_size": 32, "device": "cpu"},
        "algorithms": [{"name": name, **hyper}],
        **more,
    }


def assert_equal_to_the_simulation(federation: Federation) -> None:
    experiment = Experiment(federation.config)
    (cell,) = experiment.cells
    simulation = experiment.simulation(cell, experiment.loopback(cell))
    played = [record_values(round_.record) for round_ in simulation.rounds()]
    coordinator = federation.play()
    assert same_tensors(simulation.server.state, coordinator.server.state)
    identity = experiment.identity(cell)
    assert federation.records() == [{**identity, **record} for record in played]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_ends_in_the_bits_of_the_simulation(name: str, tmp_path: Path) -> None:
    federation = make_federation(tmp_path, values_for(name))
    assert_equal_to_the_simulation(federation)
    if name != "local":
        assert federation.records()[0]["traffic"]["training"]["up"]["payload"] > 0
