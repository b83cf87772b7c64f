"""An experiment: a config with its data, ready to simulate any cell of its grid of algorithms × seeds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from tinyproto.algorithms.base import FederationSpec
from tinyproto.config.algorithms import AlgorithmEntry
from tinyproto.config.load import Config
from tinyproto.data.federation import FederatedData
from tinyproto.data.images import Images
from tinyproto.data.partition import dirichlet_shares
from tinyproto.data.sources import load
from tinyproto.engine.client import LocalTraining
from tinyproto.errors import ConfigError
from tinyproto.models import ModelShape, build_model, entry_name, rehearse_training
from tinyproto.simulation.loop import PlayedRound, Simulation, SimulationSettings
from tinyproto.tracking.summary import summarise


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
