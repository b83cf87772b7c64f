"""The ways to run the rounds of one cell that are compared: our trainers and a naive baseline."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, get_args

from benchmarks.machine import cores
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
"""The module with the round as the published libraries write it."""


class Contender(Protocol):
    """Something that runs one round after another."""

    loss: Mapping[str, float]
    accuracy: Mapping[str, float | None]  # before the latest round

    def play(self) -> Mapping[str, float]:
        """Run the next round; return its seconds (`total`) and those of its phases."""
        ...

    def close(self) -> None:
        """Release processes, files and memory."""
        ...


@dataclass(frozen=True)
class Asked:
    """A trainer and its number of worker processes; 1 means this process."""

    trainer: TrainerName
    workers: int = 1

    @property
    def name(self) -> str:
        """Return the text that `parse` reads."""
        return self.trainer if self.workers == 1 else f"{self.trainer}*{self.workers}"

    @classmethod
    def parse(cls, text: str) -> Asked:
        """Read `eager`, or `eager*2` for two worker processes."""
        name, star, count = text.strip().partition("*")
        known = get_args(TrainerName)
        if name not in known:
            raise ConfigError(f"--trainers: {unknown('trainer', name, known)}")
        if star and not (count.isdecimal() and 1 <= int(count) <= cores()):
            raise ConfigError(f"--trainers: {text.strip()!r} asks for {count} workers; expected 1 to {cores()}")
        return cls(name, int(count) if star else 1)  # type: ignore[arg-type]


class Trained:
    """This package with one of its trainers."""

    def __init__(self, experiment: Experiment, cell: int, asked: Asked, rounds: int) -> None:
        self.loss: Mapping[str, float] = {}
        self.accuracy: Mapping[str, float | None] = {}
        self.notes: list[str] = []
        self.paid_steps: int | None = None  # of the latest round, padding included; None if not counted
        values = experiment.config.resolved()
        values["train"] = {**values["train"], "trainer": asked.trainer, "workers": asked.workers, "rounds": rounds}
        separate = Experiment(parse_config(values, "the benchmark's config"), experiment.images)
        self.pool: WorkerPool | None = None
        self.folder: tempfile.TemporaryDirectory[str] | None = None
        self.simulation = separate.simulation(separate.cells[cell], self._host(separate, cell, asked.workers))
        self.rounds: Iterator[RoundResult] = self.simulation.rounds()

    def _host(self, experiment: Experiment, cell: int, workers: int) -> ClientHost:
        if workers == 1:
            return experiment.loopback(experiment.cells[cell])
        shared = experiment.images.shared
        if experiment.device != "cpu" or shared is None or shared.descriptor is None:
            raise ConfigError("--trainers: workers need a CPU and images in shared memory; leave out *N")
        self.pool = WorkerPool(experiment.config.resolved(), experiment.images, workers)
        self.folder = tempfile.TemporaryDirectory(prefix="tinyproto-benchmark-")
        return self.pool.begin(cell, experiment.work, Path(self.folder.name), experiment.client_memory)

    def play(self) -> Mapping[str, float]:
        """Run the next round."""
        played = next(self.rounds)
        self.loss, self.accuracy = played.record.loss, played.record.accuracy
        self.notes += played.notes
        self.paid_steps = None if played.steps is None else played.steps.paid
        return played.seconds

    @property
    def other_memory(self) -> int:
        """Return the peak bytes of the worker processes."""
        return self.simulation.other_memory

    def close(self) -> None:
        """Stop the workers and remove their files."""
        if self.pool is not None:
            self.pool.close()
        if self.folder is not None:
            self.folder.cleanup()


@dataclass(frozen=True)
class Baseline:
    """The round of the published libraries: `benchmarks/naive`, or another module with the same three names."""

    federation: Any  # of an experiment and a cell: a Contender
    class_means: Any  # of features and labels
    nearest: Any  # of features, prototypes and the number of classes

    @classmethod
    def find(cls, name: str | None) -> Baseline | None:
        """Import the baseline of this dotted name, by default `benchmarks.naive`; return None for the name `none`."""
        if name == "none":
            return None
        parts = (
            load_dotted(f"{name or BASELINE}:{part}", ConfigError, "--naive")
            for part in ("NaiveFederation", "class_means", "nearest")
        )
        return cls(*parts)

    def contender(self, experiment: Experiment, cell: Cell) -> Contender:
        """Return its rounds of one cell; raise ConfigError for a cell that it does not support."""
        contender: Contender = self.federation(experiment, cell)
        return contender
