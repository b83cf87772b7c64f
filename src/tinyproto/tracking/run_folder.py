"""The run folder: refused or made before anything is trained, filled while the run goes on."""

from __future__ import annotations

import errno
import gzip
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import Any

import safetensors.torch
import yaml
from torch import Tensor

from tinyproto.engine.measure import WAYS, Cost, Direction
from tinyproto.engine.round import ClientRecord, RoundRecord
from tinyproto.errors import RunFolderError, one_line
from tinyproto.simulation.loop import PlayedRound
from tinyproto.storage.tensor_files import disk_words
from tinyproto.tracking.summary import SCHEMA_VERSION

SERVE_FILE = "serve.json"
"""Is in the run folder of a coordinator, and in no other."""

FILES = {
    "config.yaml", "environment.json", "federation.json", "rounds.jsonl", "timings.jsonl", "prototypes.safetensors",
    "summary.json", "report.html", "checkpoint", "clients", "cells", "models", SERVE_FILE, "progress.jsonl",
    "flower",
}  # fmt: skip


PACKED = ".gz"
"""Ends the name of a file of lines in a record, which are many and have to be small."""


class RunFolder:
    """`runs/<name>/` and the files in it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, path: Path, *, overwrite: bool) -> RunFolder:
        """Make an empty folder; an existing run is refused, or replaced if told so. Anything else is never deleted."""
        try:
            if path.exists():
                cls.check_replaceable(path, overwrite)
                shutil.rmtree(path)
            path.mkdir(parents=True)
        except OSError as error:
            raise RunFolderError(f"cannot write the run folder {path}: {error.strerror or error}") from error
        return cls(path)

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """An existing run."""
        if not (path / "config.yaml").is_file():
            raise RunFolderError(f"{path} is not a run folder: there is no config.yaml in it")
        return cls(path)

    def inner(self, *names: str) -> RunFolder:
        """A folder inside it with the same kinds of files, such as one cell's; it may not be there yet."""
        return RunFolder(self.path.joinpath(*names))

    def make(self) -> None:
        """Have it there."""
        with self.writing():
            self.path.mkdir(parents=True, exist_ok=True)

    def remove(self) -> None:
        """Have it gone, with all in it."""
        with self.writing():
            if self.path.exists():
                shutil.rmtree(self.path)

    @property
    def checkpoints(self) -> Path:
        """Where this run's checkpoints are."""
        return self.path / "checkpoint"

    @property
    def clients(self) -> Path:
        """Where the states of clients are that are not in memory, or that a checkpoint speaks of."""
        return self.path / "clients"

    def size(self, name: str) -> int:
        """The length of one of its files, in bytes; 0 where it is not there yet."""
        file = self.path / name
        return file.stat().st_size if file.is_file() else 0

    def cut(self, name: str, length: int) -> None:
        """Shorten one of its files to what it was."""
        if self.size(name) < length:
            raise RunFolderError(f"{self.path / name} is shorter than the checkpoint says; it was changed since")
        if self.size(name) > length:
            with self.writing(name):
                os.truncate(self.path / name, length)

    def read_results(self) -> list[dict[str, Any]]:
        """The results of the cells that are done, from summary.json."""
        if not self.size("summary.json"):
            return []
        with self.reading("summary.json") as file:
            results: list[dict[str, Any]] = json.loads(file.read_text(encoding="utf-8"))["results"]
            return list(results)

    def read_rounds(self, identity: dict[str, Any]) -> list[PlayedRound]:
        """What was recorded of one cell."""
        with self.reading("rounds.jsonl"):
            records = [record_from(record) for record in self._lines("rounds.jsonl", identity)]
        with self.reading("timings.jsonl"):
            timings = self._lines("timings.jsonl", identity)
            return [
                PlayedRound(record, timing["seconds"], sockets=_sockets_from(timing.get("socket_bytes")))
                for record, timing in zip(records, timings, strict=True)
            ]

    def read_prototypes(self) -> dict[str, Tensor]:
        """The prototypes of the cells that are done."""
        with self.reading("prototypes.safetensors") as file:
            return safetensors.torch.load_file(file) if file.is_file() else {}

    def _lines(self, name: str, identity: dict[str, Any]) -> list[dict[str, Any]]:
        text = (self.path / name).read_text(encoding="utf-8") if self.size(name) else ""
        lines = [json.loads(line) for line in text.splitlines()]
        return [line for line in lines if identity.items() <= line.items()]

    @staticmethod
    def check_replaceable(path: Path, overwrite: bool) -> None:
        """An existing run, if told so; never anything else."""
        if not overwrite:
            raise RunFolderError(
                f"{path} exists already; --overwrite replaces it, name=NEW or --runs DIR goes elsewhere, and "
                f"`{how_to_go_on(path)}` goes on with it"
            )
        names = {entry.name for entry in path.iterdir()} if path.is_dir() else {path.name}
        known = names <= FILES | {_partial(name) for name in FILES}
        config = path / "config.yaml"
        begun = config.is_file() and config.read_bytes().startswith(b"schema_version:")
        if names and not (known and (begun or names == {_partial("config.yaml")})):
            raise RunFolderError(f"{path} is not a run folder, so it is not overwritten; choose another name")

    def write_config(self, resolved: dict[str, Any]) -> None:
        """The config with everything decided; running it again repeats the run."""
        self._write("config.yaml", yaml.safe_dump(resolved, sort_keys=False, allow_unicode=True))

    def write_json(self, name: str, value: Any) -> None:
        """One JSON file, whole or not at all."""
        self._write(name, json.dumps(value, indent=1) + "\n")

    def write_results(self, results: list[dict[str, Any]]) -> None:
        """summary.json: what the cells that are done came to."""
        self.write_json("summary.json", {"schema_version": SCHEMA_VERSION, "results": results})

    def append_round(self, identity: dict[str, Any], played: PlayedRound) -> None:
        """One line for the record, which repeats byte for byte, and one for the clock, which does not."""
        record = record_values(played.record)
        self._append("rounds.jsonl", {**identity, **record})
        timing: dict[str, Any] = {"round": played.record.round, "seconds": played.seconds}
        if played.steps is not None:
            timing["steps"] = asdict(played.steps)
        if played.sockets is not None:
            timing["socket_bytes"] = {
                "id": list(played.sockets), **{way: [used[way] for used in played.sockets.values()] for way in WAYS}
            }  # fmt: skip
        self._append("timings.jsonl", {**identity, **timing})

    def write_prototypes(self, tensors: dict[str, Tensor]) -> None:
        """Local and global prototypes at the end of each run, for figures."""
        partial = self.path / _partial("prototypes.safetensors")
        with self.writing("prototypes.safetensors"):
            safetensors.torch.save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, partial)
            partial.replace(self.path / "prototypes.safetensors")

    def append_file(self, name: str, other: RunFolder) -> None:
        """Another folder's file of that name to the end of this one's."""
        self._append_bytes(name, (other.path / name).read_bytes())

    def _append(self, name: str, value: Any) -> None:
        """One whole line, or none of it."""
        self._append_bytes(name, (json.dumps(value, separators=(",", ":")) + "\n").encode())

    def _append_bytes(self, name: str, data: bytes) -> None:
        with self.writing(name), (self.path / name).open("ab", buffering=0) as file:
            append_whole(file, data)

    def _write(self, name: str, text: str) -> None:
        with self.writing(name):
            write_whole(self.path / name, text)

    @contextmanager
    def reading(self, name: str) -> Iterator[Path]:
        """The file; one that is not what a run writes is an error that names it."""
        file = self.path / name
        try:
            yield file
        except (OSError, ValueError, LookupError, TypeError, AttributeError, safetensors.SafetensorError) as error:
            raise RunFolderError(f"{file} cannot be read: {one_line(error)}") from error

    @contextmanager
    def writing(self, name: str = "") -> Iterator[None]:
        """What goes wrong with the disk is an error that names the file."""
        try:
            yield
        except (OSError, safetensors.SafetensorError) as error:
            raise RunFolderError(f"cannot write {self.path / name}: {disk_words(error)}") from error


class NewRun:
    """A run folder made anew that is undone on leaving unless it is kept; until then what it replaces lies beside it.

    After a kill in between, that is in `.NAME.before`, until the run is replaced once more.
    """

    def __init__(self, path: Path, *, overwrite: bool) -> None:
        self.folder = RunFolder(path)
        self._before = path.with_name(f".{path.name}.before")
        self._overwrite = overwrite
        self._kept = False

    def __enter__(self) -> NewRun:
        path = self.folder.path
        with self.folder.writing():
            if self._before.exists() and not path.exists():
                self._before.rename(path)
            if path.exists():
                RunFolder.check_replaceable(path, self._overwrite)
                _remove(self._before)
                path.rename(self._before)
            path.mkdir(parents=True)
        return self

    def keep(self) -> None:
        """It has begun: what was there before goes."""
        self._kept = True
        with self.folder.writing():
            _remove(self._before)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._kept:
            return
        with self.folder.writing():
            _remove(self.folder.path)
            if self._before.exists():
                self._before.rename(self.folder.path)


def _remove(path: Path) -> None:
    if path.is_symlink():  # such as a run that is kept elsewhere: that stays
        path.unlink()
    elif path.exists():
        shutil.rmtree(path)


def append_whole(file: FileIO, data: bytes) -> None:
    """All of it at the end of an open file; or nothing, and an OSError."""
    start = file.seek(0, os.SEEK_END)
    try:
        if file.write(data) != len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    except OSError:
        file.truncate(start)
        raise


def is_federation(path: Path) -> bool:
    """Whether a run folder is a coordinator's, whose clients are elsewhere; a simulation has no place in it."""
    return (path / SERVE_FILE).is_file()


def how_to_go_on(path: Path) -> str:
    """The command that goes on with what is in a run folder."""
    return f"tinyproto serve {path} --resume" if is_federation(path) else f"tinyproto resume {path}"


def _sockets_from(columns: dict[str, list[int]] | None) -> dict[int, dict[Direction, int]] | None:
    if columns is None:
        return None
    return {client: {way: columns[way][row] for way in WAYS} for row, client in enumerate(columns["id"])}


def run_folders(root: Path) -> list[Path]:
    """The run folders in a folder, itself or however deep; inside one there are no others. What is hidden stays so."""
    found: list[Path] = []
    for folder, inner, files in os.walk(root):
        is_run = "config.yaml" in files
        inner[:] = [] if is_run else sorted(name for name in inner if not name.startswith("."))
        if is_run:
            found.append(Path(folder))
    return found


def cell_name(label: str, seed: int) -> str:
    """The name of a cell's folder: its label without what a file system might not take, and its seed."""
    plain = re.sub(r"[^\w.,=()-]+", "_", label, flags=re.ASCII)
    return f"{plain[:80]}-{seed}"


def lines_kept(file: Path) -> bytes:
    """What is in a file of lines, or in the packed one that a record has in its place."""
    packed = file.with_name(f"{file.name}{PACKED}")
    return gzip.decompress(packed.read_bytes()) if packed.is_file() and not file.is_file() else file.read_bytes()


def write_whole(file: Path, text: str) -> None:
    """A file that is there whole or as it was."""
    partial = file.with_name(_partial(file.name))
    partial.write_text(text, encoding="utf-8")
    partial.replace(file)


def _partial(name: str) -> str:
    return f".{name}.partial"


def record_values(record: RoundRecord) -> dict[str, Any]:
    """A record as plain values; clients are columns, which takes a fifth of the space of a mapping per client."""
    clients = record.clients.values()
    return {
        "round": record.round,
        "closing": record.closing,
        "participants": list(record.participants),
        "accuracy": record.accuracy,
        "client_mean": record.client_mean,
        "loss": record.loss,
        "traffic": {
            purpose: {way: cost._asdict() for way, cost in ways.items()} for purpose, ways in record.traffic.items()
        },
        "refused": _by_text(record.refused),
        **({"server": record.server} if record.server else {}),
        **({"distrusted": _by_text(record.distrusted)} if record.distrusted else {}),
        **{key: list(found) for key, found in (("dropped", record.dropped), ("late", record.late)) if found},
        "clients": {
            "id": list(record.clients),
            "test_samples": [client.test_samples for client in clients],
            "correct": {rule: [client.correct[rule] for client in clients] for rule in record.accuracy},
            "payload_bytes": {way: [client.payload_bytes[way] for client in clients] for way in WAYS},
            "wire_bytes": {way: [client.wire_bytes[way] for client in clients] for way in WAYS},
        },
    }


def _by_text(by_client: Mapping[int, Any]) -> dict[str, Any]:
    """As JSON takes a mapping."""
    return {str(client): value for client, value in by_client.items()}


def record_from(values: dict[str, Any]) -> RoundRecord:
    """The record that `record_values` wrote."""
    columns = values["clients"]
    clients = {
        client: ClientRecord(
            test_samples=columns["test_samples"][row],
            correct={rule: column[row] for rule, column in columns["correct"].items()},
            payload_bytes={way: columns["payload_bytes"][way][row] for way in WAYS},
            wire_bytes={way: columns["wire_bytes"][way][row] for way in WAYS},
        )
        for row, client in enumerate(columns["id"])
    }
    return RoundRecord(
        round=values["round"],
        closing=values["closing"],
        participants=tuple(values["participants"]),
        accuracy=values["accuracy"],
        client_mean=values["client_mean"],
        loss=values["loss"],
        traffic={purpose: {way: Cost(**ways[way]) for way in WAYS} for purpose, ways in values["traffic"].items()},
        clients=clients,
        refused={int(client): reason for client, reason in values["refused"].items()},
        server=values.get("server", {}),
        distrusted={int(client): rows for client, rows in values.get("distrusted", {}).items()},
        dropped=tuple(values.get("dropped", ())),
        late=tuple(values.get("late", ())),
    )
