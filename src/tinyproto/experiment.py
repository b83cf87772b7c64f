"""The main job without a terminal: a config's grid of algorithms × seeds into a run folder.

Whoever wants to show progress passes an observer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from tinyproto.algorithms.base import FederationSpec
from tinyproto.config.algorithms import AlgorithmEntry
from tinyproto.config.load import Config
from tinyproto.core.prototypes import Prototypes
from tinyproto.data.federation import FederatedData
from tinyproto.data.images import Images
from tinyproto.data.partition import dirichlet_shares
from tinyproto.data.sources import load
from tinyproto.engine.client import LocalTraining
from tinyproto.errors import ConfigError
from tinyproto.models import ModelShape, build_model, entry_name, rehearse_training
from tinyproto.simulation.loop import PlayedRound, Simulation, SimulationSettings
from tinyproto.tracking.environment import environment
from tinyproto.tracking.run_folder import RunFolder
from tinyproto.tracking.summary import SCHEMA_VERSION, summarise


class Observer(Protocol):
    """Is told how a run goes on."""

    def started(self, entry: AlgorithmEntry, seed: int, rounds: int) -> None:
        """A cell of the grid begins."""
        ...

    def played(self, played: PlayedRound) -> None:
        """A round of it is done."""
        ...

    def finished(self, result: dict[str, Any]) -> None:
        """The cell is done."""
        ...


class Silent:
    """The observer that says nothing."""

    def started(self, entry: AlgorithmEntry, seed: int, rounds: int) -> None:
        """Nothing."""

    def played(self, played: PlayedRound) -> None:
        """Nothing."""

    def finished(self, result: dict[str, Any]) -> None:
        """Nothing."""


@dataclass(frozen=True)
class Cell:
    """One algorithm with one seed."""

    entry: AlgorithmEntry
    seed: int


class Experiment:
    """A config with its data and partition; everything that can be wrong is found before a run folder exists."""

    def __init__(self, config: Config, images: Images | None = None) -> None:
        self.config = config
        model = config.model
        self.device = resolve_device(model.train.device)
        self.images = load(model.data.name, model.data.root) if images is None else images
        partition = model.partition
        shares = dirichlet_shares(
            self.images.labels.numpy(),
            partition.num_clients,
            partition.alpha,
            partition.seed,
            partition.train_fraction,
            partition.min_samples,
        )
        self.data = FederatedData(self.images, shares)
        self.federation = FederationSpec(self.images.num_classes, model.prototypes.dim, model.train.learning_rate)
        shape = ModelShape(self.images.input_shape, model.prototypes.dim, self.images.num_classes)
        for entry in model.models:
            rehearse_training(build_model(entry, shape, seed=0), entry_name(entry), shape)
        for algorithm in config.algorithms:
            algorithm.build(self.federation)

    @property
    def cells(self) -> list[Cell]:
        """The grid, seed after seed, so that the methods of one seed can be compared early."""
        return [Cell(entry, seed) for seed in self.config.model.seeds for entry in self.config.algorithms]

    def identity(self, cell: Cell) -> dict[str, Any]:
        """What names a cell in every record."""
        return {"algorithm": cell.entry.spec.name, "label": cell.entry.label, "seed": cell.seed}

    def simulation(self, cell: Cell) -> Simulation:
        """The simulation of one cell, ready to play."""
        model = self.config.model
        training = LocalTraining(
            rounds=model.train.rounds,
            local_epochs=model.train.local_epochs,
            batch_size=model.train.batch_size,
            shuffle=model.train.shuffle,
            last_batch=model.train.last_batch,
            prototype_samples=model.prototypes.samples,
        )
        settings = SimulationSettings(
            training=training,
            proto_dim=model.prototypes.dim,
            participation=model.train.participation,
            evaluate_every=model.evaluate.every,
            evaluate_clients=model.evaluate.clients,
            counted_samples=model.prototypes.counted_samples,
            trainer=model.train.trainer,
            device=self.device,
        )
        return Simulation(self.data, model.models, cell.entry.build(self.federation), settings, cell.seed)

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
        return summarise(played, identity, formula, simulation.peak_memory.read())

    def run(self, runs: Path, *, overwrite: bool = False, observer: Observer | None = None) -> Path:
        """Play every cell into `runs/<name>`; returns the run folder."""
        observer = Silent() if observer is None else observer
        folder = RunFolder.create(runs / self.config.model.name, overwrite=overwrite)
        folder.write_config(self.config.resolved())
        folder.write_json("environment.json", environment(self.device))
        results: list[dict[str, Any]] = []
        prototypes: dict[str, Tensor] = {}
        for cell in self.cells:
            observer.started(cell.entry, cell.seed, self.config.model.train.rounds)
            result, tensors = self._play(cell, folder, observer)
            results.append(result)
            prototypes |= tensors
            folder.write_prototypes(prototypes)
            folder.write_json("summary.json", {"schema_version": SCHEMA_VERSION, "results": results})
            observer.finished(result)
        return folder.path

    def _play(self, cell: Cell, folder: RunFolder, observer: Observer) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """One cell from start to end; its clients are gone before the next one's are built."""
        simulation = self.simulation(cell)
        played: list[PlayedRound] = []
        for round_ in simulation.rounds():
            folder.append_round(self.identity(cell), round_)
            observer.played(round_)
            played.append(round_)
        tensors = dict(named_prototypes(f"{cell.entry.label}/{cell.seed}", simulation))
        return self.summarise(cell, simulation, played), tensors


def named_prototypes(prefix: str, simulation: Simulation) -> Iterator[tuple[str, Tensor]]:
    """Every client's local prototypes, and the global ones where the method has any, as tensors to save."""
    clients = simulation.clients.values()
    yield from _pair(f"{prefix}/local", Prototypes(
        torch.stack([client.local.values.cpu() for client in clients]),
        torch.stack([client.local.present.cpu() for client in clients]),
    ))  # fmt: skip
    received = next(iter(clients)).received
    if received is not None:
        yield from _pair(f"{prefix}/global", received.to("cpu"))


def _pair(name: str, prototypes: Prototypes) -> Iterator[tuple[str, Tensor]]:
    yield f"{name}/values", prototypes.values
    yield f"{name}/present", prototypes.present.to(torch.uint8)


def resolve_device(name: str) -> str:
    """`auto` is the GPU where there is one."""
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device: torch.device | None = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise ConfigError(f"train.device: {name!r} is no device we can use; it is auto, cpu, cuda or cuda:N")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(f"train.device: {name!r} is not there; torch sees {torch.cuda.device_count()} CUDA devices")
    return name
