"""Every algorithm at the size of the small federation, and a simulation of it."""

from __future__ import annotations

from support import FEDERATION, PROTO_DIM, InProcess, SimulationSettings, tiny_net
from tinyproto.algorithms import ALGORITHMS, Algorithm
from tinyproto.data.dataset import FederatedData
from tinyproto.engine.client import LocalTraining, PrototypeSamples


def build(name: str, **hyper: object) -> Algorithm:
    spec = ALGORITHMS[name]
    if name.startswith("tinyproto"):
        hyper = {"cps_dim": 3, **hyper}
    if name in ("fedtgp", "tinyproto_ft", "fedorgp"):
        hyper = {"server_epochs": 3, **hyper}
    return spec.build(spec.hyper(**hyper), FEDERATION)


def simulation(
    data: FederatedData, algorithm: Algorithm, rounds: int = 2, prototype_samples: PrototypeSamples = "all"
) -> InProcess:
    training = LocalTraining(rounds=rounds, batch_size=8, prototype_samples=prototype_samples)
    return InProcess(data, [tiny_net], algorithm, SimulationSettings(training, PROTO_DIM), seed=0)
