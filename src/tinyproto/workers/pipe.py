"""Messages between the main process and a worker: a JSON head and byte blobs, each with its length."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from typing import IO, Any, NamedTuple

from safetensors.torch import load, save
from torch import Tensor

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
