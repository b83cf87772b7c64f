"""The frame's header: who says what to whom in which round, for which federation, and whether it arrived whole.

| bytes | field | |
|---|---|---|
| 4 | magic | `TPRO` |
| 1 | version | 1 |
| 1 | kind | hello, train, update, evaluate, evaluation |
| 2 | flags | bit 0: evaluate what arrives before training |
| 4 | round | from 1; 0 for the hello |
| 4 | client | the client it is for or from |
| 16 | digest | of the federation |
| 4 | length | of all that follows the header |
| 4 | crc32 | of everything else, header included |

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
    """What a frame asks for or answers."""

    HELLO = 1  # both ways: who are you; sizes of my data
    TRAIN = 2  # down: train on this
    UPDATE = 3  # up: what training gave
    EVALUATE = 4  # down: evaluate this, do not train
    EVALUATION = 5  # up: how it scored

    @property
    def answer(self) -> Kind:
        """The kind of frame that answers this one."""
        return {Kind.TRAIN: Kind.UPDATE, Kind.EVALUATE: Kind.EVALUATION}.get(self, self)


_KINDS = {kind.value: kind for kind in Kind}


class Header(NamedTuple):
    """What a frame says about itself."""

    kind: Kind
    round_number: int
    client: int
    digest: bytes
    evaluate: bool = False


def federation_digest(facts: Mapping[str, object]) -> bytes:
    """16 bytes that are equal for two parties who mean the same federation."""
    canonical = json.dumps(facts, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(canonical.encode(), digest_size=DIGEST_BYTES).digest()


def pack(header: Header, body: bytes) -> bytes:
    """Header and body as one frame."""
    head = _HEADER.pack(
        MAGIC, VERSION, header.kind, int(header.evaluate), header.round_number, header.client, header.digest, len(body)
    )
    return b"".join((head, _CHECKSUM.pack(zlib.crc32(body, zlib.crc32(head))), body))


def unpack(frame: bytes) -> tuple[Header, memoryview]:
    """The header and the body, once magic, version, length, checksum, kind and flags are what they should be."""
    if len(frame) < HEADER_BYTES:
        raise WireError(f"length: a frame has at least {HEADER_BYTES} bytes, this one {len(frame)}")
    view = memoryview(frame)
    magic, version, code, flags, round_number, client, digest, length = _HEADER.unpack_from(view)
    if magic != MAGIC:
        raise WireError(f"magic: a frame starts with {MAGIC!r}, this one with {magic!r}")
    if version != VERSION:
        raise WireError(f"version: this side speaks version {VERSION}, the frame is version {version}")
    body = view[HEADER_BYTES:]
    if length != len(body):
        raise WireError(f"length: the header promises {length} bytes, {len(body)} follow")
    (checksum,) = _CHECKSUM.unpack_from(view, _HEADER.size)
    if checksum != zlib.crc32(body, zlib.crc32(view[: _HEADER.size])):
        raise WireError("checksum: the frame was damaged on its way")
    kind = _KINDS.get(code)
    if kind is None:
        raise WireError(
            f"kind: {code} is none of {', '.join(f'{known.value} ({known.name.lower()})' for known in Kind)}"
        )
    if flags > 1:
        raise WireError(f"flags: unknown bits in {flags:#06x}")
    return Header(kind, round_number, client, digest, flags == 1), body
