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

    def new(self) -> list[dict[str, Any]]:
        """What was added since; a line that is not whole yet comes later."""
        try:
            with self.file.open("rb") as stream:
                stream.seek(self._read)
                whole, _, _ = stream.read().rpartition(b"\n")
        except FileNotFoundError:
            return []
        if whole:
            self._read += len(whole) + 1
        return [json.loads(line) for line in whole.splitlines() if line.strip()]
