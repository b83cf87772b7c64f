"""The folders and configs of small federations, for which Flower is not needed."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from support import make_patterns, same_tensors
from tinyproto.config import Config, parse_config
from tinyproto.experiment import Experiment
from tinyproto.federation.channel import Incoming, Outgoing, Pace
from tinyproto.federation.coordinator import Coordinator
from tinyproto.federation.member import respond
from tinyproto.tracking.run_folder import record_values

TOKEN = "0123456789abcdef" * 2


def write_join(folder: Path, model: str, data: Mapping[str, Any]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "join.json").write_text(json.dumps({"data": data, "model": model, "device": "cpu"}))
    return folder


CLASSES, SHAPE = 4, (1, 6, 6)


def small_values(name: str = "tinyproto_fp", clients: int = 3, rounds: int = 2, **federation: Any) -> dict[str, Any]:
    """The config of a federation whose clients have files of their own."""
    return {
        "name": "trial",
        "data": {"name": "npz"},
        "partition": {"num_clients": clients},
        "models": ["small_cnn_a", "small_cnn_b"],
        "prototypes": {"dim": 12, "cps_dim": 3},
        "train": {"rounds": rounds, "batch_size": 8, "device": "cpu"},
        "algorithms": [name],
        "federation": {"num_classes": CLASSES, "input_shape": list(SHAPE), "deadline": 60.0, **federation},
    }


def write_arrays(file: Path, client: int, classes: int = CLASSES, shape: tuple[int, int, int] = SHAPE) -> Path:
    """A client's own samples: 16 to train on, 8 to test on."""
    images = make_patterns(24, classes, shape, seed=client)
    pixels, labels = images.inputs.numpy(), images.labels.numpy()
    file.parent.mkdir(parents=True, exist_ok=True)
    np.savez(file, x_train=pixels[:16], y_train=labels[:16], x_test=pixels[16:], y_test=labels[16:])
    return file


class InMemory:
    """Hands each message to a client's folder at once, and keeps the reply until it is asked for."""

    def __init__(self, folders: Mapping[int, Path]) -> None:
        self.folders = folders
        self.waiting: dict[str, list[Incoming]] = {}

    def nodes(self) -> dict[int, bytes]:
        return dict.fromkeys(self.folders, b"")

    def send(self, messages: Sequence[Outgoing], lifetime: float) -> list[str | None]:
        identities: list[str | None] = []
        for node, values in messages:
            identities.append(f"message {len(self.waiting)}")
            self.waiting[f"message {len(self.waiting)}"] = [Incoming(respond(self.folders[node], node, values))]
        return identities

    def replies(self, identities: Collection[str]) -> list[tuple[str, Incoming]]:
        found = [(identity, reply) for identity in identities for reply in self.waiting[identity]]
        self.waiting |= {identity: [] for identity in identities}
        return found


def play_in_memory(folder: Path, values: Mapping[str, Any]) -> tuple[Path, list[Path]]:
    """Play a federation of three clients with arrays of their own; return its run folder and the clients'."""
    run_folder, folders = folder / "run", {}
    run_folder.mkdir()
    config = parse_config(values).resolved()
    (run_folder / "serve.json").write_text(json.dumps({"config": config, "federation": TOKEN}))
    for client, model in enumerate(("small_cnn_a", "small_cnn_b", "small_cnn_a")):
        place = folder / f"client-{client}"
        folders[client] = write_join(place, model, {"path": str(write_arrays(place / "data.npz", client))})
    Coordinator(run_folder, InMemory(folders), Pace(poll=0.01)).run()
    return run_folder, list(folders.values())


EQUAL_ROUNDS = 3


def values_for(name: str, **more: Any) -> dict[str, Any]:
    hyper: dict[str, Any] = {"cps_dim": 3} if name.startswith("tinyproto") else {}
    if name in ("fedtgp", "tinyproto_ft"):
        hyper["server_epochs"] = 3
    return {
        "name": "trial",
        "partition": {"num_clients": 4, "alpha": 0.3, "min_samples": 10},
        "models": ["small_cnn_a"] if name == "fedavg" else ["small_cnn_a", "small_cnn_b", "small_cnn_c"],
        "prototypes": {"dim": 20, "cps_dim": 3},
        "train": {"rounds": EQUAL_ROUNDS, "batch_size": 32, "device": "cpu"},
        "algorithms": [{"name": name, **hyper}],
        "robust": {
            "defence": "none" if name in ("fedkd", "input_means") else "guard"
        },  # `auto` is guard here and none in a simulation
        **more,
    }


OWN_FORMS: Mapping[str, dict[str, str]] = {"fedkd": {"factorised": "updates"}, "feddistill": {"teachers": "others"}}
"""The forms of the baselines' own papers, in which a server sends each client something else."""


def values_of_own_form(name: str, participation: float) -> dict[str, Any]:
    values = values_for(name, algorithms=[{"name": name, **OWN_FORMS[name]}])
    values["train"]["participation"] = participation
    return values


class InProcess(Protocol):
    """A federation whose coordinator and clients share this process."""

    config: Config

    def play(self) -> Coordinator: ...

    def records(self) -> list[dict[str, Any]]: ...


def assert_in_process_equality(federation: InProcess) -> None:
    """Play a federation and its simulation: the same server state, the same records."""
    experiment = Experiment(federation.config)
    (cell,) = experiment.cells
    simulation = experiment.simulation(cell, experiment.loopback(cell))
    played = [record_values(round_.record) for round_ in simulation.rounds()]
    coordinator = federation.play()
    assert same_tensors(simulation.server.state, coordinator.server.state)
    assert federation.records() == [{**cell.identity, **record} for record in played]
