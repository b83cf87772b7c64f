"""The records of a run folder, read while the run writes them: its own file and those of cells in progress."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

KEPT = ("round", "closing", "accuracy", "traffic")
"""Keys of a round that are kept as they are; the clients' columns would fill the memory."""

Rounds = dict[int, dict[str, Any]]


class RunRecords:
    """The rounds of each cell by label and seed. A cell's own folder and the run's files may hold the same round."""

    def __init__(self, folder: Path, *, new: bool) -> None:
        self.cells: dict[tuple[str, int], Rounds] = {}
        self._folder = folder
        self._lengths: dict[Path, int] = {}  # bytes read of each file
        self._run = self._before = self._identity() if new else None  # an earlier run that is about to be replaced

    def read(self) -> bool:
        """Read what was written since the last call; return True if there was anything."""
        identity = self._identity()
        if identity is None or identity == self._before:
            return False
        files = [self._folder / "rounds.jsonl", *sorted(self._folder.glob("cells/*/rounds.jsonl"))]
        shorter = any(_length(file) < length for file, length in self._lengths.items() if file.exists())
        if identity != self._run or shorter:  # another run, or one that resumes from a checkpoint
            self._run, self.cells, self._lengths = identity, {}, {}
        return sum(self._follow(file) for file in files) > 0

    def _identity(self) -> tuple[int, int] | None:
        """Return what distinguishes this run from another one in the same folder: its config.yaml."""
        with suppress(OSError):
            found = (self._folder / "config.yaml").stat()
            return found.st_ino, found.st_mtime_ns
        return None

    def _follow(self, file: Path) -> bool:
        """Read the complete lines that were added to a file."""
        with suppress(OSError), file.open("rb") as stream:
            start = self._lengths.get(file, 0)
            stream.seek(start)
            complete, newline, _ = stream.read().rpartition(b"\n")  # half a line is left for later
            self._lengths[file] = start + len(complete) + len(newline)
            for line in complete.splitlines():
                with suppress(ValueError, KeyError, TypeError):
                    self._add(json.loads(line))
            return bool(newline)
        return False

    def _add(self, record: dict[str, Any]) -> None:
        kept = {key: record[key] for key in KEPT} | {"participants": len(record["participants"])}
        absent = {key: record[key] for key in ("dropped", "late") if key in record}
        self.cells.setdefault((record["label"], record["seed"]), {})[record["round"]] = kept | absent


def _length(file: Path) -> int:
    with suppress(OSError):
        return file.stat().st_size
    return 0
