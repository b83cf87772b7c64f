"""Checkpoints: where a run stands after a whole round, in one safetensors file that is there whole or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
from torch import Tensor

from tinyproto.algorithms.base import ClientInfo
from tinyproto.errors import CheckpointError, one_line
from tinyproto.simulation.clients import own
from tinyproto.simulation.loop import Simulation

SCHEMA_VERSION = 1
KEPT = 2
_SUFFIX = ".safetensors"
_TAG = "tinyproto"


@dataclass(frozen=True)
class Position:
    """Where a checkpoint was taken: in a run's grid and its files, or in one cell and its files."""

    cell: int  # how many cells are done
    next_round: int  # of the cell under way; 1 where it has not begun
    rounds_bytes: int  # length of rounds.jsonl
    timings_bytes: int
    config: Mapping[str, Any]  # resolved

    @classmethod
    def beginning(cls, config: Mapping[str, Any]) -> Position:
        """Where every run starts, and where one goes back to that was ended before its first checkpoint."""
        return cls(0, 1, 0, 0, config)


@dataclass(frozen=True)
class Checkpoint:
    """A position, and the state of the cell under way; no state where it has not begun."""

    position: Position
    tensors: Mapping[str, Tensor]
    infos: Mapping[int, ClientInfo]


def save(folder: Path, position: Position, simulation: Simulation | None) -> None:
    """Write the next checkpoint and drop all but the newest few."""
    folder.mkdir(exist_ok=True)
    numbers = [int(path.stem) for path in _files(folder)]
    target = folder / f"{max(numbers, default=0) + 1:08}{_SUFFIX}"
    partial = target.with_suffix(".partial")
    infos = {} if simulation is None else simulation.server.infos
    tensors = {} if simulation is None else dict(snapshot(simulation))
    facts = {
        "schema_version": SCHEMA_VERSION,
        "position": asdict(position),
        "infos": [asdict(info) for info in infos.values()],
    }
    safetensors.torch.save_file(tensors, partial, metadata={_TAG: json.dumps(facts)})
    with partial.open("rb") as file:
        os.fsync(file.fileno())
    partial.replace(target)
    for old in _files(folder)[:-KEPT]:
        old.unlink()


def load_newest(folder: Path) -> Checkpoint | None:
    """The newest checkpoint; None where a run was ended before its first."""
    files = _files(folder)
    if not files:
        return None
    newest = files[-1]
    try:
        with safetensors.safe_open(newest, framework="pt") as file:
            tag = (file.metadata() or {}).get(_TAG)
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, safetensors.SafetensorError) as error:
        raise CheckpointError(f"{newest} is damaged ({error}); remove it to go on from the one before") from error
    if tag is None:
        raise CheckpointError(f"{newest} is not a checkpoint of tinyproto; remove it to go on from the one before")
    facts = json.loads(tag)
    if facts["schema_version"] > SCHEMA_VERSION:
        raise CheckpointError(
            f"{newest} has schema version {facts['schema_version']}, this tinyproto knows {SCHEMA_VERSION}; "
            "resume with the newer release that wrote it"
        )
    infos = {info["id"]: ClientInfo(**info) for info in facts["infos"]}
    return Checkpoint(Position(**facts["position"]), tensors, infos)


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob(f"*{_SUFFIX}") if path.stem.isdecimal())


def snapshot(simulation: Simulation) -> Iterator[tuple[str, Tensor]]:
    """All that changes from round to round, by name."""
    for name, tensor in simulation.server.state.items():
        yield f"server/{name}", own(tensor)
    yield from simulation.host.snapshot().items()


def restore(simulation: Simulation, checkpoint: Checkpoint) -> None:
    """Put a new simulation where the checkpointed one was."""
    server = {name: tensor for name, tensor in checkpoint.tensors.items() if name.startswith("server/")}
    simulation.server.state = {name.removeprefix("server/"): tensor for name, tensor in server.items()}
    simulation.server.infos = dict(checkpoint.infos)
    try:
        simulation.host.restore(checkpoint.tensors)
    except (RuntimeError, KeyError, TypeError) as error:
        raise CheckpointError(f"the checkpoint does not fit this run: {one_line(error)}") from error
