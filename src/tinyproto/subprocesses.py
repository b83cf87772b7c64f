"""Child processes: the messages between parent and child, and either end of them. Nothing heavy is imported."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import IO, Any, NamedTuple


class Parcel(NamedTuple):
    """One message: a JSON head and byte blobs."""

    head: dict[str, Any]
    blobs: Sequence[bytes] = ()


def send(stream: IO[bytes], parcel: Parcel) -> None:
    """Write a parcel: a line of JSON, then the blobs."""
    stream.write(json.dumps({**parcel.head, "blobs": [len(blob) for blob in parcel.blobs]}).encode() + b"\n")
    for blob in parcel.blobs:
        stream.write(blob)
    stream.flush()


def receive(stream: IO[bytes]) -> Parcel | None:
    """Read the next parcel; return None if the other side is gone."""
    line = stream.readline()
    if not line.endswith(b"\n"):
        return None
    head = json.loads(line)
    sizes = head.pop("blobs")
    blobs = [stream.read(size) for size in sizes]
    return Parcel(head, blobs) if [len(blob) for blob in blobs] == sizes else None


class End(NamedTuple):
    """The end of a process: its status, in words, and the last line it printed."""

    status: int  # negative: the signal that killed it
    words: str
    last_words: str  # the last line it printed, if any


class ChildProcess:
    """A module of ours in a process with one thread, which answers parcels and ends with its parent."""

    def __init__(
        self, module: str, variables: Mapping[str, str] | None = None, descriptors: Sequence[int] = ()
    ) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        before = signal.pthread_sigmask(signal.SIG_BLOCK, PARENTS_SIGNALS)  # inherited, until the child handles them
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                env={**os.environ, "OMP_NUM_THREADS": "1", PARENT: str(os.getpid()), **(variables or {})},
                pass_fds=descriptors,
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    @property
    def pid(self) -> int:
        """Return the id of the process."""
        return self._process.pid

    def fileno(self) -> int:
        """Return the file descriptor at which answers arrive."""
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    def ask(self, parcel: Parcel) -> bool:
        """Send a request; return False if the process is gone."""
        assert self._process.stdin is not None
        try:
            send(self._process.stdin, parcel)
        except BrokenPipeError:
            return False
        return True

    def answer(self) -> Parcel | None:
        """Return the next answer; None if the process is gone."""
        assert self._process.stdout is not None
        return receive(self._process.stdout)

    def ask_to_stop(self) -> None:
        """Ask the process to stop at the end of its round."""
        self._process.send_signal(signal.SIGTERM)

    def end(self) -> End:
        """Return how the process ended, once it is gone."""
        status = self._process.wait(timeout=10)
        self._errors.seek(0)
        last = self._errors.read().decode(errors="replace").strip().splitlines()[-1:]
        words = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
        return End(status, words, f"; its last words: {last[0]}" if last else "")

    def close(self) -> None:
        """End the process now."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            if stream is not None:
                with suppress(BrokenPipeError):
                    stream.close()


PARENT = "TINYPROTO_PARENT"
"""The environment variable that tells a child the id of its parent."""

PARENTS_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that a terminal sends to the whole process group; the parent handles them for its children."""

_PR_SET_PDEATHSIG = 1


def open_service(stop: Callable[[], None]) -> tuple[IO[bytes], IO[bytes]]:
    """Return the streams of requests and answers; ignore the signals that the parent handles.

    SIGTERM calls `stop`: that is how the parent asks for a stop. Until here the signals were blocked, so none of them
    ends a process that is starting.
    """
    for number in PARENTS_SIGNALS:
        if number is not signal.SIGTERM:
            signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda _number, _frame: stop())
    signal.pthread_sigmask(signal.SIG_UNBLOCK, PARENTS_SIGNALS)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.environ.get(PARENT) != str(os.getppid()):  # the parent ended while this process was starting
        sys.exit()
    requests, answers = sys.stdin.buffer, os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what a user's network prints must not enter the pipe
    return requests, answers
