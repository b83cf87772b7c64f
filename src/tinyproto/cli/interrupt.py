"""Ctrl-C, SIGTERM and SIGHUP: the first asks for an orderly stop, the second ends at once."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from tinyproto.errors import Interrupted

ENDING = (signal.SIGTERM, signal.SIGHUP)
"""Signals that ask a command to end, besides Ctrl-C."""

ONE_REQUEST_SECONDS = 0.2
"""Signals this close together are one request: `timeout` and a closing terminal send theirs twice."""

Handlers = dict[signal.Signals, Any]


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
        self._before = _handle(self._signals, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        _restore(self._before)

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


@contextmanager
def ending_at_once(words: str) -> Iterator[None]:
    """While open, turn Ctrl-C, SIGTERM and SIGHUP into Interrupted with its exit status.

    For the time before a run begins. `words` describe the state that the command leaves.
    """
    came = signal.SIGINT.value

    def end(number: int, _frame: FrameType | None) -> None:
        nonlocal came
        came = number
        raise KeyboardInterrupt

    before = _handle(ENDING, end)
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(words, 128 + came) from None
    finally:
        _restore(before)


@contextmanager
def importing() -> Iterator[None]:
    """Delay signals while modules are imported; an import may turn an interrupt into another error."""
    with StopOnInterrupt(*ENDING) as stop:
        yield
    if stop.wanted:
        signal.raise_signal(signal.Signals(stop.status - 128))


def _handle(numbers: tuple[signal.Signals, ...], handler: Callable[[int, FrameType | None], None]) -> Handlers:
    """Handle these signals unless they are ignored; return the previous handlers."""
    heard = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
    return {number: signal.signal(number, handler) for number in heard}


def _restore(before: Handlers) -> None:
    for number, handler in before.items():
        signal.signal(number, handler)
