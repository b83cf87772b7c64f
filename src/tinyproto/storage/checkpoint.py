"""Checkpoints: the position of a run after a round, in one safetensors file written completely or not at all.

A checkpoint holds the server's state and names the files with the clients' states. Those files are written before it
and never changed; a client that has not changed since the previous checkpoint is not written again. Digests cover all
of it: a damaged checkpoint, or one that needs a damaged client file, is passed over for the previous one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tinyproto.algorithms.base import ClientInfo
from tinyproto.engine.server import ServerRuntime
from tinyproto.errors import CheckpointError, ClientStateError, DamagedError
from tinyproto.storage.client_files import ClientFiles, Stored, stored_from
from tinyproto.storage.tensor_files import host_copy, load_sealed, save_sealed, sealed_facts

SCHEMA_VERSION = 3
KEPT = 2
_SUFFIX = ".safetensors"
_DAMAGED = ".damaged"


@dataclass(frozen=True)
class Position:
    """The place where a checkpoint was taken: in a run's grid and its files, or in one cell and its files."""

    cell: int  # how many cells are completed
    next_round: int  # of the cell in progress; 1 if it has not started
    rounds_bytes: int  # length of rounds.jsonl
    timings_bytes: int
    config: Mapping[str, Any]  # resolved

    @classmethod
    def beginning(cls, config: Mapping[str, Any]) -> Position:
        """Return the start of a run, which is also where a run without any checkpoint resumes."""
        return cls(0, 1, 0, 0, config)


@dataclass(frozen=True)
class Checkpoint:
    """A position, and the state of the cell in progress; no state if it has not started."""

    position: Position
    server: Mapping[str, Tensor]
    infos: Mapping[int, ClientInfo]
    held: Mapping[int, Sequence[int]]  # classes of a client's last upload, if the server needs them
    clients: Mapping[int, Stored]  # those that ever changed
    passed_over: Mapping[Path, str]  # newer ones that are damaged, the newest first; the reason names the damaged file


def save(
    folder: Path, position: Position, server: ServerRuntime | None = None, clients: Mapping[int, Stored] | None = None
) -> None:
    """Write the next checkpoint and remove all but the newest few; without a server, no cell is in progress.

    Clients that keep their own state have no entry in `clients`.
    """
    folder.mkdir(exist_ok=True)
    numbers = [int(path.stem) for path in _files(folder)]
    target = folder / f"{max(numbers, default=0) + 1:08}{_SUFFIX}"
    infos, held, state = ({}, {}, {}) if server is None else (server.infos, server.held, server.state)
    facts = {
        "schema_version": SCHEMA_VERSION,
        "position": asdict(position),
        "infos": [asdict(info) for info in infos.values()],
        "held": {client: classes.nonzero()[:, 0].tolist() for client, classes in held.items()},
        "clients": clients or {},
    }
    save_sealed(target, {name: host_copy(tensor) for name, tensor in state.items()}, facts)
    keep_newest(folder, KEPT)


def keep_newest(folder: Path, count: int) -> None:
    """Remove all checkpoints older than the newest `count` intact ones; damaged ones do not count."""
    intact = 0
    for path in reversed(_files(folder)):
        if intact == count:
            for old in (path, path.with_suffix(_DAMAGED)):
                old.unlink(missing_ok=True)
        else:
            with suppress(DamagedError):
                load_sealed(path)
                intact += 1


def sweep(folder: Path, clients: Path) -> None:
    """Remove client states that no checkpoint needs, and the folder if none is left.

    Nothing is removed while a checkpoint is damaged; resuming renames it.
    """
    if not clients.is_dir():
        return
    try:
        kept = [stored_from(_facts(path)["clients"]) for path in _files(folder)]
    except (CheckpointError, DamagedError, LookupError):
        return
    needed = {place.file for stored in kept for places in stored.values() for place in places.values()}
    for path in clients.iterdir():
        if path.name not in needed:
            path.unlink()
    if not needed:
        clients.rmdir()


def load_newest(folder: Path, clients: Path, remedy: str = "") -> Checkpoint | None:
    """Load the newest checkpoint that is intact, with the client states it needs; None if none was ever written.

    Raise CheckpointError if every one is damaged. `remedy` then says what to do, if deleting the folder is not it.
    """
    damages: dict[Path, str] = {}
    for path in reversed(_files(folder)):
        try:
            return _load(path, clients, damages)
        except (DamagedError, ClientStateError) as error:
            damages[path] = str(error)
    if not damages:
        return None
    remedy = remedy or f"delete {folder} to start again from round 1"
    reasons = dict.fromkeys(damages.values())  # one, if each of them needs a client's file
    raise CheckpointError(f"no checkpoint in {folder} is intact: {'; '.join(reasons)}; {remedy}")


def _load(path: Path, clients: Path, passed_over: Mapping[Path, str]) -> Checkpoint:
    facts = _facts(path)
    _, server = load_sealed(path)
    infos = {info["id"]: ClientInfo(**info) for info in facts["infos"]}
    held = {int(client): classes for client, classes in facts.get("held", {}).items()}
    stored = stored_from(facts["clients"])
    files = ClientFiles(clients)
    for client, parts in stored.items():  # checked now, while there is a previous checkpoint to fall back to
        files.get(client, parts)
    return Checkpoint(Position(**facts["position"]), server, infos, held, stored, passed_over)


def set_aside(checkpoint: Checkpoint) -> list[str]:
    """Rename the checkpoints that were passed over, so that they no longer count; return a sentence on each."""
    told, at = [], checkpoint.position
    place = f"after cell {at.cell}" if at.cell else f"from round {at.next_round}"
    for path, reason in checkpoint.passed_over.items():
        path.rename(path.with_suffix(_DAMAGED))
        told.append(f"{reason}; resuming {place}, with the previous checkpoint")
    return told


def _facts(path: Path) -> dict[str, Any]:
    """Return the facts of a checkpoint; raise CheckpointError if another release wrote it."""
    facts = sealed_facts(path)
    version = facts.get("schema_version")
    if not isinstance(version, int):
        raise DamagedError(f"{path} is damaged, or not a checkpoint of tinyproto (it has no schema version)")
    if version != SCHEMA_VERSION:
        which = "newer" if version > SCHEMA_VERSION else "older"
        raise CheckpointError(
            f"{path} has schema version {version}, this tinyproto knows {SCHEMA_VERSION}; "
            f"resume with the {which} release that wrote it"
        )
    return facts


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob(f"*{_SUFFIX}") if path.stem.isdecimal())


def restore_server(server: ServerRuntime, checkpoint: Checkpoint) -> None:
    """Set a new server to the state it had at the checkpoint."""
    server.state = dict(checkpoint.server)
    server.infos = dict(checkpoint.infos)
    every = torch.arange(server.expectation.num_classes)
    server.held = {
        client: torch.isin(every, torch.tensor(classes, dtype=torch.long))
        for client, classes in checkpoint.held.items()
    }
