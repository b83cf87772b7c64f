"""Follows a file of JSON lines that another process writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


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
