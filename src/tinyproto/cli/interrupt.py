"""Ctrl-C: the first asks to stop in good order, the second ends at once. What was to be ignored stays so."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType


class StopOnInterrupt:
    """While open, the first interrupt is only noted; so is SIGTERM, where it is named too.

    A signal that is ignored stays ignored: who started this with `nohup`, or in the background of a script, wants so.
    """

    def __init__(self, *others: signal.Signals) -> None:
        self.wanted = False
        self._signals = (signal.SIGINT, *others)

    def __enter__(self) -> StopOnInterrupt:
        noted = [number for number in self._signals if signal.getsignal(number) is not signal.SIG_IGN]
        self._before = {number: signal.signal(number, self._note) for number in noted}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        if self.wanted:
            raise KeyboardInterrupt
        self.wanted = True
