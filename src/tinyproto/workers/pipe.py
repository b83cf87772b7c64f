"""Messages between the main process and a worker: a JSON head and byte blobs, each with its length."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from typing import IO, Any, NamedTuple

import numpy as np
import torch
from safetensors.torch import load, save
from torch import Tensor

from tinyproto.data.images import Images, SharedPixels

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


class Handover:
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


def handed_over(request: Parcel) -> Images | None:
    """The dataset on the worker's side; None where the worker has to load it."""
    if "images" not in request.head:
        return None
    pixels, labels = (SharedPixels(**request.head[name]) for name in ("pixels", "labels"))
    values = torch.from_numpy(labels.array.reshape(-1).view(np.int64))
    return Images(pixels=pixels.tensor, labels=values, shared=pixels, **request.head["images"])
