"""Test reliability for minutes: kills, damage, long runs, full disks, races and a lost broker, with a verdict on each.

    python -m benchmarks soak [--only kills frames rounds disk resumes outage] [--seed N] [--json FILE]

docs/explain/reliability.md has the figures of the latest run.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field
from typing import Any

SECONDS_BETWEEN_LINES = 20.0


@dataclass
class Verdict:
    """The result of one part: figures to publish, and what went wrong."""

    figures: dict[str, Any] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    skipped: str | None = None  # why it could not be tried here

    @property
    def word(self) -> str:
        """Return the verdict in one word."""
        return "failed" if self.failures else "skipped" if self.skipped else "passed"


class Line:
    """Shows the progress of a part: one line that is overwritten on a terminal, a new one now and then elsewhere."""

    def __init__(self, part: str) -> None:
        self._part = part
        self._last = 0.0

    def show(self, words: str) -> None:
        """Replace the shown text."""
        if sys.stdout.isatty():
            print(f"\r\x1b[K{self._part}: {words}", end="", flush=True)
        elif time.monotonic() - self._last >= SECONDS_BETWEEN_LINES:
            print(f"{self._part}: {words}", flush=True)
            self._last = time.monotonic()

    def end(self) -> None:
        """Clear the line, so that the verdict takes its place."""
        if sys.stdout.isatty():
            print("\r\x1b[K", end="", flush=True)
