"""What happens in a federation, line by line, for people and for whoever shows progress."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tinyproto.tracking.run_folder import append_atomic


class Journal:
    """Appends one JSON object per event to a file; an event that cannot be written stops nothing."""

    def __init__(self, file: Path, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self.file = file
        self._now = now

    def tell(self, event: str, **facts: Any) -> None:
        """One line: when, what, and the facts that are not None."""
        known = {key: value for key, value in facts.items() if value is not None}
        line = {"time": self._now().isoformat(timespec="milliseconds"), "event": event, **known}
        with suppress(OSError):
            self._append(json.dumps(line).encode() + b"\n")

    def _append(self, line: bytes) -> None:
        """The whole line or nothing of it, on a line of its own whatever a crash left before it."""
        with self.file.open("a+b", buffering=0) as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # what another process adds meanwhile must not be cut off with ours
            end = file.seek(0, os.SEEK_END)
            if end:
                file.seek(end - 1)
                line = line if file.read(1) == b"\n" else b"\n" + line
            append_atomic(file, line)


class Follower:
    """Gives each event once, in order; those that are there at the start are of the past."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._read = file.stat().st_size if file.is_file() else 0

        self._past = self._read

    def past(self) -> list[dict[str, Any]]:
        """What was there at the start."""
        return _events(self._bytes(0, self._past))

    def new(self) -> list[dict[str, Any]]:
        """What was added since; a line that is not whole yet comes later, one that is no event is passed over."""
        whole, _, _ = self._bytes(self._read).rpartition(b"\n")
        if whole:
            self._read += len(whole) + 1
        return _events(whole)

    def _bytes(self, begin: int, length: int = -1) -> bytes:
        try:
            with self.file.open("rb") as stream:
                stream.seek(begin)
                return stream.read(length)
        except OSError:
            return b""


def _events(lines: bytes) -> list[dict[str, Any]]:
    return [event for line in lines.split(b"\n") if (event := _event(line)) is not None]


def _event(line: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) and isinstance(found.get("event"), str) else None
