"""A process of ours as its parent sees it: requests go in, answers come out, and its end is put into words."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any, NamedTuple

import numpy as np
import torch
from safetensors.torch import load, save
from torch import Tensor

from tinyproto.data.images import Images, SharedPixels
from tinyproto.errors import LeftOutError, TinyProtoError, one_line


class End(NamedTuple):
    """How a process ended."""

    status: int  # negative: the signal that killed it
    words: str
    last_words: str  # what it printed last, where it printed anything


class Child:
    """`python -m MODULE` with one thread, which speaks parcels (`workers/child.py`) and ends with its parent."""

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


_LENGTH = struct.Struct("<Q")


class Parcel(NamedTuple):
    """What goes through the pipe at once."""

    head: dict[str, Any]
    blobs: Sequence[bytes] = ()


def send(stream: IO[bytes], parcel: Parcel) -> None:
    """Write a parcel and let it go."""
    head = json.dumps({**parcel.head, "blobs": [len(blob) for blob in parcel.blobs]}).encode()
    stream.write(_LENGTH.pack(len(head)) + head)
    for blob in parcel.blobs:
        stream.write(blob)
    stream.flush()


def receive(stream: IO[bytes]) -> Parcel | None:
    """The next parcel; None where the other side is gone, be it in the middle of one."""
    try:
        head = json.loads(_exactly(stream, _LENGTH.unpack(_exactly(stream, _LENGTH.size))[0]))
        return Parcel(head, [_exactly(stream, size) for size in head.pop("blobs")])
    except EOFError:
        return None


def _exactly(stream: IO[bytes], size: int) -> bytes:
    data = stream.read(size)
    if len(data) < size:
        raise EOFError
    return data


def pack_tensors(tensors: dict[str, Tensor]) -> bytes:
    """Named tensors as one blob."""
    return save(tensors)


def unpack_tensors(blob: bytes) -> dict[str, Tensor]:
    """Named tensors from one blob."""
    return load(blob)


_FACTS = ("name", "num_classes", "scale", "shift")


class SharedDataset:
    """A dataset for workers that inherit its open files; without any, each worker loads its own."""

    def __init__(self, images: Images) -> None:
        assert images.shared is not None
        labels = SharedPixels.blank((len(images), 8))
        labels.array[:] = images.labels.numpy().view(np.uint8).reshape(-1, 8)
        self._parts = {"pixels": images.shared, "labels": labels}
        self._facts = {name: getattr(images, name) for name in _FACTS}

    @property
    def descriptors(self) -> list[int]:
        """What a worker has to inherit."""
        return [part.descriptor for part in self._parts.values() if part.descriptor is not None]

    def request(self, config: Mapping[str, Any]) -> Parcel:
        """What a worker needs to build the experiment."""
        head = {"do": "load", "config": config}
        if len(self.descriptors) < len(self._parts):
            return Parcel(head)
        addresses = {name: part.address() for name, part in self._parts.items()}
        return Parcel({**head, "images": self._facts, **addresses})


def received_dataset(request: Parcel) -> Images | None:
    """The dataset on the worker's side; None where the worker has to load it."""
    if "images" not in request.head:
        return None
    pixels, labels = (SharedPixels(**request.head[name]) for name in ("pixels", "labels"))
    values = torch.from_numpy(labels.array.reshape(-1).view(np.int64))
    return Images(pixels=pixels.tensor, labels=values, shared=pixels, **request.head["images"])
