"""What happens in a federation, line by line, for people and for whoever shows progress."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any


class Journal:
    """Appends one JSON object per event to a file; an event that cannot be written stops nothing."""

    def __init__(self, file: Path, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self.file = file
        self._now = now

    def tell(self, event: str, **facts: Any) -> None:
        """One line: when, what, and the facts that are not None."""
        known = {key: value for key, value in facts.items() if value is not None}
        line = {"time": self._now().isoformat(timespec="milliseconds"), "event": event, **known}
        with suppress(OSError), self.file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
