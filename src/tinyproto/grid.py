"""The main job without a terminal: an experiment's grid of algorithms × seeds into a run folder, resumable.

Whoever wants to show progress passes an observer.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from tinyproto.config.algorithms import AlgorithmEntry
from tinyproto.errors import CheckpointError
from tinyproto.experiment import Cell, Experiment
from tinyproto.simulation.checkpoint import Checkpoint, load_newest, restore
from tinyproto.simulation.clients import grouped
from tinyproto.simulation.loop import PlayedRound, Simulation
from tinyproto.simulation.loopback import ClientHost
from tinyproto.tracking.checkpoints import Checkpoints, check_same_config
from tinyproto.tracking.environment import environment
from tinyproto.tracking.run_folder import RunFolder
from tinyproto.tracking.summary import SCHEMA_VERSION
from tinyproto.workers.pool import WorkerPool

MOST_PROTOTYPES = 100
"""prototypes.safetensors, which is for figures, has the local prototypes of so many clients, the first ones."""


class Observer(Protocol):
    """Is told how a run goes on, and may ask it to stop."""

    def started(self, entry: AlgorithmEntry, seed: int, rounds: int) -> None:
        """A cell of the grid begins, or goes on."""
        ...

    def played(self, played: PlayedRound) -> None:
        """A round of it is done."""
        ...

    def finished(self, result: dict[str, Any]) -> None:
        """The cell is done."""
        ...

    def stop_wanted(self) -> bool:
        """Whether to stop after the round just played."""
        ...


class Silent:
    """The observer that says nothing and never stops a run."""

    def started(self, entry: AlgorithmEntry, seed: int, rounds: int) -> None:
        """Nothing."""

    def played(self, played: PlayedRound) -> None:
        """Nothing."""

    def finished(self, result: dict[str, Any]) -> None:
        """Nothing."""

    def stop_wanted(self) -> bool:
        """Never."""
        return False


def run(experiment: Experiment, runs: Path, *, overwrite: bool = False, observer: Observer | None = None) -> Path:
    """Play every cell into `runs/<name>`; returns the run folder."""
    config = experiment.config
    folder = RunFolder.create(runs / config.model.name, overwrite=overwrite)
    folder.write_config(config.resolved())
    _describe(experiment, folder)
    return _Grid(experiment, folder, observer or Silent()).play(Checkpoint.beginning(config.resolved()))


def resume(experiment: Experiment, path: Path, *, observer: Observer | None = None) -> Path:
    """Go on with a run from its newest checkpoint, to the end it would have had undisturbed."""
    folder = RunFolder.open(path)
    now = experiment.config.resolved()
    checkpoint = load_newest(folder.checkpoints, folder.clients)
    if checkpoint is None:
        results = folder.read_results()
        if len(results) == len(experiment.cells):
            return folder.path
        if results:
            raise CheckpointError(f"{path} holds results but no checkpoint to go on from; start another run")
        checkpoint = Checkpoint.beginning(now)
    check_same_config(checkpoint.position.config, now)
    _describe(experiment, folder)
    return _Grid(experiment, folder, observer or Silent()).play(checkpoint)


def _describe(experiment: Experiment, folder: RunFolder) -> None:
    """What it runs on and who holds what, where a run killed at its start has not said so yet."""
    if not folder.size("environment.json"):
        folder.write_json("environment.json", environment(experiment.device, experiment.workers))
    if not folder.size("federation.json"):
        folder.write_json("federation.json", experiment.holdings())


class _Grid:
    def __init__(self, experiment: Experiment, folder: RunFolder, observer: Observer) -> None:
        self.experiment = experiment
        self.folder = folder
        self.observer = observer
        every_seconds = experiment.config.model.checkpoint.every_seconds
        self.checkpoints = Checkpoints(folder, experiment.config.resolved(), every_seconds)

    def play(self, start: Checkpoint) -> Path:
        """All cells from `start` on, with as many workers as the config asks for."""
        workers = self.experiment.workers
        self.checkpoints.sweep()
        try:
            if workers == 1:
                return self._play_from(start, None)
            with WorkerPool(self.experiment.config.resolved(), self.experiment.images, workers) as pool:
                return self._play_from(start, pool)
        finally:
            with suppress(OSError):  # it would hide what went wrong; the next start sweeps again
                self.checkpoints.sweep()

    def _play_from(self, start: Checkpoint, pool: WorkerPool | None) -> Path:
        folder, position = self.folder, start.position
        folder.cut("rounds.jsonl", position.rounds_bytes)
        folder.cut("timings.jsonl", position.timings_bytes)
        results = folder.read_results()[: position.cell]
        prototypes = folder.read_prototypes() if position.cell else {}
        for index, cell in enumerate(self.experiment.cells):
            if index < position.cell:
                continue
            host = self._host(index, cell, pool)
            result, tensors = self._play(index, cell, host, start if index == position.cell else None)
            del host  # its clients go before the next one's are built
            results.append(result)
            prototypes |= tensors
            folder.write_prototypes(prototypes)
            folder.write_json("summary.json", {"schema_version": SCHEMA_VERSION, "results": results})
            self.checkpoints.save(index + 1, next_round=1, simulation=None)
            self.observer.finished(result)
        self.checkpoints.finish()
        return folder.path

    def _host(self, index: int, cell: Cell, pool: WorkerPool | None) -> ClientHost:
        if pool is None:
            return self.experiment.loopback(cell, folder=self.folder.clients)
        samples = self.experiment.data.train_counts.sum(1).tolist()
        return pool.begin(index, samples, self.folder.clients, self.experiment.client_memory)

    def _play(
        self, index: int, cell: Cell, host: ClientHost, start: Checkpoint | None
    ) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """One cell from where it stands to its end."""
        experiment, identity = self.experiment, self.experiment.identity(cell)
        self.observer.started(cell.entry, cell.seed, experiment.config.model.train.rounds)
        simulation = experiment.simulation(cell, host)
        played: list[PlayedRound] = []
        if start is not None and start.position.next_round > 1:
            restore(simulation, start)
            played = self.folder.read_rounds(identity)
            for round_ in played:
                self.observer.played(round_)
        for round_ in simulation.rounds(first=len(played) + 1):
            self.folder.append_round(identity, round_)
            played.append(round_)
            self.observer.played(round_)
            if not round_.record.closing:
                self._mark(index, round_.record.round + 1, simulation)
        prefix = f"{cell.entry.label}/{cell.seed}"
        return experiment.summarise(cell, simulation, played), dict(named_prototypes(prefix, simulation))

    def _mark(self, index: int, next_round: int, simulation: Simulation) -> None:
        """A checkpoint where one is due; where a stop is wanted, a checkpoint and the stop."""
        stop = self.observer.stop_wanted()
        if stop or self.checkpoints.due():
            self.checkpoints.save(index, next_round, simulation)
        if stop:
            raise KeyboardInterrupt


def named_prototypes(prefix: str, simulation: Simulation) -> Iterator[tuple[str, Tensor]]:
    """The first clients' local prototypes, and the global ones where the method has any, as tensors to save."""
    clients = range(min(simulation.num_clients, MOST_PROTOTYPES))
    groups = grouped(simulation.host.snapshot(clients, ("local", "received")))
    locals_ = [groups[client, "local"] for client in clients]
    yield f"{prefix}/local/values", torch.stack([local["values"] for local in locals_])
    yield f"{prefix}/local/present", torch.stack([local["present"] for local in locals_]).to(torch.uint8)
    if (0, "received") in groups:
        yield f"{prefix}/global/values", groups[0, "received"]["values"]
        yield f"{prefix}/global/present", groups[0, "received"]["present"].to(torch.uint8)
