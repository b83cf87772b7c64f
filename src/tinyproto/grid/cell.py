"""One cell of the grid into a folder of its own, from where it stands to its end; in whichever process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from tinyproto.algorithms.base import Derived
from tinyproto.config.load import completed
from tinyproto.engine.round import first_derived
from tinyproto.errors import CellsFailed
from tinyproto.experiment import Cell, Experiment
from tinyproto.report.words import counted
from tinyproto.simulation.clients import grouped
from tinyproto.simulation.loop import ClientHost, PlayedRound, Simulation
from tinyproto.storage.checkpoint import Position, load_newest, restore, set_aside
from tinyproto.tracking.checkpoints import Checkpoints, check_same_config
from tinyproto.tracking.environment import environment
from tinyproto.tracking.kept_models import KeptModels
from tinyproto.tracking.run_folder import RunFolder

MOST_PROTOTYPES = 100
"""prototypes.safetensors, which is for figures, has the local prototypes of so many clients, the first ones."""

Host = Callable[[Cell, Path], ClientHost]
"""Where the clients of a cell live; those that do not fit into memory, in a folder."""


def describe(experiment: Experiment, folder: RunFolder, at_once: int) -> None:
    """What it runs on, with at most so many cells at once, where a run killed at its start has not said so yet."""
    if not folder.size("environment.json"):
        facts = environment(experiment.device, experiment.workers, at_once)
        folder.write_json("environment.json", {**facts, **experiment.execution()})


def play_cell(experiment: Experiment, cell: Cell, folder: RunFolder, observer: Observer, host: Host) -> dict[str, Any]:
    """Play on from the folder's newest checkpoint, or from the start; summary.json comes last and says it is done.

    Raises KeyboardInterrupt, after a checkpoint, where the observer wants a stop.
    """
    config = experiment.config
    folder.make()
    checkpoints = Checkpoints(folder, config.resolved(), config.model.checkpoint.every_seconds)
    checkpoints.sweep()
    try:
        return _play(experiment, cell, folder, observer, host(cell, folder.clients), checkpoints)
    finally:
        with suppress(OSError):  # it would hide what went wrong; the next start sweeps again
            checkpoints.sweep()


def _play(
    experiment: Experiment, cell: Cell, folder: RunFolder, observer: Observer, host: ClientHost,
    checkpoints: Checkpoints,
) -> dict[str, Any]:  # fmt: skip
    config, identity = experiment.config, experiment.identity(cell)
    simulation = experiment.simulation(cell, host)
    played = _go_back_to_checkpoint(
        simulation, folder, config.resolved(), identity, lambda words: observer.told(f"{cell.title}: {words}")
    )
    observer.started(cell, len(played))
    first = len(played) + 1
    for round_ in simulation.rounds(first):
        folder.append_round(identity, round_)
        played.append(round_.for_summary())
        if derived := first_derived(simulation.server, round_.record, first):
            observer.derived(cell, derived, first)
        observer.played(cell, round_)
        if not round_.record.closing:
            _mark(checkpoints, round_.record.round + 1, simulation, stop=observer.stop_wanted())
    folder.write_prototypes(dict(named_prototypes(f"{cell.entry.label}/{cell.seed}", simulation)))
    result = experiment.summarise(cell, simulation, played)
    _keep_models(experiment, cell, folder, simulation)
    folder.write_results([result])
    return result


def _go_back_to_checkpoint(
    simulation: Simulation, folder: RunFolder, config: dict[str, Any], identity: dict[str, Any],
    tell: Callable[[str], None],
) -> list[PlayedRound]:  # fmt: skip
    """Put simulation and files where the newest intact checkpoint was taken; return the rounds played until then."""
    checkpoint = load_newest(folder.checkpoints, folder.clients)
    position = Position.beginning(config) if checkpoint is None else checkpoint.position
    check_same_config(completed(position.config), completed(config))
    with folder.writing("checkpoint"):
        for words in [] if checkpoint is None else set_aside(checkpoint):
            tell(words)
    folder.cut("rounds.jsonl", position.rounds_bytes)
    folder.cut("timings.jsonl", position.timings_bytes)
    if checkpoint is None:
        return []
    restore(simulation, checkpoint)
    return [round_.for_summary() for round_ in folder.read_rounds(identity)]


def _mark(checkpoints: Checkpoints, next_round: int, simulation: Simulation, *, stop: bool) -> None:
    """A checkpoint where one is due; where a stop is wanted, a checkpoint and the stop."""
    if stop or checkpoints.due():
        checkpoints.save(0, next_round, simulation)
    if stop:
        raise KeyboardInterrupt


def _keep_models(experiment: Experiment, cell: Cell, folder: RunFolder, simulation: Simulation) -> None:
    """Every client's network as it ended, where that is asked for; one at a time, since not all may fit into memory."""
    kept = KeptModels(folder)
    kept.remove()  # what a killed process had begun
    if not experiment.config.model.keep_models:
        return
    for client in range(simulation.num_clients):
        tensors = grouped(simulation.host.snapshot([client], ("model",)))[client, "model"]
        kept.write(experiment.facts_of_model(cell, client), tensors)


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


class Observer(Protocol):
    """Is told how a run goes on, and may ask it to stop; cells may be under way at once."""

    def opens(self, left: int) -> None:
        """The run begins, or goes on, with so many cells left to play."""
        ...

    def told(self, words: str) -> None:
        """A sentence about the run as a whole."""
        ...

    def started(self, cell: Cell, done: int) -> None:
        """A cell of the grid begins, or goes on after so many rounds."""
        ...

    def played(self, cell: Cell, played: PlayedRound) -> None:
        """A round of it is done."""
        ...

    def derived(self, cell: Cell, values: Derived, round_number: int) -> None:
        """What its algorithm chose by itself, in the first round that is played now; later ones may choose anew."""
        ...

    def finished(self, cell: Cell, result: dict[str, Any]) -> None:
        """The cell is done."""
        ...

    def failed(self, cell: Cell, reason: str) -> None:
        """The cell cannot be finished, and the others go on."""
        ...

    def skipped(self, cell: Cell, reason: str) -> None:
        """The cell is not played here, since another process plays it or has played it."""
        ...

    def stop_wanted(self) -> bool:
        """Whether to stop after the rounds under way."""
        ...


class Silent:
    """The observer that says nothing and never stops a run."""

    def opens(self, left: int) -> None:
        """Nothing."""

    def told(self, words: str) -> None:
        """Nothing."""

    def started(self, cell: Cell, done: int) -> None:
        """Nothing."""

    def played(self, cell: Cell, played: PlayedRound) -> None:
        """Nothing."""

    def derived(self, cell: Cell, values: Derived, round_number: int) -> None:
        """Nothing."""

    def finished(self, cell: Cell, result: dict[str, Any]) -> None:
        """Nothing."""

    def failed(self, cell: Cell, reason: str) -> None:
        """Nothing."""

    def skipped(self, cell: Cell, reason: str) -> None:
        """Nothing."""

    def stop_wanted(self) -> bool:
        """Never."""
        return False


NAMED = 4
"""So many failed cells are named with their reason; of more, their number."""


class Failures:
    """The failed cells of a run, each with the reason."""

    def __init__(self, observer: Observer) -> None:
        self.cells: list[tuple[Cell, str]] = []
        self.for_good = 0  # so many of them would fail again
        self._observer = observer

    def add(self, cell: Cell, reason: str, *, again: bool = True) -> None:
        """One more; the others go on. `again`: running it again may help."""
        self.cells.append((cell, reason))
        self.for_good += not again
        self._observer.failed(cell, reason)


def cells_failed(failures: Failures, command: str) -> CellsFailed:
    """Return the error that a run with failed cells ends with; the command runs them again."""
    plain = [{"label": cell.entry.label, "seed": cell.seed, "reason": reason} for cell, reason in failures.cells]
    named = [(cell.title, reason) for cell, reason in failures.cells]
    return CellsFailed(failed_words(named, command, failures.for_good), plain)


def failed_words(failed: Sequence[tuple[str, str]], command: str, for_good: int = 0) -> str:
    """Say titles and reasons in one sentence, by reason, and what runs again those that did not fail for good."""
    told = []
    for reason in dict.fromkeys(reason for _, reason in failed):
        titles = [title for title, why in failed if why == reason]
        told.append(f"{', '.join(titles) if len(titles) <= NAMED else counted(len(titles), 'cell')}: {reason}")
    again = "" if for_good == len(failed) else f"; {command} tries again"
    if again and for_good:
        again += ", which helps only cells that did not diverge"
    return f"{counted(len(failed), 'cell')} failed ({'; '.join(told)}){again}"
