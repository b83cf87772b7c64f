"""An experiment: a config with its data, ready to simulate any cell of its grid of algorithms × seeds."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from tinyproto.algorithms.base import Algorithm, FederationSpec
from tinyproto.algorithms.defence import Defence, defended
from tinyproto.config.algorithms import AlgorithmEntry
from tinyproto.config.load import Config
from tinyproto.core.streams import one_thread
from tinyproto.core.task import batch_sizes
from tinyproto.data.images import FederatedData, Images
from tinyproto.data.partition import holdings
from tinyproto.data.sources import SOURCES, Progress, silent
from tinyproto.engine.client import LocalTraining
from tinyproto.engine.round import last_derived
from tinyproto.engine.training import Choice, choose
from tinyproto.errors import ConfigError
from tinyproto.models import build_model, entry_name, rehearse_training
from tinyproto.simulation.loop import PlayedRound, Simulation, SimulationSettings, make_loopback
from tinyproto.simulation.loopback import ClientHost, Loopback
from tinyproto.simulation.memory import client_budget
from tinyproto.simulation.participation import participant_count, read_trace
from tinyproto.storage.client_files import ClientFiles
from tinyproto.tracking.run_folder import cell_name
from tinyproto.tracking.summary import summarise

WORTH_WORKERS = 40
"""Rounds, over all cells, from which `workers: auto` starts worker processes: about 3 s each."""

WORTH_A_PROCESS = 100
"""Rounds from which `parallel_cells: auto` gives a cell a process of its own on a CPU: one costs about 4 s for each."""

MOST_ON_A_GPU = 8
"""Cells at once, at most, by `parallel_cells: auto`."""


@dataclass(frozen=True)
class Cell:
    """One algorithm with one seed."""

    index: int  # its place in the grid
    entry: AlgorithmEntry
    seed: int
    of: str = ""  # the experiment, where cells of several are played

    @property
    def title(self) -> str:
        """For people."""
        return f"{f'{self.of}: ' if self.of else ''}{self.entry.title}, seed {self.seed}"


class Experiment:
    """A config with its data and partition; everything that can be wrong is found before a run folder exists."""

    def __init__(self, config: Config, images: Images | None = None, progress: Progress = silent) -> None:
        self.config = config
        model = config.model
        self.device = resolve_device(model.train.device)
        self._has_objects = images is not None
        self.images = SOURCES[model.data.name].load(model.data.request(progress)) if images is None else images
        self.data = FederatedData(self.images, model.partition.asked().shares(self.images.labels.numpy()))
        asked = model.train.dropout
        self.dropout = read_trace(Path(asked).expanduser(), self.data.num_clients) if isinstance(asked, str) else asked
        self.federation = FederationSpec(
            num_classes=self.images.num_classes,
            proto_dim=model.prototypes.dim,
            learning_rate=model.train.learning_rate,
            input_shape=self.images.input_shape,
            head_dropout=model.train.head_dropout,
            networks=tuple(model.models),
        )
        shape = self.federation.shape
        with one_thread():
            for entry in model.models:
                rehearse_training(build_model(entry, shape, seed=0), entry_name(entry), shape)
        for algorithm in config.algorithms:
            participants = participant_count(self.data.num_clients, model.train.participation)
            check_defence(algorithm, algorithm.build(self.federation), self.defence, participants)
        if model.keep_models:
            self._check_folders_of_models()

    def holdings(self) -> dict[str, Any]:
        """federation.json: what `tinyproto data split` shows."""
        return holdings(self.images.labels.numpy(), self.data.shares, self.images.num_classes)

    @property
    def cells(self) -> list[Cell]:
        """The grid, seed after seed, so that the methods of one seed can be compared early."""
        grid = [(entry, seed) for seed in self.config.model.seeds for entry in self.config.algorithms]
        return [Cell(index, entry, seed) for index, (entry, seed) in enumerate(grid)]

    def identity(self, cell: Cell) -> dict[str, Any]:
        """What names a cell in every record."""
        return {"algorithm": cell.entry.spec.name, "label": cell.entry.label, "seed": cell.seed}

    def _check_folders_of_models(self) -> None:
        """No two cells keep their networks in one folder; some file systems take A and a for the same."""
        labels: dict[str, str] = {}
        for cell in self.cells:
            folder = cell_name(cell.entry.label, cell.seed)
            other = labels.setdefault(folder.casefold(), cell.entry.label)
            if other != cell.entry.label:
                raise ConfigError(
                    f"keep_models: networks of {other!r} and of {cell.entry.label!r} would both go to models/{folder}; "
                    "tell them apart with `label:`"
                )

    def facts_of_model(self, cell: Cell, client: int) -> dict[str, Any]:
        """Whose network it is, what it takes to build it again, and what it sees: pixel · scale + shift."""
        models = self.config.model.models
        return {
            **self.identity(cell),
            "client": client,
            "network": entry_name(models[client % len(models)]),
            **asdict(self.federation.shape),
            "scale": self.images.scale,
            "shift": self.images.shift,
        }

    @property
    def workers(self) -> int:
        """How many processes train clients; `auto` starts several only where they pay for their start."""
        asked = self.config.model.train.workers
        if self._has_objects:  # a worker rebuilds everything from the config alone
            return 1
        if self.choice.trainer != "eager":  # which wants all clients in one process
            return 1
        if self.cells_at_once > 1:  # they are what fills the machine
            return 1
        if asked != "auto":
            return min(asked, self.data.num_clients)
        if self.device != "cpu" or len(self.cells) * self.config.model.train.rounds < WORTH_WORKERS:
            return 1
        return min(_cores(), self.data.num_clients)

    @property
    def cells_at_once(self) -> int:
        """How many cells may run at once, each in a process of its own; memory may allow fewer."""
        asked, cells = self.config.model.train.parallel_cells, len(self.cells)
        if self._has_objects:  # a process rebuilds everything from the config alone
            return 1
        if asked != "auto":
            return min(asked, cells)
        most = most_at_once(self.device)
        if self.device != "cpu":
            return min(most, cells)
        return most if cells >= most and self.config.model.train.rounds >= WORTH_A_PROCESS else 1

    @cached_property
    def steps_per_round(self) -> int:
        """Training steps of all clients together."""
        train = self.config.model.train
        return train.local_epochs * sum(
            len(batch_sizes(len(share.train), train.batch_size, train.last_batch)) for share in self.data.shares
        )

    @property
    def choice(self) -> Choice:
        """The trainer of every cell, and why it is that."""
        train = self.config.model.train
        return choose(train.trainer, self.device, round(train.rounds * train.participation * self.steps_per_round))

    def execution(self) -> dict[str, str]:
        """How steps are executed, for environment.json."""
        precision = self.config.model.train.precision if self.device != "cpu" else "float32"
        return {"trainer": self.choice.trainer, "trainer_because": self.choice.reason, "precision": precision}

    @property
    def defence(self) -> Defence:
        """What the server believes; `auto` defends nothing, since all clients of a simulation are ours."""
        return self.config.model.robust.settings(otherwise="none")

    @property
    def settings(self) -> SimulationSettings:
        """What all cells have in common."""
        model = self.config.model
        return SimulationSettings(
            training=LocalTraining(
                rounds=model.train.rounds,
                local_epochs=model.train.local_epochs,
                batch_size=model.train.batch_size,
                shuffle=model.train.shuffle,
                last_batch=model.train.last_batch,
                prototype_samples=model.prototypes.samples,
            ),
            proto_dim=model.prototypes.dim,
            head_dropout=model.train.head_dropout,
            participation=model.train.participation,
            dropout=self.dropout,
            late=model.train.late,
            max_left_out=model.train.max_left_out,
            evaluate_every=model.evaluate.every,
            evaluate_clients=model.evaluate.clients,
            counted_samples=model.prototypes.counted_samples,
            trainer=self.choice.trainer,
            precision=model.train.precision,
            device=self.device,
            client_memory=self.client_memory,
            defence=self.defence,
        )

    def _settings_of(self, cell: Cell) -> SimulationSettings:
        return replace(self.settings, wire=cell.entry.wire)

    @property
    def client_memory(self) -> int:
        """Bytes that the clients of one of the processes may take."""
        return client_budget(self.config.model.train.client_memory, torch.device(self.device), self._processes)

    @property
    def _processes(self) -> int:
        """That hold clients at the same time."""
        return self.workers * self.cells_at_once

    def loopback(
        self, cell: Cell, only: Collection[int] | None = None, folder: Path | None = None, memory: int | None = None
    ) -> Loopback:
        """The clients of one cell in this process: all of them, or `only` some.

        Beyond so much memory, by default what the config says, they go to a folder; a temporary one if none is given.
        """
        settings = self._settings_of(cell)
        if memory is not None:
            settings = replace(settings, client_memory=memory)
        algorithm, models = cell.entry.build(self.federation), self.config.model.models
        files = ClientFiles(folder)
        return make_loopback(self.data, models, algorithm, settings, cell.seed, only=only, files=files)

    def host(self, cell: Cell, folder: Path) -> ClientHost:
        """All clients of one cell in this process; those that do not fit into memory go to the folder."""
        return self.loopback(cell, folder=folder)

    def simulation(self, cell: Cell, host: ClientHost) -> Simulation:
        """The simulation of one cell, ready to play."""
        return Simulation(self.data, cell.entry.build(self.federation), self._settings_of(cell), cell.seed, host)

    def summarise(self, cell: Cell, simulation: Simulation, played: list[PlayedRound]) -> dict[str, Any]:
        """The cell's entry of summary.json."""
        model = self.config.model
        identity = {
            **self.identity(cell),
            "dataset": self.images.name,
            "rounds": model.train.rounds,
            "num_clients": self.data.num_clients,
            "preset": model.preset,
        }
        classes_held = (self.data.counts > 0).sum(1).tolist()
        formula = simulation.algorithm.table2_parameters(classes_held)
        memory = simulation.peak_memory.read() + simulation.host.other_memory()
        derived = last_derived(simulation.server, [round_.record for round_ in played])
        return summarise(played, identity, formula, memory, derived)


def check_defence(entry: AlgorithmEntry, algorithm: Algorithm, defence: Defence, participants: int) -> None:
    """Refuse a defence that cannot look into what an algorithm exchanges, or that rounds are too small for."""
    try:
        defended(algorithm, defence)
        defence.check_clients(participants)
    except ValueError as error:
        raise ConfigError(f"algorithm {entry.label}: {error}") from error


def most_at_once(device: str) -> int:
    """Cells that `parallel_cells: auto` lets run at once, at most."""
    return MOST_ON_A_GPU if device != "cpu" else _cores()


def _cores() -> int:
    """That this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1


def resolve_device(name: str, key: str = "train.device") -> str:
    """`auto` is the GPU where there is one; `key` is where the user wrote the name."""
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device: torch.device | None = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise ConfigError(f"{key}: {name!r} is no device we can use; it is auto, cpu, cuda or cuda:N")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(f"{key}: {name!r} is not there; torch sees {torch.cuda.device_count()} CUDA devices")
    return name
