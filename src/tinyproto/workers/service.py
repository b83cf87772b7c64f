"""A process of ours as it sees itself: it reads parcels from standard input and answers on standard output.

It ends with its input, and on Linux with its parent.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from typing import IO

import torch

from tinyproto.errors import LeftOutError, TinyProtoError, one_line

PARENT = "TINYPROTO_PARENT"
"""The variable that tells a process of ours whose it is."""

_PR_SET_PDEATHSIG = 1


def open_service() -> tuple[IO[bytes], IO[bytes]]:
    """Where requests come from and where answers go, with one thread and without Ctrl-C, which is the parent's."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
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
