"""`progress.jsonl`: the events of a federation, one JSON object a line, for people and for progress displays.

`writing` serves whatever else a federation writes, `telling_failure` the process of a coordinator.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tinyproto.errors import FederationError, TinyProtoError, one_line
from tinyproto.storage.atomic import append_atomic


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Turn errors of the disk into a FederationError that names the folder."""
    try:
        yield
    except OSError as error:
        raise FederationError(f"cannot write to {folder}: {error.strerror or error}") from error


@contextmanager
def telling_failure(folder: Path) -> Iterator[None]:
    """Write the error that ends a coordinator into its `progress.jsonl`, and raise it again."""
    try:
        yield
    except Exception as error:
        reason = str(error) if isinstance(error, TinyProtoError) else one_line(error)
        Journal(folder / "progress.jsonl").tell("failed", reason=reason)
        raise


class Journal:
    """Appends events to a file; an event that cannot be written is lost and stops nothing."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def tell(self, event: str, **facts: Any) -> None:
        """Append one event with the time and the facts that are not None."""
        known = {key: value for key, value in facts.items() if value is not None}
        line = {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), "event": event, **known}
        with suppress(OSError):
            self._append(json.dumps(line).encode() + b"\n")

    def _append(self, line: bytes) -> None:
        """Append all of a line or none of it, and start a new line if a crash left half of one.

        The lock is the file's own (filelock needs a second file), so that a failed write cuts off no other process's.
        """
        with self.file.open("a+b", buffering=0) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            end = file.seek(0, os.SEEK_END)
            if end:
                file.seek(end - 1)
                line = line if file.read(1) == b"\n" else b"\n" + line
            append_atomic(file, line)


class Follower:
    """Reads a journal while other processes write it; events that exist at the start are past events."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._read = self._past = file.stat().st_size if file.is_file() else 0

    def past(self) -> list[dict[str, Any]]:
        """Return the events that existed at the start."""
        return _events(self._bytes(0, self._past))

    def new(self) -> list[dict[str, Any]]:
        """Return the events added since the last call; skip lines that are no event, leave a half line for later."""
        complete, newline, _ = self._bytes(self._read).rpartition(b"\n")
        self._read += len(complete) + len(newline)
        return _events(complete)

    def _bytes(self, begin: int, length: int = -1) -> bytes:
        try:
            with self.file.open("rb") as stream:
                stream.seek(begin)
                return stream.read(length)
        except OSError:
            return b""


def _events(lines: bytes) -> list[dict[str, Any]]:
    found = []
    for line in lines.split(b"\n"):
        with suppress(ValueError):
            event = json.loads(line)
            if isinstance(event, dict) and isinstance(event.get("event"), str):
                found.append(event)
    return found
