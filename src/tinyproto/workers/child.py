"""A process of ours as its parent sees it: requests go in, answers come out, and its end is put into words."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tinyproto.workers.pipe import Parcel, receive, send
from tinyproto.workers.service import PARENT, PARENTS_SIGNALS


class End(NamedTuple):
    """How a process ended."""

    status: int  # negative: the signal that killed it
    words: str
    last_words: str  # what it printed last, where it printed anything


class Child:
    """`python -m MODULE` with one thread, which speaks parcels (`workers/service.py`) and ends with its parent."""

    def __init__(
        self, module: str, descriptors: Sequence[int] = (), variables: Mapping[str, str] | None = None
    ) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        before = signal.pthread_sigmask(signal.SIG_BLOCK, PARENTS_SIGNALS)  # inherited, until it can answer them
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

    def ask(self, parcel: Parcel) -> bool:
        """Send a request; whether anybody was there to take it."""
        assert self._process.stdin is not None
        try:
            send(self._process.stdin, parcel)
        except BrokenPipeError:
            return False
        return True

    def answer(self) -> Parcel | None:
        """The next answer; None where the process is gone."""
        assert self._process.stdout is not None
        return receive(self._process.stdout)

    def ask_to_stop(self) -> None:
        """Have it end when it has come to a good place for that."""
        self._process.send_signal(signal.SIGTERM)

    def end(self) -> End:
        """Of a process that is gone: what became of it."""
        status = self._process.wait(timeout=10)
        self._errors.seek(0)
        last = self._errors.read().decode(errors="replace").strip().splitlines()[-1:]
        words = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
        return End(status, words, f"; its last words: {last[0]}" if last else "")

    def close(self) -> None:
        """End it now."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            if stream is not None:
                try:
                    stream.close()
                except BrokenPipeError:
                    continue
