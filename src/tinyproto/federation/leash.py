"""Runs a command so that it never outlives its starter: `python -m tinyproto.federation.leash COMMAND ...`.

Flower's processes start others, in sessions of their own. The leash adopts those that lose their parent (on Linux). It
ends the command and all its descendants when its input closes, when it gets a signal, or when its starter dies.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from types import FrameType

GRACE_SECONDS = 5.0
"""Time for the command to end by itself, and then again for its descendants."""

_SET_DEATH_SIGNAL, _SET_SUBREAPER = 1, 36  # of prctl(2)


def main() -> None:
    """Run the command until it ends or the leash is released; exit with its status."""
    stopped: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        stopped.append(number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, note)
    _prctl(_SET_SUBREAPER, 1)
    process = subprocess.Popen(
        sys.argv[1:], stdin=subprocess.DEVNULL, start_new_session=True,
        preexec_fn=lambda: _prctl(_SET_DEATH_SIGNAL, signal.SIGTERM),  # for when the leash itself is killed
    )  # fmt: skip
    while process.poll() is None and not stopped and not _input_ended():
        pass
    _end(process)
    sys.exit(process.returncode if process.returncode >= 0 else 128 - process.returncode)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _input_ended() -> bool:
    """Wait a moment for the end of the input; ignore what arrives."""
    try:
        readable = select.select([0], [], [], 0.2)[0]
        return bool(readable) and os.read(0, 4096) == b""
    except InterruptedError:
        return False


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the command, which may say goodbye to others, and then all its descendants."""
    import psutil  # here, since a listener imports this module for its constants only

    for number in (signal.SIGTERM, signal.SIGINT):  # at the second a server no longer waits for open connections
        if process.poll() is None:
            process.send_signal(number)
            process.send_signal(signal.SIGCONT)  # a stopped process gets no other signal until then
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(GRACE_SECONDS / 2)
    for number in (signal.SIGTERM, signal.SIGKILL):
        give_up = time.monotonic() + GRACE_SECONDS
        for child in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error):
                child.send_signal(number)
                child.resume()
        while psutil.Process().children(recursive=True) and time.monotonic() < give_up:
            _reap(process)
            time.sleep(0.05)
    process.poll()


def _reap(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        return
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


if __name__ == "__main__":
    main()
