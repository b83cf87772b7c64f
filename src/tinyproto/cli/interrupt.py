"""Ctrl-C: the first asks to stop in good order, the second ends at once."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType


class StopOnInterrupt:
    """While open, the first interrupt is only noted; so is SIGTERM, where it is named too."""

    def __init__(self, *others: signal.Signals) -> None:
        self.wanted = False
        self._signals = (signal.SIGINT, *others)

    def __enter__(self) -> StopOnInterrupt:
        self._before = {number: signal.signal(number, self._note) for number in self._signals}
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
