"""Runs a command so that it never outlives its starter: `python -m tinyproto.federation.flower.leash COMMAND ...`.

Flower's processes start others, in sessions of their own. The leash takes in all of them that lose their parent (on
Linux), and when its input ends, because who holds the other end closed it or died in whatever way, or when it is told
to stop, it ends the command and everything that came of it. Only the standard library is loaded.
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
from pathlib import Path
from types import FrameType

GRACE_SECONDS = 5.0
"""For the command to end by itself, and then for what came of it."""

_SET_DEATH_SIGNAL, _SET_SUBREAPER = 1, 36  # of prctl(2)


def main() -> None:
    """Run the command until it ends, or until nobody holds the leash."""
    stopped: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        stopped.append(number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, note)
    _prctl(_SET_SUBREAPER, 1)
    process = subprocess.Popen(
        sys.argv[1:], stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=_end_with_the_leash
    )
    while process.poll() is None and not stopped and not _input_ended():
        pass
    _end(process)
    sys.exit(process.returncode if process.returncode >= 0 else 128 - process.returncode)


def _end_with_the_leash() -> None:
    """In the command's process: should even the leash be killed, this goes too."""
    _prctl(_SET_DEATH_SIGNAL, signal.SIGTERM)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _input_ended() -> bool:
    """Within a moment; whatever arrives is of no interest."""
    try:
        readable = select.select([0], [], [], 0.2)[0]
        return bool(readable) and os.read(0, 4096) == b""
    except InterruptedError:
        return False


def _end(process: subprocess.Popen[bytes]) -> None:
    """First the command, which may tell others goodbye, then whatever came of it."""
    for number in (signal.SIGTERM, signal.SIGINT):  # at the second a server no longer waits for open connections
        if process.poll() is None:
            process.send_signal(number)
            _signal(process.pid, signal.SIGCONT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(GRACE_SECONDS / 2)
    for number in (signal.SIGTERM, signal.SIGKILL):
        give_up = time.monotonic() + GRACE_SECONDS
        for child in _descendants():
            _signal(child, number)
            _signal(child, signal.SIGCONT)  # one that was stopped hears nothing until then
        while _descendants() and time.monotonic() < give_up:
            _reap(process)
            time.sleep(0.05)
    process.poll()


def _reap(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        return
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _signal(process: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, number)


def _descendants() -> list[int]:
    """Every process that this one started, or that those did, whether or not it is dead already."""
    parents: dict[int, int] = {}
    for file in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parents[int(file.parent.name)] = int(file.read_text().rpartition(")")[2].split()[1])
    found, front = list[int](), {os.getpid()}
    while front:
        front = {child for child, parent in parents.items() if parent in front}
        found += front
    return found


if __name__ == "__main__":
    main()
