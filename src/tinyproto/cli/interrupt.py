"""Ctrl-C, SIGTERM and SIGHUP: the first asks for an orderly stop, the second ends at once."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from types import FrameType

ENDING = (signal.SIGTERM, signal.SIGHUP)
"""Signals that ask a command to end, besides Ctrl-C."""

ONE_REQUEST_SECONDS = 0.2
"""Signals this close together are one request: `timeout` and a closing terminal send theirs twice."""


class StopOnInterrupt:
    """While open, note the first Ctrl-C, or the first of `others`, instead of ending.

    An ignored signal stays ignored: that is the wish of whoever started this with `nohup` or in the background.
    """

    def __init__(self, *others: signal.Signals, clock: Callable[[], float] = time.monotonic) -> None:
        self.wanted = False
        self._signals = (signal.SIGINT, *others)
        self._clock = clock
        self._last = signal.SIGINT.value
        self._noted_at = 0.0

    def __enter__(self) -> StopOnInterrupt:
        heard = [number for number in self._signals if signal.getsignal(number) is not signal.SIG_IGN]
        self._before = {number: signal.signal(number, self._note) for number in heard}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @property
    def status(self) -> int:
        """Return the exit status of a command that the latest signal ended."""
        return 128 + self._last

    def _note(self, number: int, _frame: FrameType | None) -> None:
        now = self._clock()
        if self.wanted and now - self._noted_at < ONE_REQUEST_SECONDS:
            return
        self._last = number
        if self.wanted:
            raise KeyboardInterrupt
        self.wanted, self._noted_at = True, now
