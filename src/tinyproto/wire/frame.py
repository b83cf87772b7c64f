"""The header of a frame: its version, kind, round and client, and a checksum that also covers the federation.

A frame is this header and a body (`wire/codec.py`). Change the layout only here.

| bytes | field | |
|---|---|---|
| 1 | version | 2 |
| 1 | kind | hello, train, update, evaluate, evaluation; bit 7: evaluate the received values before training |
| 4 | round | from 1; 0 for the hello |
| 4 | client | the client that receives or sends the frame, or `EVERYONE` |
| 4 | crc32 | of the federation's digest, the ten bytes above and the body |

All numbers are little-endian. The digest does not travel: both sides know it, so a frame of another federation fails
the checksum. There is no length: a transport delivers whole frames, and one that was cut off or extended fails the
checksum too.
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

VERSION = 2
_FIELDS = struct.Struct("<BBII")
_CHECKSUM = struct.Struct("<I")
HEADER_BYTES = _FIELDS.size + _CHECKSUM.size
DIGEST_BYTES = 16
EVERYONE = 0xFFFF_FFFF
"""The client id of a frame that is addressed to every client."""

_EVALUATE = 0x80  # in the byte of the kind
_START_OF_VERSION_1 = b"TPRO"


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


def pack(header: Header, *body: bytes | memoryview) -> bytes:
    """Return header and body, which may come in pieces, as one frame."""
    code = header.kind | (_EVALUATE if header.evaluate else 0)
    fields = _FIELDS.pack(VERSION, code, header.round_number, header.client)
    checksum = zlib.crc32(header.digest + fields)
    for piece in body:
        checksum = zlib.crc32(piece, checksum)
    return b"".join((fields, _CHECKSUM.pack(checksum), *body))


def unpack(frame: bytes, digest: bytes) -> tuple[Header, memoryview]:
    """Return header and body of a frame; raise WireError if length, version, checksum or kind are wrong."""
    code, round_number, client = _fields(frame)
    view = memoryview(frame)
    body = view[HEADER_BYTES:]
    (checksum,) = _CHECKSUM.unpack_from(frame, _FIELDS.size)
    if checksum != zlib.crc32(body, zlib.crc32(view[: _FIELDS.size], zlib.crc32(digest))):
        raise WireError(
            "checksum: the frame was damaged on the way or belongs to another federation; compare algorithm, classes, "
            "prototype and CPS dimension, scaling, masks, mask seed and value types on both ends"
        )
    return Header(_kind(code), round_number, client, digest, code >= _EVALUATE), body


def peek(frame: bytes) -> Header:
    """Return the header without its digest; raise WireError if length, version or kind are wrong.

    The checksum is not checked: use this for frames that this side made, or that are checked later.
    """
    code, round_number, client = _fields(frame)
    return Header(_kind(code), round_number, client, b"", code >= _EVALUATE)


def readdressed(frame: bytes, digest: bytes, client: int) -> bytes:
    """Return the frame with another client id; raise WireError as `unpack` does."""
    header, body = unpack(frame, digest)
    return pack(header._replace(client=client), body)


def _fields(frame: bytes) -> tuple[int, int, int]:
    """Return code, round and client of a frame; raise WireError if it is too short or of another version."""
    if len(frame) < HEADER_BYTES:
        raise WireError(f"length: a frame has at least {HEADER_BYTES} bytes, this one has {len(frame)}")
    version, code, round_number, client = _FIELDS.unpack_from(frame)
    if version != VERSION:
        found = 1 if frame.startswith(_START_OF_VERSION_1) else version
        raise WireError(
            f"version: this side has version {VERSION}, the frame has version {found}; install the same release of "
            "tinyproto on both ends"
        )
    return code, round_number, client


def _kind(code: int) -> Kind:
    kind = _KINDS.get(code & ~_EVALUATE)
    if kind is None:
        known = ", ".join(f"{kind.value} ({kind.name.lower()})" for kind in Kind)
        raise WireError(f"kind: {code & ~_EVALUATE} is none of {known}")
    return kind
