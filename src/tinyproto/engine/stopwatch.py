"""Seconds per phase, on a clock that the caller brings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

Clock = Callable[[], float]


class Stopwatch:
    """Adds up the seconds spent in named phases."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.seconds: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the block towards `name`."""
        start = self.clock()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + self.clock() - start

    def take(self) -> dict[str, float]:
        """The seconds so far; counting starts anew."""
        seconds, self.seconds = self.seconds, {}
        return seconds
