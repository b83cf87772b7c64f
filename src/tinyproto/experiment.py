"""An experiment: a config with its data, ready to simulate any cell of its grid of algorithms × seeds."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterable
from dataclasses import asdict
from functools import cached_property, reduce
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tinyproto.builder import Cell, Setup, build_defence, build_setup, resolve_device, summarise_cell
from tinyproto.config.load import Config
from tinyproto.core.streams import one_thread
from tinyproto.core.task import Trainer, batch_sizes
from tinyproto.data.dataset import Dataset, FederatedData
from tinyproto.data.normalise import with_statistics
from tinyproto.data.partition import holdings, train_rows
from tinyproto.data.sources import SOURCES, Progress, silent
from tinyproto.engine.estimate import Kind, Needs
from tinyproto.engine.participation import participant_count, read_trace
from tinyproto.engine.training import Choice, choose, fitted, make_trainer
from tinyproto.errors import ConfigError
from tinyproto.memory import PeakMemory, client_budget, gpu_room, scratch_memory
from tinyproto.models import ModelShape, build_model, check_apart, entry_name, rehearse_training
from tinyproto.models.count import StepSize, count_parameters, step_size
from tinyproto.models.split import SplitModel
from tinyproto.simulation.client_store import WHILE_TRAINING, ClientBuilder
from tinyproto.simulation.loop import ClientHost, Loopback, Simulation, make_loopback, make_stopwatch
from tinyproto.stacked.capture import why_no_kernels
from tinyproto.storage.client_files import ClientFiles
from tinyproto.tracking.run_folder import cell_name
from tinyproto.tracking.summary import RoundResult
from tinyproto.tracking.trackers import check_installed

WORTH_WORKERS = 40
"""Rounds, over all cells, from which `workers: auto` starts worker processes, which take about 3 s each to start."""

WORTH_A_PROCESS = 100
"""Rounds from which `parallel_cells: auto` runs cells in processes on a CPU, which take about 4 s each to start."""

MOST_ON_A_GPU = 8
"""The most cells that `parallel_cells: auto` runs at once on a GPU."""


class Experiment:
    """A config with its data and partition; every error in them is found before a run folder exists."""

    def __init__(self, config: Config, images: Dataset | None = None, progress: Progress = silent) -> None:
        self.config = config
        model = config.model
        if not model.models:
            raise ConfigError("the key 'models' is missing: a simulation needs networks, such as models: [small_cnn_a]")
        self.device = resolve_device(model.train.device)
        self._has_objects = images is not None
        raw = SOURCES[model.data.name].load(model.data.request(progress)) if images is None else images
        shares = model.partition.asked().shares(raw.labels.numpy())
        self.images = with_statistics(raw, train_rows(shares))
        self.data = FederatedData(self.images, shares, model.evaluate.scope)
        asked = model.train.dropout
        self.dropout = (
            read_trace(Path(asked).expanduser().absolute(), self.data.num_clients) if isinstance(asked, str) else asked
        )
        self.shape = ModelShape(
            self.images.input_shape, model.prototypes.dim, self.images.num_classes, model.train.head_dropout,
            self.images.vocabulary, model.train.head_dropout_in_place,
        )  # fmt: skip
        self._parameters: list[int] = []  # of each network
        with one_thread():
            for entry in model.models:
                network = build_model(entry, self.shape, seed=0)
                rehearse_training(network, entry_name(entry), self.shape)
                if not network.registered:
                    check_apart(network, build_model(entry, self.shape, seed=0, check=False), entry_name(entry))
                self._parameters.append(count_parameters(network))
        self.shares_device = self.cells_at_once > 1  # a process that runs a cell for others is told
        participants = participant_count(self.data.num_clients, model.train.participation)
        for cell in self.cells[: len(config.algorithms)]:
            # `auto` defends nothing, since all clients of a simulation are ours
            self.defence = build_defence(cell, self.setup(cell).algorithm, model.robust, "none", participants)
        check_installed(model.tracking)
        if model.keep_models or model.tracking:
            self._check_folders("models" if model.keep_models else "tracking")

    @property
    def cells(self) -> list[Cell]:
        """The grid, seed after seed, so that the methods of one seed can be compared early."""
        grid = [(entry, seed) for seed in self.config.model.seeds for entry in self.config.algorithms]
        return [Cell(index, entry, seed) for index, (entry, seed) in enumerate(grid)]

    def setup(self, cell: Cell) -> Setup:
        """Build what the server and the clients of a cell share."""
        images = self.images
        return build_setup(self.config.model, cell, images.num_classes, images.input_shape, images.vocabulary)

    def loopback(
        self, cell: Cell, folder: Path | None = None, only: Collection[int] | None = None, memory: int | None = None
    ) -> Loopback:
        """Build the clients of one cell in this process: all of them, or `only` some.

        Clients beyond the memory, by default that of the config, go to the folder, or to a temporary one.
        """
        return make_loopback(
            self.setup(cell), self.data, self._trainer(), torch.device(self.device),
            self.config.model.prototypes.counted_samples, only, ClientFiles(folder),
            self.client_memory if memory is None else memory,
        )  # fmt: skip

    def simulation(self, cell: Cell, host: ClientHost) -> Simulation:
        """Build the simulation of one cell, ready to run."""
        model, device = self.config.model, torch.device(self.device)
        server = self.setup(cell).server(self._trainer(), make_stopwatch(time.perf_counter, device), self.defence)
        return Simulation(
            server, host, self.data.num_clients, model.train, model.evaluate, self.dropout, PeakMemory(device)
        )

    def summarise(self, cell: Cell, simulation: Simulation, rounds: Iterable[RoundResult]) -> dict[str, Any]:
        """Return the cell's entry of summary.json."""
        return summarise_cell(
            cell, self.config.model, simulation.server, rounds, dataset=self.images.name,
            class_names=self.images.class_names, num_clients=self.data.num_clients,
            classes_held=(self.data.counts > 0).sum(1).tolist(), peak_memory=simulation.peak_memory,
        )  # fmt: skip

    def _trainer(self) -> Trainer:
        choice, precision = self.choice, self.config.model.train.precision
        return make_trainer(
            choice.trainer, torch.device(self.device), precision, width=choice.width,
            feature_batch=choice.feature_batch, shared=self.shares_device,
        )  # fmt: skip

    @cached_property
    def choice(self) -> Choice:
        """The trainer of every cell, its limits where a GPU's memory is short, and the reason."""
        train, device = self.config.model.train, torch.device(self.device)
        steps = round(train.rounds * train.participation * self.steps_per_round)
        wanted = choose(train.trainer, self.device, steps, why_no_kernels(device))
        room = gpu_room(device, shared=self.shares_device)
        return wanted if room is None else fitted(wanted, self.needs(), room)

    def needs(self) -> Needs:
        """Return what a cell takes of a GPU's memory, by estimate from the shapes of samples and networks."""
        model, data = self.config.model, self.data
        count = len(model.models)
        clients = [len(range(kind, data.num_clients, count)) for kind in range(min(count, data.num_clients))]
        participants = participant_count(data.num_clients, model.train.participation)
        budget = client_budget(model.train.client_memory, torch.device(self.device), self.cells_at_once)
        pair = self.shape.pair()
        with one_thread():
            added = max(self._added(cell, pair) for cell in self.cells[: len(self.config.algorithms)])
            networks = [build_model(entry, self.shape, seed=0) for entry in model.models[: len(clients)]]
            sizes = [step_size(network, pair).beside(added) for network in networks]
        kinds = []
        for number, size in zip(clients, sizes, strict=True):
            together = max(1, min(number, budget // ((1 + WHILE_TRAINING) * size.weights)))
            kinds.append(Kind(min(together, participants), together, size))
        samples = self.images.inputs.nbytes + self.images.labels.nbytes
        held = (1 + WHILE_TRAINING) * sum(number * size.weights for number, size in zip(clients, sizes, strict=True))
        scratch = scratch_memory(torch.device(self.device))
        return Needs(samples + min(held, budget), model.train.batch_size, kinds, scratch)

    def _added(self, cell: Cell, pair: Tensor) -> StepSize:
        """Return the size of the networks that an algorithm gives each client besides its own."""
        counted = self.config.model.prototypes.counted_samples
        modules = ClientBuilder(self.setup(cell), self.data, counted, torch.device("cpu")).build(0).modules
        networks = [step_size(module, pair) for module in modules.values() if isinstance(module, SplitModel)]
        return reduce(StepSize.beside, networks, StepSize(0, 0, 0))

    @cached_property
    def steps_per_round(self) -> int:
        """Training steps of all clients together."""
        train = self.config.model.train
        return train.local_epochs * sum(
            len(batch_sizes(len(share.train), train.batch_size, train.last_batch)) for share in self.data.shares
        )

    def execution(self) -> dict[str, str]:
        """Return how steps are executed, for environment.json."""
        precision = self.config.model.train.precision if self.device != "cpu" else "float32"
        return {"trainer": self.choice.trainer, "trainer_because": self.choice.reason, "precision": precision}

    @property
    def work(self) -> list[int]:
        """Return the work of each client, by which workers share them: samples times parameters of its network.

        On a CPU the paper's networks take 16 to 20 ms a million parameters and step.
        """
        samples = self.data.train_counts.sum(1).tolist()
        return [count * self._parameters[client % len(self._parameters)] for client, count in enumerate(samples)]

    @property
    def workers(self) -> int:
        """The number of processes that train clients; `auto` starts several only if that saves time."""
        asked = self.config.model.train.workers
        if self._has_objects:  # a worker rebuilds everything from the config alone
            return 1
        if self.choice.trainer != "eager":  # which needs all clients in one process
            return 1
        if self.cells_at_once > 1:  # these occupy the machine already
            return 1
        if asked != "auto":
            return min(asked, self.data.num_clients)
        if self.device != "cpu" or len(self.cells) * self.config.model.train.rounds < WORTH_WORKERS:
            return 1
        return min(_cores(), self.data.num_clients)

    @property
    def cells_at_once(self) -> int:
        """The most cells that run at once, each in a process of its own; memory may allow fewer."""
        asked, cells = self.config.model.train.parallel_cells, len(self.cells)
        if self._has_objects:  # a process rebuilds everything from the config alone
            return 1
        if asked != "auto":
            return min(asked, cells)
        most = most_at_once(self.device)
        if self.device != "cpu":
            return min(most, cells)
        return most if cells >= most and self.config.model.train.rounds >= WORTH_A_PROCESS else 1

    @property
    def client_memory(self) -> int:
        """Bytes that the clients in one process may take."""
        processes = self.workers * self.cells_at_once
        return client_budget(self.config.model.train.client_memory, torch.device(self.device), processes)

    def holdings(self) -> dict[str, Any]:
        """Return the content of federation.json, which `tinyproto data split` shows."""
        return holdings(self.images.labels.numpy(), self.data.shares, self.images.num_classes)

    def facts_of_model(self, cell: Cell, client: int) -> dict[str, Any]:
        """Return whose network it is, what it takes to build it again, and what its classes and inputs are."""
        models = self.config.model.models
        return {
            **cell.identity,
            "client": client,
            "network": entry_name(models[client % len(models)]),
            **asdict(self.shape),
            **self.images.facts(),
        }

    def _check_folders(self, inside: str) -> None:
        """Raise ConfigError if two cells would write to one folder; some file systems ignore case."""
        labels: dict[str, str] = {}
        for cell in self.cells:
            folder = cell_name(cell.entry.label, cell.seed)
            other = labels.setdefault(folder.casefold(), cell.entry.label)
            if other != cell.entry.label:
                raise ConfigError(
                    f"{other!r} and {cell.entry.label!r} would both write to {inside}/{folder}; tell them apart with "
                    "`label:`"
                )


def most_at_once(device: str) -> int:
    """Return the most cells that `parallel_cells: auto` runs at once."""
    return MOST_ON_A_GPU if device != "cpu" else _cores()


def _cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
