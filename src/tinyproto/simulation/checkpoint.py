"""Checkpoints: where a run stands after a whole round, in one safetensors file that is there whole or not at all.

It holds the server's state and says in which files the clients' states lie. Those files are written before it and never
changed; a client that has not changed since the checkpoint before is not written again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import safetensors
import torch
from torch import Tensor

from tinyproto.algorithms.base import ClientInfo
from tinyproto.engine.server import ServerRuntime
from tinyproto.errors import CheckpointError
from tinyproto.simulation.client_files import Stored, stored_from
from tinyproto.simulation.tensor_files import own, save_whole

SCHEMA_VERSION = 2
KEPT = 2
_SUFFIX = ".safetensors"
_TAG = "tinyproto"


class Keeper(Protocol):
    """Who has the clients, or knows that they keep their own state."""

    def save(self) -> Mapping[int, Stored]:
        """Have all that changed on disk; where it lies, by client, for those that ever changed."""
        ...

    def restore(self, stored: Mapping[int, Stored]) -> None:
        """Put the clients where they were saved."""
        ...


class UnderWay(Protocol):
    """What a checkpoint is taken of: a simulation, or a federation whose clients are elsewhere."""

    @property
    def server(self) -> ServerRuntime:
        """Its state is saved."""
        ...

    @property
    def host(self) -> Keeper:
        """Saves the clients' state."""
        ...


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
    server: Mapping[str, Tensor]
    infos: Mapping[int, ClientInfo]
    held: Mapping[int, Sequence[int]]  # classes of a client's last upload, where that matters
    clients: Mapping[int, Stored]  # those that ever changed


def save(folder: Path, position: Position, simulation: UnderWay | None) -> None:
    """Write the next checkpoint and drop all but the newest few."""
    folder.mkdir(exist_ok=True)
    numbers = [int(path.stem) for path in _files(folder)]
    target = folder / f"{max(numbers, default=0) + 1:08}{_SUFFIX}"
    clients = {} if simulation is None else simulation.host.save()
    infos = {} if simulation is None else simulation.server.infos
    held = {} if simulation is None else simulation.server.held
    server = {} if simulation is None else simulation.server.state
    facts = {
        "schema_version": SCHEMA_VERSION,
        "position": asdict(position),
        "infos": [asdict(info) for info in infos.values()],
        "held": {client: classes.nonzero()[:, 0].tolist() for client, classes in held.items()},
        "clients": clients,
    }
    save_whole(target, {name: own(tensor) for name, tensor in server.items()}, {_TAG: json.dumps(facts)})
    keep_newest(folder, KEPT)


def keep_newest(folder: Path, count: int) -> None:
    """Drop all but so many checkpoints."""
    for old in _files(folder)[:-count]:
        old.unlink()


def sweep(folder: Path, clients: Path) -> None:
    """Remove what no checkpoint speaks of from the folder of clients' states, and the folder where nothing is left."""
    if not clients.is_dir():
        return
    try:
        kept = [stored_from(_facts(path)["clients"]) for path in _files(folder)]
    except CheckpointError:  # who knows what it speaks of
        return
    needed = {place.file for stored in kept for places in stored.values() for place in places.values()}
    for path in clients.iterdir():
        if path.name not in needed:
            path.unlink()
    if not needed:
        clients.rmdir()


def load_newest(folder: Path, clients: Path) -> Checkpoint | None:
    """The newest checkpoint, whose clients' states are all there; None where a run was ended before its first."""
    files = _files(folder)
    if not files:
        return None
    newest = files[-1]
    facts = _facts(newest)
    with safetensors.safe_open(newest, framework="pt") as file:
        server = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
    infos = {info["id"]: ClientInfo(**info) for info in facts["infos"]}
    stored = stored_from(facts["clients"])
    for name in {place.file for places in stored.values() for place in places.values()}:
        if not (clients / name).is_file():
            raise CheckpointError(
                f"{clients / name} is not there, which {newest} needs; remove the latter to go on from the one before"
            )
    held = {int(client): classes for client, classes in facts.get("held", {}).items()}
    return Checkpoint(Position(**facts["position"]), server, infos, held, stored)


def _facts(path: Path) -> dict[str, Any]:
    """What a checkpoint says beside its tensors."""
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            tag = (file.metadata() or {}).get(_TAG)
    except (OSError, safetensors.SafetensorError) as error:
        raise CheckpointError(f"{path} is damaged ({error}); remove it to go on from the one before") from error
    if tag is None:
        raise CheckpointError(f"{path} is not a checkpoint of tinyproto; remove it to go on from the one before")
    facts: dict[str, Any] = json.loads(tag)
    if facts["schema_version"] != SCHEMA_VERSION:
        which = "newer" if facts["schema_version"] > SCHEMA_VERSION else "older"
        raise CheckpointError(
            f"{path} has schema version {facts['schema_version']}, this tinyproto knows {SCHEMA_VERSION}; "
            f"resume with the {which} release that wrote it"
        )
    return facts


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob(f"*{_SUFFIX}") if path.stem.isdecimal())


def restore(simulation: UnderWay, checkpoint: Checkpoint) -> None:
    """Put a new simulation where the checkpointed one was."""
    simulation.server.state = dict(checkpoint.server)
    simulation.server.infos = dict(checkpoint.infos)
    every = torch.arange(simulation.server.expectation.num_classes)
    simulation.server.held = {
        client: torch.isin(every, torch.tensor(classes, dtype=torch.long))
        for client, classes in checkpoint.held.items()
    }
    simulation.host.restore(checkpoint.clients)
