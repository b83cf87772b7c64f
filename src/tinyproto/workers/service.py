"""A process of ours as it sees itself: it reads parcels from standard input and answers on standard output.

It ends with its input, and on Linux with its parent.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable
from typing import IO

import torch

from tinyproto.errors import LeftOutError, TinyProtoError, one_line

PARENT = "TINYPROTO_PARENT"
"""The variable that tells a process of ours whose it is."""

PARENTS_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""A terminal, or whoever ends a whole process group, sends these to all of it; the parent answers them for all."""

_PR_SET_PDEATHSIG = 1


def open_service(stop: Callable[[], None] | None = None) -> tuple[IO[bytes], IO[bytes]]:
    """Return where requests come from and where answers go, with one thread and deaf to the parent's signals.

    Only a service that can stop in good order hears SIGTERM, by which its parent asks it to `stop`. Until here all of
    them were held back (`workers/child.py`), so that none ends a process that is starting.
    """
    for number in PARENTS_SIGNALS:
        if stop is not None and number is signal.SIGTERM:  # ignored even for a moment, one held back would be lost
            signal.signal(number, lambda _number, _frame: stop())
        else:
            signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, PARENTS_SIGNALS)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.environ.get(PARENT) != str(os.getppid()):  # it ended while this process was starting
        sys.exit()
    requests, answers = sys.stdin.buffer, os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what a user's network prints must not enter the pipe
    torch.set_num_threads(1)
    return requests, answers


def failure(error: Exception) -> dict[str, str]:
    """What went wrong, as the parent will say it: our own sentence, or another library's error with its place.

    The kind "diverged" is of what would fail in the same way if it were run again.
    """
    place = " ".join(getattr(error, "__notes__", []))
    if isinstance(error, LeftOutError):
        return {"error": str(error), "kind": "diverged", "place": place}
    if isinstance(error, TinyProtoError):
        return {"error": str(error), "kind": "ours", "place": place}
    return {"error": one_line(error), "kind": "memory" if _is_out_of_memory(error) else "fault", "place": place}


def _is_out_of_memory(error: Exception) -> bool:
    """Of the device or of the host; libraries below torch say so in words only."""
    words = str(error)
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and ("out of memory" in words or "ALLOC_FAILED" in words)
    )
