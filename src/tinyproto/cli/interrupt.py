"""Ctrl-C, SIGTERM, SIGHUP: the first asks to stop in good order, the second ends at once; what was ignored stays so."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any

from tinyproto.errors import Interrupted

ENDING = (signal.SIGTERM, signal.SIGHUP)
"""Signals that ask a command to end, beside Ctrl-C."""

ONE_REQUEST_SECONDS = 0.2
"""Signals this close together are one request: `timeout` and a closing terminal send theirs twice."""


class StopOnInterrupt:
    """While open, the first interrupt is only noted, and so are the other signals that are named.

    A signal that is ignored stays ignored: who started this with `nohup`, or in the background of a script, wants so.
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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _put_back(self._before)

    @property
    def status(self) -> int:
        """The exit status of a command that the latest signal ended."""
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
    """While open, SIGTERM and SIGHUP raise KeyboardInterrupt as Ctrl-C does; it leaves as Interrupted, with its status.

    For what comes before a run begins. `words` say where things stand then.
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
        _put_back(before)


@contextmanager
def importing() -> Iterator[None]:
    """Hold signals back while modules are imported, which may turn an interrupt in their middle into another error."""
    with StopOnInterrupt(*ENDING) as stop:
        yield
    if stop.wanted:
        signal.raise_signal(signal.Signals(stop.status - 128))


Handlers = dict[signal.Signals, Any]


def _handle(numbers: tuple[signal.Signals, ...], handler: Callable[[int, FrameType | None], None]) -> Handlers:
    """Have these signals handled unless they are ignored; return what handled them before."""
    heard = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
    return {number: signal.signal(number, handler) for number in heard}


def _put_back(before: Handlers) -> None:
    for number, handler in before.items():
        signal.signal(number, handler)
