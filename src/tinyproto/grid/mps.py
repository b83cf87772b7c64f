"""CUDA MPS, which lets kernels of several processes run on one GPU side by side instead of in time slices.

A run has a daemon and folders of its own. A shell waits for the end of this process, however that comes, then stops the
daemon and removes the folders.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

CONTROL = "nvidia-cuda-mps-control"
PIPES, LOGS = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"
START_SECONDS = 10.0
PROBE = "import sys, torch; torch.ones(8, device=sys.argv[1]).sum().item()"
PROBE_SECONDS = 90.0
"""Importing torch takes long from a slow file system."""

STOP_SECONDS = 15.0
_GUARD = f'cat >/dev/null; echo "quit -t 5" | {CONTROL} >/dev/null 2>&1; rm -rf "${PIPES}"'


class Sharing(NamedTuple):
    """The way processes share a GPU: variables for their environment, and a sentence about it."""

    variables: Mapping[str, str]
    words: str


class MpsError(Exception):
    """The reason why MPS cannot be used."""


@contextmanager
def shared_gpu(device: str) -> Iterator[Sharing]:
    """Run a private MPS daemon while open; if MPS does not work, fall back to time slices and say why."""
    if PIPES in os.environ:
        yield Sharing({}, f"cells share the GPU through the CUDA MPS daemon that {PIPES} names")
        return
    daemon = MpsDaemon()
    try:
        try:
            daemon.start(device)
            sharing = Sharing(daemon.variables, "cells share the GPU through CUDA MPS")
        except MpsError as reason:
            daemon.stop()
            sharing = Sharing({}, f"cells share the GPU by time slices, because CUDA MPS {reason}")
        yield sharing
    finally:
        daemon.stop()


class MpsDaemon:
    """The daemon of one run."""

    def __init__(self) -> None:
        self._folder = tempfile.mkdtemp(prefix="tinyproto-mps-")  # sockets need short paths
        self.variables = {PIPES: self._folder, LOGS: self._folder}
        # The daemon renumbers the devices that it sees; it has to see them all, so that our numbers stay right.
        others = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
        self._environment = {**others, **self.variables}
        self._guard: subprocess.Popen[bytes] | None = None

    def start(self, device: str) -> None:
        """Start the daemon and its server, and check that a process reaches the device through them."""
        if shutil.which(CONTROL) is None:
            raise MpsError(f"is not installed ({CONTROL} is missing)")
        self._guard = subprocess.Popen(
            ["sh", "-c", _GUARD],
            stdin=subprocess.PIPE,
            env=self._environment,
            start_new_session=True,  # Ctrl-C in the terminal is not for it
        )
        self._call([CONTROL, "-d"], "", START_SECONDS, "did not start")
        self._call([CONTROL], f"start_server -uid {os.getuid()}", START_SECONDS, "did not start its server")
        deadline = time.monotonic() + START_SECONDS
        while not self._call([CONTROL], "get_server_list", START_SECONDS, "does not answer").strip():
            if time.monotonic() > deadline:
                raise MpsError("did not start its server")
            time.sleep(0.1)
        probe = [sys.executable, "-c", PROBE, device]
        self._call(probe, "", PROBE_SECONDS, "does not let a process reach the GPU")

    def _call(self, command: Sequence[str], words: str, seconds: float, complaint: str) -> str:
        environment = self._environment if command[0] == CONTROL else {**os.environ, **self.variables}
        with tempfile.TemporaryFile() as output:  # a daemon keeps what it inherits open: a pipe would never end
            try:
                done = subprocess.run(
                    command, input=f"{words}\n".encode(), stdout=output, stderr=subprocess.STDOUT, env=environment,
                    timeout=seconds, check=False,
                )  # fmt: skip
            except subprocess.TimeoutExpired:
                raise MpsError(f"{complaint} within {seconds:.0f} s") from None
            except OSError as error:
                raise MpsError(f"{complaint}: {error.strerror}") from None
            output.seek(0)
            said = output.read().decode(errors="replace").strip()
        if done.returncode != 0:
            last = said.splitlines()[-1:] or [f"status {done.returncode}"]
            raise MpsError(f"{complaint}: {last[0]}")
        return said

    def stop(self) -> None:
        """Stop the daemon; kill the shell if it hangs."""
        if self._guard is not None:
            assert self._guard.stdin is not None
            self._guard.stdin.close()
            try:
                self._guard.wait(timeout=STOP_SECONDS)
            except subprocess.TimeoutExpired:
                os.killpg(self._guard.pid, signal.SIGKILL)  # the shell and what it waits for
                self._guard.wait()
            self._guard = None
        shutil.rmtree(self._folder, ignore_errors=True)
