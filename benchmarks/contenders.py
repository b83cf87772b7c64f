"""What is measured against each other: ways to play the rounds of one cell."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, get_args

import torch

import tinyproto
from benchmarks.busy import cores
from tinyproto.builder import Cell
from tinyproto.config import parse_config
from tinyproto.engine.training import TrainerName
from tinyproto.errors import ConfigError
from tinyproto.experiment import Experiment
from tinyproto.imports import load_dotted, unknown
from tinyproto.simulation.loop import ClientHost
from tinyproto.tracking.summary import RoundResult
from tinyproto.workers.pool import WorkerPool

BASELINE = "benchmarks.naive"
"""Where a checkout has the round as the published libraries write it."""


class Contender(Protocol):
    """Plays one round after another."""

    loss: Mapping[str, float]
    accuracy: Mapping[str, float | None]  # before the round just played

    def play(self) -> Mapping[str, float]:
        """Play the next round; the seconds of it (`total`) and of its phases."""
        ...

    def close(self) -> None:
        """Let go of everything."""
        ...


@dataclass(frozen=True)
class Asked:
    """A trainer, and in how many worker processes its clients are; 1 is this process."""

    trainer: TrainerName
    workers: int = 1

    @property
    def name(self) -> str:
        """As it is asked for."""
        return self.trainer if self.workers == 1 else f"{self.trainer}*{self.workers}"

    @classmethod
    def parse(cls, text: str) -> Asked:
        """`eager`, or `eager*2` for two worker processes."""
        name, star, count = text.strip().partition("*")
        known = get_args(TrainerName)
        if name not in known:
            raise ConfigError(f"--trainers: {unknown('trainer', name, known)}")
        if star and not (count.isdecimal() and 1 <= int(count) <= cores()):
            raise ConfigError(f"--trainers: {text.strip()!r} asks for {count} workers; 1 to {cores()} can work here")
        return cls(name, int(count) if star else 1)  # type: ignore[arg-type]


class Trained:
    """The package itself, with one of its trainers."""

    def __init__(self, experiment: Experiment, cell: int, asked: Asked, rounds: int) -> None:
        self.loss: Mapping[str, float] = {}
        self.accuracy: Mapping[str, float | None] = {}
        self.notes: list[str] = []
        self.paid_steps: int | None = None  # of the round just played, padding included, where the host counts them
        values = experiment.config.resolved()
        values["train"] = {**values["train"], "trainer": asked.trainer, "workers": asked.workers, "rounds": rounds}
        own = Experiment(parse_config(values, "bench"), experiment.images)
        self.pool: WorkerPool | None = None
        self.folder: tempfile.TemporaryDirectory[str] | None = None
        self.host: ClientHost = self._host(own, cell, asked.workers)
        self.rounds: Iterator[RoundResult] = own.simulation(own.cells[cell], self.host).rounds()

    def _host(self, experiment: Experiment, cell: int, workers: int) -> ClientHost:
        if workers == 1:
            return experiment.loopback(experiment.cells[cell])
        shared = experiment.images.shared
        if experiment.device != "cpu" or shared is None or shared.descriptor is None:
            raise ConfigError("--trainers: workers need a CPU, and images in memory that processes can share")
        self.pool = WorkerPool(experiment.config.resolved(), experiment.images, workers)
        self.folder = tempfile.TemporaryDirectory(prefix="tinyproto-bench-")
        samples = experiment.data.train_counts.sum(1).tolist()
        return self.pool.begin(cell, samples, Path(self.folder.name), experiment.client_memory)

    def play(self) -> Mapping[str, float]:
        """The next round."""
        played = next(self.rounds)
        self.loss, self.accuracy = played.record.loss, played.record.accuracy
        self.notes += played.notes
        self.paid_steps = None if played.steps is None else played.steps.paid
        return played.seconds

    @property
    def other_memory(self) -> int:
        """Peak bytes of its worker processes."""
        return self.host.other_memory()

    def close(self) -> None:
        """End the workers."""
        if self.pool is not None:
            self.pool.__exit__(None, None, None)
        if self.folder is not None:
            self.folder.cleanup()


@dataclass(frozen=True)
class Baseline:
    """The round of the published libraries, found in `benchmarks/` of a checkout or by its dotted name."""

    federation: Any  # of an experiment and a cell: a Contender
    class_means: Any  # of features and labels
    nearest: Any  # of features, prototypes and the number of classes

    @classmethod
    def find(cls, name: str | None) -> Baseline | None:
        """By its name; where none is given the checkout's, if this is one; `none` is none."""
        if name == "none":
            return None
        if name is None:
            root = next((place for place in _checkouts() if (place / "benchmarks" / "naive").is_dir()), None)
            if root is None:
                return None
            if str(root) not in sys.path:
                sys.path.append(str(root))
        parts = (
            load_dotted(f"{name or BASELINE}:{part}", ConfigError, "--naive")
            for part in ("NaiveFederation", "class_means", "nearest")
        )
        return cls(*parts)

    def contender(self, experiment: Experiment, cell: Cell) -> Contender:
        """Its rounds of one cell; what it does not play is a ConfigError."""
        contender: Contender = self.federation(experiment, cell)
        return contender


def _checkouts() -> list[Path]:
    return [Path.cwd(), Path(tinyproto.__file__).parents[2]]


def device_of(experiment: Experiment) -> torch.device:
    """Where an experiment runs."""
    return torch.device(experiment.device)
