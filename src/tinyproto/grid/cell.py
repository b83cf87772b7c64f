"""One cell of the grid into a folder of its own, from where it stands to its end; in whichever process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tinyproto.config.load import completed
from tinyproto.engine.round import first_derived
from tinyproto.experiment import Cell, Experiment
from tinyproto.grid.observer import Observer
from tinyproto.simulation.clients import grouped
from tinyproto.simulation.loop import PlayedRound, Simulation
from tinyproto.simulation.loopback import ClientHost
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
