"""All algorithms on a small federation with every awkward client in it: partly there, resumed, in workers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from support import (
    FEDERATION,
    PROTO_DIM,
    InProcess,
    SimulationSettings,
    make_images,
    make_patterns,
    same_tensors,
    tiny_net,
    wide_net,
)
from tinyproto import grid
from tinyproto.algorithms import ALGORITHMS, Algorithm
from tinyproto.algorithms.auxiliary import AuxiliaryClient
from tinyproto.config import parse_config
from tinyproto.core.streams import Streams
from tinyproto.data.dataset import FederatedData
from tinyproto.data.partition import Share
from tinyproto.engine.client import LocalTraining
from tinyproto.engine.measure import WAYS, Cost
from tinyproto.engine.round import RoundRecord
from tinyproto.experiment import Experiment
from tinyproto.models import ModelEntry
from tinyproto.storage.checkpoint import Position, load_newest, restore_server, save
from tinyproto.wire.values import VALUE_TYPES, ValueName, WireSettings

ROUNDS = 3
SETTINGS = SimulationSettings(LocalTraining(ROUNDS, local_epochs=2, batch_size=8), PROTO_DIM, participation=0.5)

SILENT = ("local", "anchors")  # they send no values
every_algorithm = pytest.mark.parametrize("name", ALGORITHMS)


def networks_for(name: str) -> tuple[ModelEntry, ...]:
    return (tiny_net,) if name == "fedavg" else (tiny_net, wide_net)


def hyper_for(name: str) -> dict[str, Any]:
    if name == "protonorm":
        return {"upscale": 5.0}  # the published 80 is for d=512: in 12 dimensions features die
    sparse = {"cps_dim": 3} if name.startswith("tinyproto") else {}
    return sparse | ({"server_epochs": 3} if name in ("fedtgp", "tinyproto_ft", "fedorgp") else {})


def build(name: str) -> Algorithm:
    spec = ALGORITHMS[name]
    return spec.build(spec.hyper(**hyper_for(name)), replace(FEDERATION, networks=networks_for(name)))


def simulation(
    data: FederatedData, name: str, settings: SimulationSettings = SETTINGS, folder: Path | None = None
) -> InProcess:
    return InProcess(data, networks_for(name), build(name), settings, seed=0, folder=folder)


def records(played: InProcess, first: int = 1) -> list[RoundRecord]:
    return [round_.record for round_ in played.rounds(first)]


@every_algorithm
def test_half_of_the_clients_take_part_and_miss_classes_and_all_goes_on(quarters: FederatedData, name: str) -> None:
    held = (quarters.train_counts > 0).sum(1).tolist()
    assert held == [4, 4, 1, 1, 4]
    played = simulation(quarters, name)
    *rounds, closing = records(played)
    assert [len(record.participants) for record in rounds] == [2, 2, 2]
    assert set(closing.clients) == set(range(5))
    for record in rounds:
        assert record.loss["cross_entropy"] > 0
        assert not record.refused
        sent = record.traffic["training"]["up"].parameters
        if name != "input_means":  # whose clients send in one round only
            assert (sent > 0) == (name not in SILENT)
    for tensor in played.snapshot().values():
        assert bool(tensor.isfinite().all())


@every_algorithm
def test_a_client_without_training_samples_disturbs_nobody(name: str) -> None:
    everything = np.arange(60)
    shares = [
        Share(train=everything[:20], test=everything[20:30]),
        Share(train=everything[:0], test=everything[30:40]),
        Share(train=everything[40:60], test=everything[:0]),
    ]
    played = simulation(FederatedData(make_images(60), shares), name, replace(SETTINGS, participation=1.0))
    found = records(played)
    assert found[-1].clients[1].correct["head"] is not None
    assert all(record.participants == (0, 1, 2) for record in found[:-1])
    if name in ("fedavg", "lg_fedavg"):  # it has no weight where samples are counted
        assert played.server.infos[1].train_samples == 0
    for tensor in played.server.state.values():
        assert bool(tensor.isfinite().all())


@every_algorithm
def test_what_goes_on_from_a_checkpoint_ends_in_the_same_bits(
    quarters: FederatedData, name: str, tmp_path: Path
) -> None:
    whole = simulation(quarters, name)
    undisturbed = records(whole)
    clients = tmp_path / "clients"
    stopped = simulation(quarters, name, folder=clients)
    rounds = stopped.rounds()
    before = [next(rounds).record, next(rounds).record]
    save(tmp_path / "checkpoint", Position(0, 3, 0, 0, {}), stopped.server, stopped.host.save())
    checkpoint = load_newest(tmp_path / "checkpoint", clients)
    assert checkpoint is not None
    resumed = simulation(quarters, name, folder=clients)
    restore_server(resumed.server, checkpoint)
    resumed.host.restore(checkpoint.clients)
    assert same_tensors(resumed.snapshot(), stopped.snapshot())
    assert before + records(resumed, first=3) == undisturbed
    assert same_tensors(resumed.snapshot(), whole.snapshot())


@every_algorithm
def test_equal_seeds_give_equal_bits_and_other_seeds_others(quarters: FederatedData, name: str) -> None:
    first, again = simulation(quarters, name), simulation(quarters, name)
    other = InProcess(quarters, networks_for(name), build(name), SETTINGS, seed=1)
    assert records(first) == records(again) != records(other)
    assert same_tensors(first.snapshot(), again.snapshot())


@pytest.mark.parametrize("values", [name for name in VALUE_TYPES if name != "float32"])
@every_algorithm
def test_every_algorithm_goes_on_with_values_of_every_type(
    quarters: FederatedData, name: str, values: ValueName
) -> None:
    kind = VALUE_TYPES[values]
    exact, rounded = simulation(quarters, name), simulation(quarters, name, replace(
        SETTINGS, wire=WireSettings(values, values)
    ))  # fmt: skip
    for before, after in zip(records(exact), records(rounded), strict=True):
        assert not after.refused
        for way in WAYS:
            cost, as_floats = (record.traffic.get("training", {}).get(way, Cost()) for record in (after, before))
            if name != "fedkd":  # whose ranks depend on the values
                assert cost.parameters == as_floats.parameters
            assert cost.wire - cost.payload <= as_floats.wire - as_floats.payload if name != "fedkd" else True
            assert cost.payload * 32 >= cost.parameters * kind.bits * 4
            assert cost.payload < as_floats.payload or not cost.parameters
    for tensor in rounded.snapshot().values():
        assert bool(tensor.isfinite().all())
    for name_of, tensor in rounded.server.state.items():
        assert "running_var" not in name_of or bool((tensor >= 0).all())


STOCHASTIC = replace(SETTINGS, wire=WireSettings("int4", "int8", "stochastic"))


@every_algorithm
def test_stochastic_rounding_repeats_and_goes_on_from_a_checkpoint_in_the_same_bits(
    quarters: FederatedData, name: str, tmp_path: Path
) -> None:
    whole = simulation(quarters, name, STOCHASTIC)
    undisturbed = records(whole)
    clients = tmp_path / "clients"
    stopped = simulation(quarters, name, STOCHASTIC, folder=clients)
    before = next(stopped.rounds()).record
    save(tmp_path / "checkpoint", Position(0, 2, 0, 0, {}), stopped.server, stopped.host.save())
    checkpoint = load_newest(tmp_path / "checkpoint", clients)
    assert checkpoint is not None
    resumed = simulation(quarters, name, STOCHASTIC, folder=clients)
    restore_server(resumed.server, checkpoint)
    resumed.host.restore(checkpoint.clients)
    assert [before, *records(resumed, first=2)] == undisturbed
    assert same_tensors(resumed.snapshot(), whole.snapshot())
    if name not in SILENT:
        nearest = simulation(quarters, name, replace(SETTINGS, wire=WireSettings("int4", "int8")))
        records(nearest)
        assert not same_tensors(nearest.snapshot(), whole.snapshot())


NETS = """\
from torch import nn


def flat(proto_dim):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, proto_dim))
"""


@pytest.mark.slow
@pytest.mark.parametrize("together", ["those that mix networks", "fedavg"])
def test_two_workers_leave_the_same_bytes_as_one_process(
    together: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "flat_net.py").write_text(NETS)
    names = ["fedavg"] if together == "fedavg" else [name for name in ALGORITHMS if name != "fedavg"]
    config = {
        "name": "trial",
        "partition": {"num_clients": 6, "alpha": 0.3, "min_samples": 10},
        "models": ["flat_net:flat"] if together == "fedavg" else ["small_cnn_a", "flat_net:flat"],
        "prototypes": {"dim": 20, "cps_dim": 3},
        "algorithms": [{"name": name, **hyper_for(name)} for name in names],
        "wire": {"up": "int8", "down": "float16", "rounding": "stochastic"},
    }
    folders = []
    for workers in (1, 2):
        train = {"rounds": ROUNDS, "batch_size": 32, "participation": 0.5, "workers": workers}
        experiment = Experiment(parse_config({**config, "train": train}))
        assert experiment.workers == workers
        folders.append(grid.run(experiment, tmp_path / f"runs{workers}"))
    for file in ("rounds.jsonl", "prototypes.safetensors"):
        alone, shared = ((folder / file).read_bytes() for folder in folders)
        assert alone == shared
    assert (folders[0] / "rounds.jsonl").read_text().count("\n") == len(names) * (ROUNDS + 1)


@pytest.mark.parametrize("preset", ["reference", "sound"])
def test_a_preset_shares_its_network_and_its_form_on_cifar_shaped_images(preset: str) -> None:
    images = replace(make_patterns(200, 10, (3, 32, 32)), name="cifar10")
    models = ["mobilenet_v2", "shufflenet_v2_x0_5", "resnet8", "efficientnet_b0"]
    config = parse_config(
        {
            "preset": preset,
            "models": models,
            "partition": {"num_clients": 4},
            "prototypes": {"dim": 50, "cps_dim": 5},
            "algorithms": [name for name in ALGORITHMS if name != "fedavg"],
        },
        images=images,
    )
    experiment = Experiment(config, images)
    built = {cell.entry.spec.name: experiment.setup(cell).algorithm for cell in experiment.cells}
    for name in ("fml", "fedkd"):  # ShuffleNetV2 ×0.5 is the smallest of these four
        client = built[name].client
        assert isinstance(client, AuxiliaryClient)
        assert client.shared.entry == ("shufflenet_v2_x0_5" if preset == "sound" else "resnet8")
        travel = [tensor for tensor in built[name].tensor_shapes if "running" in tensor]
        assert bool(travel) == (preset == "sound")
    factors = {name: shape for name, shape in built["fedkd"].tensor_shapes.items() if name.endswith(".left")}
    kernels = [shape for name, shape in factors.items() if len(shape) == 4]
    assert bool(kernels) == (preset != "sound")
    assert built["lg_fedavg"].tensor_shapes == {"weight": (10, 50), "bias": (10,)}  # with and without dropout
    first, again, other = (built["lg_fedavg"].server.init(Streams(seed)) for seed in (0, 0, 1))
    assert same_tensors(first, again)  # drawn by the server from the seed
    assert not torch.equal(first["weight"], other["weight"])
    assert built["feddistill"].row_width == 10
