"""One cell of the grid into a folder of its own, from its newest checkpoint to its end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tinyproto.algorithms.base import Derived
from tinyproto.builder import Cell
from tinyproto.experiment import Experiment
from tinyproto.memory import release_unused
from tinyproto.simulation.loop import ClientHost, Simulation
from tinyproto.storage.checkpoint import load_newest, sweep
from tinyproto.storage.client_files import grouped
from tinyproto.storage.network_files import FOLDER, KEPT_PARTS
from tinyproto.tracking.environment import environment
from tinyproto.tracking.kept_models import keep_model
from tinyproto.tracking.recorder import CellRecorder
from tinyproto.tracking.run_folder import RunFolder
from tinyproto.tracking.summary import RoundResult

MOST_PROTOTYPES = 100
"""The number of clients whose local prototypes prototypes.safetensors holds for figures: the first ones."""

Host = Callable[[Cell, Path], ClientHost]
"""Makes the clients of a cell; those that do not fit into memory go to the folder."""


class Observer:
    """Is told how a run proceeds, and may ask it to stop; several cells may run at once. This one does nothing."""

    def opens(self, left: int) -> None:
        """Note that the run starts or resumes with so many cells to run."""

    def told(self, words: str) -> None:
        """Note a sentence about the run."""

    def started(self, cell: Cell, done: int) -> None:
        """Note that a cell starts, or resumes after so many rounds."""

    def played(self, cell: Cell, played: RoundResult) -> None:
        """Note that a round of a cell is completed."""

    def derived(self, cell: Cell, values: Derived, round_number: int) -> None:
        """Note what the algorithm derived in the first round run now; later rounds may derive other values."""

    def finished(self, cell: Cell, result: dict[str, Any]) -> None:
        """Note that a cell is completed."""

    def failed(self, cell: Cell, reason: str) -> None:
        """Note that a cell failed; the others continue."""

    def skipped(self, cell: Cell, reason: str) -> None:
        """Note that a cell is not run here, because another process runs it or has run it."""

    def stop_wanted(self) -> bool:
        """Return True to stop after the rounds in progress."""
        return False


def describe(experiment: Experiment, folder: RunFolder, at_once: int) -> None:
    """Write environment.json, unless an earlier start of the run did; `at_once` is the most cells at once."""
    if not folder.size("environment.json"):
        facts = environment(experiment.device, experiment.workers, at_once)
        folder.write_json("environment.json", {**facts, **experiment.execution()})


def run_cell(experiment: Experiment, cell: Cell, folder: RunFolder, observer: Observer, host: Host) -> dict[str, Any]:
    """Run a cell from the folder's newest checkpoint, or from the start; return its entry of summary.json.

    Raise KeyboardInterrupt, after a checkpoint, if the observer wants a stop.
    """
    folder.make()
    sweep(folder.checkpoints, folder.clients)  # what a killed process left behind
    if experiment.device != "cpu":
        release_unused(torch.device(experiment.device))  # what an earlier cell of this process used
    try:
        return _run(experiment, cell, folder, observer, experiment.simulation(cell, host(cell, folder.clients)))
    finally:
        with suppress(OSError):  # it would hide the first error; the next start sweeps again
            sweep(folder.checkpoints, folder.clients)


def _run(
    experiment: Experiment, cell: Cell, folder: RunFolder, observer: Observer, simulation: Simulation
) -> dict[str, Any]:
    config = experiment.config
    recorder = CellRecorder(
        folder, config.resolved(), cell.identity, simulation.server, simulation.host,
        config.model.checkpoint.every_seconds,
    )  # fmt: skip
    with closing(recorder):
        return _recorded(experiment, cell, folder, observer, simulation, recorder)


def _recorded(
    experiment: Experiment, cell: Cell, folder: RunFolder, observer: Observer, simulation: Simulation,
    recorder: CellRecorder,
) -> dict[str, Any]:  # fmt: skip
    checkpoint = load_newest(folder.checkpoints, folder.clients)
    recorder.resume(checkpoint, lambda words: observer.told(f"{cell.title}: {words}"))
    observer.started(cell, recorder.done)
    for result in simulation.rounds(first=recorder.done + 1):
        derived = recorder.append(result)
        if derived:
            observer.derived(cell, derived, result.record.round)
        observer.played(cell, result)
        if not result.record.closing:
            stop = observer.stop_wanted()
            recorder.checkpoint(now=stop)
            if stop:
                raise KeyboardInterrupt
    folder.write_prototypes(dict(named_prototypes(f"{cell.entry.label}/{cell.seed}", simulation)))
    summary = experiment.summarise(cell, simulation, recorder.rounds())
    _keep_models(experiment, cell, folder, simulation)
    recorder.finish(summary)
    return summary


def _keep_models(experiment: Experiment, cell: Cell, folder: RunFolder, simulation: Simulation) -> None:
    """Write every client's network if the config asks for it; one at a time, since not all may fit into memory."""
    folder.inner(FOLDER).remove()  # what a killed process wrote
    if not experiment.config.model.keep_models:
        return
    for client in range(simulation.num_clients):
        groups = grouped(simulation.host.snapshot([client], KEPT_PARTS))
        parts = {part: tensors for (_, part), tensors in groups.items()}
        keep_model(folder, experiment.facts_of_model(cell, client), parts)


def named_prototypes(prefix: str, simulation: Simulation) -> Iterator[tuple[str, Tensor]]:
    """Yield the first clients' local prototypes, and the global ones if the method has any, as tensors to save."""
    clients = range(min(simulation.num_clients, MOST_PROTOTYPES))
    groups = grouped(simulation.host.snapshot(clients, ("local", "received")))
    locals_ = [groups[client, "local"] for client in clients]
    yield f"{prefix}/local/values", torch.stack([local["values"] for local in locals_])
    yield f"{prefix}/local/present", torch.stack([local["present"] for local in locals_]).to(torch.uint8)
    if (0, "received") in groups:
        yield f"{prefix}/global/values", groups[0, "received"]["values"]
        yield f"{prefix}/global/present", groups[0, "received"]["present"].to(torch.uint8)
