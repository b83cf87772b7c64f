"""Ctrl-C: the first asks a run to stop after its round, the second ends it at once."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType


class StopOnInterrupt:
    """While open, the first interrupt is only noted."""

    def __init__(self) -> None:
        self.wanted = False

    def __enter__(self) -> StopOnInterrupt:
        self._before = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.signal(signal.SIGINT, self._before)

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        if self.wanted:
            raise KeyboardInterrupt
        self.wanted = True
