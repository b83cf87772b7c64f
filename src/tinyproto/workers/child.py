"""Child processes: the messages between parent and child, either end of them, and the dataset they share."""

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

import torch

from tinyproto.data.dataset import Dataset, SharedArray
from tinyproto.errors import LeftOutError, TinyProtoError, one_line


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


class Child:
    """`grid/process.py` in a process with one thread, which has a dataset, answers parcels and ends with its parent."""

    def __init__(self, dataset: SharedDataset, config: Mapping[str, Any], variables: Mapping[str, str]) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        before = signal.pthread_sigmask(signal.SIG_BLOCK, PARENTS_SIGNALS)  # inherited, until the child handles them
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tinyproto.grid.process"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                env={**os.environ, "OMP_NUM_THREADS": "1", PARENT: str(os.getpid()), **variables},
                pass_fds=dataset.descriptors,
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        self.ask(dataset.request(config))

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
    """Return the streams of requests and answers; use one thread, and ignore the signals that the parent handles.

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
    torch.set_num_threads(1)
    return requests, answers


def failure(error: Exception) -> dict[str, str]:
    """Describe an error for the parent: one of this package by its message, another one by its type and place.

    An error of the kind "diverged" would occur again if the cell were run again.
    """
    place = " ".join(getattr(error, "__notes__", []))
    if isinstance(error, LeftOutError):
        return {"error": str(error), "kind": "diverged", "place": place}
    if isinstance(error, TinyProtoError):
        return {"error": str(error), "kind": "ours", "place": place}
    return {"error": one_line(error), "kind": "memory" if _is_out_of_memory(error) else "fault", "place": place}


def _is_out_of_memory(error: Exception) -> bool:
    """Return True for device and host memory; some libraries below torch only say it in the message."""
    words = str(error)
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and ("out of memory" in words or "ALLOC_FAILED" in words)
    )


_FACTS = ("name", "num_classes", "scale", "shift", "class_names", "columns", "vocabulary", "white")
"""Everything of a dataset that is not a tensor."""


class SharedDataset:
    """A dataset in open files that child processes inherit; if it has none, each child loads the dataset."""

    def __init__(self, images: Dataset) -> None:
        assert images.shared is not None
        labels = SharedArray.holding(images.labels.numpy())  # a pipe holds little until a child reads it
        self._parts = {"inputs": images.shared, "labels": labels}
        self._facts = {name: getattr(images, name) for name in _FACTS}

    @property
    def descriptors(self) -> list[int]:
        """The file descriptors that a child has to inherit."""
        return [part.descriptor for part in self._parts.values() if part.descriptor is not None]

    def request(self, config: Mapping[str, Any]) -> Parcel:
        """Return the request that has a child build the experiment."""
        head = {"do": "load", "config": config}
        if len(self.descriptors) < len(self._parts):
            return Parcel(head)
        addresses = {name: part.address() for name, part in self._parts.items()}
        return Parcel({**head, "images": self._facts, **addresses})


def received_dataset(request: Parcel) -> Dataset | None:
    """Return the dataset in the child; None if the child has to load it."""
    if "images" not in request.head:
        return None
    inputs, labels = (SharedArray(**request.head[name]) for name in ("inputs", "labels"))
    found = request.head["images"]
    facts: dict[str, Any] = {name: tuple(fact) if isinstance(fact, list) else fact for name, fact in found.items()}
    return Dataset(inputs=inputs.tensor, labels=labels.tensor, shared=inputs, **facts)
