"""The run folder: created or refused before anything is trained, filled while the run proceeds."""

from __future__ import annotations

import gzip
import json
import os
import re
import shlex
import shutil
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import safetensors.torch
import yaml
from torch import Tensor

from tinyproto.engine.measure import WAYS, Cost, Direction
from tinyproto.engine.round import ClientRecord, RoundRecord
from tinyproto.errors import RunFolderError, one_line
from tinyproto.storage.atomic import append_atomic, partial_name, write_atomic
from tinyproto.storage.tensor_files import disk_words
from tinyproto.tracking.summary import SCHEMA_VERSION, RoundResult

SERVE_FILE = "serve.json"
"""The file that only the run folder of a coordinator has."""

FILES = {
    "config.yaml", "environment.json", "federation.json", "rounds.jsonl", "timings.jsonl", "prototypes.safetensors",
    "summary.json", "report.html", "checkpoint", "clients", "cells", "models", SERVE_FILE, "progress.jsonl",
    "flower", "mqtt", "tracking",
}  # fmt: skip


PACKED = ".gz"
"""The suffix of compressed files of lines; committed records have them, since they have to be small."""


_UNREADABLE = (
    OSError, ValueError, LookupError, TypeError, AttributeError, EOFError, zlib.error, yaml.YAMLError,
    safetensors.SafetensorError,
)  # fmt: skip


class RunFolder:
    """`runs/<name>/` and the files in it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, path: Path, *, overwrite: bool, aside: Path | None = None) -> RunFolder:
        """Create an empty folder; with `overwrite`, replace an existing run, or move it `aside`.

        Never delete anything else.
        """
        folder = cls(path)
        with folder.writing():
            if path.exists():
                _check_replaceable(path, overwrite)
                if aside is None:
                    shutil.rmtree(path)
                else:
                    shutil.rmtree(aside, ignore_errors=True)  # left by a start that was killed
                    path.rename(aside)
            path.mkdir(parents=True)
        return folder

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """Return an existing run; raise RunFolderError if there is none."""
        if not (path / "config.yaml").is_file():
            raise not_a_run(path)
        return cls(path)

    def inner(self, *names: str) -> RunFolder:
        """Return a folder inside it with the same kinds of files, such as one cell's; it may not exist yet."""
        return RunFolder(self.path.joinpath(*names))

    @property
    def run(self) -> Path:
        """The run folder whose `cells` holds this folder; otherwise this folder itself."""
        above = self.path.parent.parent
        return above if self.path.parent.name == "cells" and (above / "config.yaml").is_file() else self.path

    def make(self) -> None:
        """Create the folder if it is missing."""
        with self.writing():
            self.path.mkdir(parents=True, exist_ok=True)

    def remove(self) -> None:
        """Remove the folder with all its files."""
        with self.writing():
            if self.path.exists():
                shutil.rmtree(self.path)

    @property
    def checkpoints(self) -> Path:
        """The folder of this run's checkpoints."""
        return self.path / "checkpoint"

    @property
    def clients(self) -> Path:
        """The folder of client states that are not in memory, or that a checkpoint refers to."""
        return self.path / "clients"

    def size(self, name: str) -> int:
        """Return the length of one of its files in bytes; 0 if it does not exist yet."""
        file = self.path / name
        return file.stat().st_size if file.is_file() else 0

    def cut(self, name: str, length: int) -> None:
        """Shorten one of its files to the length it had at a checkpoint."""
        if self.size(name) < length:
            raise RunFolderError(f"{self.path / name} is shorter than the checkpoint says; it was changed since")
        if self.size(name) > length:
            with self.writing(name):
                os.truncate(self.path / name, length)

    def read_results(self) -> list[dict[str, Any]]:
        """Return the results of the completed cells, from summary.json."""
        if not self.size("summary.json"):
            return []
        with reading(self.path / "summary.json") as file:
            results: list[dict[str, Any]] = json.loads(file.read_text(encoding="utf-8"))["results"]
            return list(results)

    def read_rounds(self, identity: dict[str, Any]) -> Iterator[RoundResult]:
        """Yield the recorded rounds of one cell; only one of them is in memory."""
        records, timings = (self._lines(name, identity) for name in ("rounds.jsonl", "timings.jsonl"))
        with reading(self.path / "timings.jsonl"):
            for record, timing in zip(records, timings, strict=True):
                with reading(self.path / "rounds.jsonl"):
                    known = record_from(record)
                yield RoundResult(known, timing["seconds"], sockets=sockets_from(timing.get("socket_bytes")))

    def read_prototypes(self) -> dict[str, Tensor]:
        """Return the prototypes of the completed cells."""
        with reading(self.path / "prototypes.safetensors") as file:
            return safetensors.torch.load_file(file) if file.is_file() else {}

    def _lines(self, name: str, identity: dict[str, Any]) -> Iterator[dict[str, Any]]:
        if not self.size(name):
            return
        with reading(self.path / name) as file, file.open(encoding="utf-8") as stream:
            yield from (line for line in map(json.loads, stream) if identity.items() <= line.items())

    def write_config(self, resolved: dict[str, Any]) -> None:
        """Write the config with everything decided: running it repeats the run, on a GPU within noise."""
        self._write("config.yaml", yaml.safe_dump(resolved, sort_keys=False, allow_unicode=True))

    def write_json(self, name: str, value: Any) -> None:
        """Write one JSON file completely or not at all."""
        self._write(name, json.dumps(value, indent=1) + "\n")

    def write_results(self, results: list[dict[str, Any]]) -> None:
        """Write summary.json with the results of the completed cells."""
        self.write_json("summary.json", {"schema_version": SCHEMA_VERSION, "results": results})

    def append_round(self, identity: dict[str, Any], result: RoundResult) -> None:
        """Append a line to rounds.jsonl, which repeats byte for byte, and one to timings.jsonl, which does not."""
        self._append("rounds.jsonl", {**identity, **record_values(result.record)})
        timing: dict[str, Any] = {"round": result.record.round, "seconds": result.seconds}
        if result.steps is not None:
            timing["steps"] = asdict(result.steps)
        if result.sockets is not None:
            timing["socket_bytes"] = {
                "id": list(result.sockets), **{way: [used[way] for used in result.sockets.values()] for way in WAYS}
            }  # fmt: skip
        self._append("timings.jsonl", {**identity, **timing})

    def write_prototypes(self, tensors: dict[str, Tensor]) -> None:
        """Write local and global prototypes at the end of each cell, for figures."""
        partial = self.path / partial_name("prototypes.safetensors")
        with self.writing("prototypes.safetensors"):
            safetensors.torch.save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, partial)
            partial.replace(self.path / "prototypes.safetensors")

    def append_file(self, name: str, other: RunFolder) -> None:
        """Append another folder's file of that name to this one's."""
        self._append_bytes(name, (other.path / name).read_bytes())

    def _append(self, name: str, value: Any) -> None:
        """Append one line, completely or not at all."""
        self._append_bytes(name, (json.dumps(value, separators=(",", ":")) + "\n").encode())

    def _append_bytes(self, name: str, data: bytes) -> None:
        with self.writing(name), (self.path / name).open("ab", buffering=0) as file:
            append_atomic(file, data)

    def _write(self, name: str, text: str) -> None:
        with self.writing(name):
            write_atomic(self.path / name, text)

    @contextmanager
    def writing(self, name: str = "") -> Iterator[None]:
        """Turn errors in writing a file into a RunFolderError that names it."""
        try:
            yield
        except (OSError, safetensors.SafetensorError) as error:
            raise RunFolderError(f"cannot write {self.path / name}: {disk_words(error)}") from error


@contextmanager
def reading(file: Path) -> Iterator[Path]:
    """Provide the path of a file; turn errors in reading it into a RunFolderError that names it."""
    try:
        yield file
    except _UNREADABLE as error:
        raise RunFolderError(f"{file} cannot be read: {one_line(error)}") from error


def _check_replaceable(path: Path, overwrite: bool) -> None:
    """Raise RunFolderError unless this is an existing run that may be replaced."""
    if not overwrite:
        raise RunFolderError(
            f"{path} exists already; use --overwrite to replace it, name=NEW or --runs DIR for another folder, "
            f"or `{how_to_resume(path)}` to resume it"
        )
    names = {entry.name for entry in path.iterdir()} if path.is_dir() else {path.name}
    known = names <= FILES | {partial_name(name) for name in FILES}
    config = path / "config.yaml"
    begun = config.is_file() and config.read_bytes().startswith(b"schema_version:")
    if names and not (known and (begun or names == {partial_name("config.yaml")})):
        raise RunFolderError(f"{path} is not a run folder and is not overwritten; choose another name")


def not_a_run(path: Path) -> RunFolderError:
    """Return the error for a path that is not a run folder, with the run in `runs` that was probably meant."""
    reason = "it has no config.yaml" if path.is_dir() else "it is a file" if path.exists() else "it does not exist"
    meant = Path("runs") / path
    hint = f"; did you mean {meant}?" if (meant / "config.yaml").is_file() else ""
    return RunFolderError(f"{path} is not a run folder: {reason}{hint}")


def is_federation(path: Path) -> bool:
    """Return True for the run folder of a coordinator, whose clients are elsewhere."""
    return (path / SERVE_FILE).is_file()


def how_to_resume(path: Path) -> str:
    """Return the command that resumes a run folder."""
    name = shlex.quote(str(path))
    return f"tinyproto serve {name} --resume" if is_federation(path) else f"tinyproto resume {name}"


def sockets_from(columns: dict[str, list[int]] | None) -> dict[int, dict[Direction, int]] | None:
    """Return the bytes on the network by client, as timings.jsonl has them in columns; None if it has none."""
    if columns is None:
        return None
    return {client: {way: columns[way][row] for way in WAYS} for row, client in enumerate(columns["id"])}


def run_folders(root: Path) -> list[Path]:
    """Return the run folders in a folder, itself or at any depth, without hidden ones; a run contains no other."""
    found: list[Path] = []
    for folder, inner, files in os.walk(root):
        is_run = "config.yaml" in files
        inner[:] = [] if is_run else sorted(name for name in inner if not name.startswith("."))
        if is_run:
            found.append(Path(folder))
    return found


def cell_name(label: str, seed: int) -> str:
    """Return the name of a cell's folder: its label, reduced to characters that any file system takes, and its seed."""
    plain = re.sub(r"[^\w.,=()-]+", "_", label, flags=re.ASCII)
    return f"{plain[:80]}-{seed}"


def lines_kept(file: Path) -> bytes:
    """Return the content of a file of lines, or of the compressed file that a record has instead."""
    packed = file.with_name(f"{file.name}{PACKED}")
    return gzip.decompress(packed.read_bytes()) if packed.is_file() and not file.is_file() else file.read_bytes()


def record_values(record: RoundRecord) -> dict[str, Any]:
    """Return a record as plain values; clients are columns, which take a fifth of the space of one mapping each."""
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
    """Return a mapping with keys that JSON keeps."""
    return {str(client): value for client, value in by_client.items()}


def record_from(values: dict[str, Any]) -> RoundRecord:
    """Return the record that `record_values` wrote."""
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
