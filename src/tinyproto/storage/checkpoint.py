"""Checkpoints: where a run stands after a whole round, in one safetensors file that is there whole or not at all.

It holds the server's state and says in which files the clients' states lie. Those files are written before it and never
changed; a client that has not changed since the checkpoint before is not written again. Digests cover all of it: a
damaged checkpoint, or one that needs a damaged file of a client, is passed over for the one before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from tinyproto.algorithms.base import ClientInfo
from tinyproto.engine.server import ServerRuntime
from tinyproto.errors import CheckpointError, ClientStateError, DamagedError, one_line
from tinyproto.storage.client_files import ClientFiles, Stored, stored_from
from tinyproto.storage.tensor_files import is_sealed, load_sealed, own, save_sealed, sealed_facts

SCHEMA_VERSION = 3
UNSEALED_VERSION = 2
"""Is read, too: the same without digests, so only damage that leaves no whole file is found in one."""

KEPT = 2
_SUFFIX = ".safetensors"
_DAMAGED = ".damaged"


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

    @property
    def words(self) -> str:
        """Say from where a run resumes."""
        return f"after cell {self.cell}" if self.cell else f"from round {self.next_round}"


class Damage(NamedTuple):
    """A checkpoint that cannot be resumed from, and why."""

    checkpoint: Path
    reason: str  # names the damaged file, which may be a client's


@dataclass(frozen=True)
class Checkpoint:
    """A position, and the state of the cell under way; no state where it has not begun."""

    position: Position
    server: Mapping[str, Tensor]
    infos: Mapping[int, ClientInfo]
    held: Mapping[int, Sequence[int]]  # classes of a client's last upload, where that matters
    clients: Mapping[int, Stored]  # those that ever changed
    passed_over: Sequence[Damage] = ()  # newer ones, the newest first


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
    save_sealed(target, {name: own(tensor) for name, tensor in server.items()}, facts)
    keep_newest(folder, KEPT)


def keep_newest(folder: Path, count: int) -> None:
    """Remove all checkpoints older than the newest `count` intact ones; damaged ones do not count."""
    intact = 0
    for path in reversed(_files(folder)):
        if intact == count:
            for old in (path, path.with_suffix(_DAMAGED)):
                old.unlink(missing_ok=True)
        else:
            intact += _is_intact(path)


def _is_intact(path: Path) -> bool:
    try:
        load_sealed(path)
    except DamagedError:
        return False
    return True


def sweep(folder: Path, clients: Path) -> None:
    """Remove client states that no checkpoint needs, and the folder if none is left.

    Nothing is removed while a checkpoint does not tell what it needs; resuming sets such a one aside.
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
    damages: list[Damage] = []
    for path in reversed(_files(folder)):
        try:
            return _load(path, clients, damages)
        except (DamagedError, ClientStateError) as error:
            damages.append(Damage(path, str(error)))
        except (LookupError, TypeError, ValueError) as error:  # of facts without a seal
            damages.append(Damage(path, f"{path} is damaged ({one_line(error)})"))
    if not damages:
        return None
    remedy = remedy or f"delete {folder} to start again from round 1"
    reasons = list(dict.fromkeys(damage.reason for damage in damages))
    if len(damages) > 1 and len(reasons) == 1:  # a client's file, which each of them needs
        raise CheckpointError(
            f"{reasons[0]}, and every checkpoint in {folder} needs that file, so none is left to resume from; {remedy}"
        )
    raise CheckpointError(f"no checkpoint in {folder} is intact: {'; '.join(reasons)}; {remedy}")


def _load(path: Path, clients: Path, passed_over: Sequence[Damage]) -> Checkpoint:
    facts = _facts(path)
    _, server = load_sealed(path)
    infos = {info["id"]: ClientInfo(**info) for info in facts["infos"]}
    held = {int(client): classes for client, classes in facts.get("held", {}).items()}
    stored = stored_from(facts["clients"])
    files = ClientFiles(clients)
    for client, parts in stored.items():  # now, while there is one to fall back to
        files.get(client, parts)
    return Checkpoint(Position(**facts["position"]), server, infos, held, stored, tuple(passed_over))


def set_aside(checkpoint: Checkpoint) -> list[str]:
    """Rename the checkpoints that were passed over, so that none counts any more; return a sentence on each."""
    told = []
    for damage in checkpoint.passed_over:
        damage.checkpoint.rename(damage.checkpoint.with_suffix(_DAMAGED))
        told.append(f"{damage.reason}; resuming {checkpoint.position.words}, with the checkpoint before")
    return told


def _facts(path: Path) -> dict[str, Any]:
    """Return what a checkpoint says beside its tensors."""
    facts = sealed_facts(path)
    version = facts.get("schema_version")
    if not isinstance(version, int):
        raise DamagedError(f"{path} is damaged, or not a checkpoint of tinyproto (it has no schema version)")
    if version not in (SCHEMA_VERSION, UNSEALED_VERSION):
        which = "newer" if version > SCHEMA_VERSION else "older"
        raise CheckpointError(
            f"{path} has schema version {version}, this tinyproto knows {SCHEMA_VERSION}; "
            f"resume with the {which} release that wrote it"
        )
    if version == SCHEMA_VERSION and not is_sealed(facts):
        raise DamagedError(f"{path} is damaged (it has no digest)")
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
