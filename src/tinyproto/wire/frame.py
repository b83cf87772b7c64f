"""The header of a frame: its kind, round, client and federation, and the checksum of the frame.

A frame is this header and a body (`wire/codec.py`). Change the layout only here.

| bytes | field | |
|---|---|---|
| 4 | magic | `TPRO` |
| 1 | version | 1 |
| 1 | kind | hello, train, update, evaluate, evaluation |
| 2 | flags | bit 0: evaluate the received values before training |
| 4 | round | from 1; 0 for the hello |
| 4 | client | the client that receives or sends the frame |
| 16 | digest | of the federation |
| 4 | length | of the body |
| 4 | crc32 | of all other bytes of the frame |

All numbers are little-endian.
"""

from __future__ import annotations

import hashlib
import json
import struct
import zlib
from collections.abc import Mapping
from enum import IntEnum
from typing import NamedTuple

from tinyproto.errors import WireError

MAGIC = b"TPRO"
VERSION = 1
_HEADER = struct.Struct("<4sBBHII16sI")
_CHECKSUM = struct.Struct("<I")
HEADER_BYTES = _HEADER.size + _CHECKSUM.size
DIGEST_BYTES = 16


class Kind(IntEnum):
    """The purpose of a frame."""

    HELLO = 1  # down: introduce yourself; up: sizes of the client's data
    TRAIN = 2  # down: train on this
    UPDATE = 3  # up: the result of training
    EVALUATE = 4  # down: evaluate this, do not train
    EVALUATION = 5  # up: the scores

    @property
    def answer(self) -> Kind:
        """Return the kind of the reply."""
        return {Kind.TRAIN: Kind.UPDATE, Kind.EVALUATE: Kind.EVALUATION}.get(self, self)


_KINDS = {kind.value: kind for kind in Kind}


class Header(NamedTuple):
    """The fields of a header that vary between frames."""

    kind: Kind
    round_number: int
    client: int
    digest: bytes
    evaluate: bool = False


def federation_digest(facts: Mapping[str, object]) -> bytes:
    """Return 16 bytes that are equal on both sides if they have the same settings."""
    canonical = json.dumps(facts, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(canonical.encode(), digest_size=DIGEST_BYTES).digest()


def pack(header: Header, body: bytes) -> bytes:
    """Return header and body as one frame."""
    head = _HEADER.pack(
        MAGIC, VERSION, header.kind, int(header.evaluate), header.round_number, header.client, header.digest, len(body)
    )
    return b"".join((head, _CHECKSUM.pack(zlib.crc32(body, zlib.crc32(head))), body))


def unpack(frame: bytes) -> tuple[Header, memoryview]:
    """Return the header and the body; raise WireError if magic, version, length, checksum, kind or flags are wrong."""
    if len(frame) < HEADER_BYTES:
        raise WireError(f"length: a frame has at least {HEADER_BYTES} bytes, this one has {len(frame)}")
    view = memoryview(frame)
    magic, version, code, flags, round_number, client, digest, length = _HEADER.unpack_from(view)
    if magic != MAGIC:
        raise WireError(f"magic: a frame starts with {MAGIC!r}, this one with {magic!r}")
    if version != VERSION:
        raise WireError(f"version: this side has version {VERSION}, the frame has version {version}")
    body = view[HEADER_BYTES:]
    if length != len(body):
        raise WireError(f"length: the header says {length} bytes, {len(body)} follow")
    (checksum,) = _CHECKSUM.unpack_from(view, _HEADER.size)
    if checksum != zlib.crc32(body, zlib.crc32(view[: _HEADER.size])):
        raise WireError("checksum: the frame was damaged in transit")
    kind = _KINDS.get(code)
    if kind is None:
        raise WireError(
            f"kind: {code} is none of {', '.join(f'{known.value} ({known.name.lower()})' for known in Kind)}"
        )
    if flags > 1:
        raise WireError(f"flags: unknown bits in {flags:#06x}")
    return Header(kind, round_number, client, digest, flags == 1), body
