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

from tinyproto.tracking.run_folder import append_whole


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
            append_whole(file, line)
