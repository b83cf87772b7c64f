"""How fast a run goes on, and how long it will take from here."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

RECENT = 64
"""Rounds, over all cells, whose pace counts: algorithms differ, so what was long ago says little."""


class Pace:
    """The time that rounds will take, by the pace of the latest."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._times = deque([clock()], maxlen=RECENT + 1)

    def tick(self) -> None:
        """A round was played."""
        self._times.append(self._clock())

    def seconds_for(self, rounds: int) -> float | None:
        """Seconds; None before anything was played."""
        played = len(self._times) - 1
        return None if not played else rounds * (self._clock() - self._times[0]) / played


def clock_words(seconds: float | None) -> str:
    """Minutes and seconds, with hours where there are any."""
    if seconds is None:
        return "–:––"
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}" if minutes >= 60 else f"{minutes}:{rest:02}"
