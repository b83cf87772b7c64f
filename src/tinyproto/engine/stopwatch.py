"""Seconds per phase, on a clock that the caller brings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

Clock = Callable[[], float]


class Stopwatch:
    """Adds up the seconds spent in named phases; `synchronise` waits for a device before the clock is read."""

    def __init__(self, clock: Clock, synchronise: Callable[[], None] | None = None) -> None:
        self._clock = clock
        self._synchronise = synchronise
        self.seconds: dict[str, float] = {}

    def now(self) -> float:
        """The time at which all work so far is done."""
        if self._synchronise is not None:
            self._synchronise()
        return self._clock()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the block towards `name`."""
        start = self.now()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + self.now() - start

    def take(self) -> dict[str, float]:
        """The seconds so far; counting starts anew."""
        seconds, self.seconds = self.seconds, {}
        return seconds
