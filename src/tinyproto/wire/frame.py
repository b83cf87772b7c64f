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
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import IntEnum
from functools import cached_property, lru_cache
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
_ONE, _POLYNOMIAL = 0x8000_0000, 0xEDB8_8320  # of CRC-32, with the coefficient of x⁰ in the highest bit


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


class Frames(Mapping[int, bytes]):
    """Frames by client, each made when it is read, so that not all of them are in memory at once."""

    def __init__(self, clients: Iterable[int], make: Callable[[int], bytes]) -> None:
        self._clients = dict.fromkeys(clients)
        self._make = make

    def __len__(self) -> int:
        return len(self._clients)

    def __iter__(self) -> Iterator[int]:
        return iter(self._clients)

    def __contains__(self, client: object) -> bool:
        return client in self._clients

    def __getitem__(self, client: int) -> bytes:
        return self._make(client)


class Body:
    """The body of frames, in pieces. Its checksum is computed once, however many clients are sent it."""

    def __init__(self, *pieces: bytes | memoryview) -> None:
        self.pieces = pieces
        self.size = sum(map(len, pieces))

    @cached_property
    def checksum(self) -> int:
        """Return the checksum of the body alone."""
        checksum = 0
        for piece in self.pieces:
            checksum = zlib.crc32(piece, checksum)
        return checksum

    def after(self, start: bytes) -> int:
        """Return the checksum of the bytes `start` and this body."""
        return _times(zlib.crc32(start), _power(self.size)) ^ self.checksum

    def is_in(self, frame: bytes) -> bool:
        """Return True if this body is that of the frame, and in one piece."""
        return len(self.pieces) == 1 and len(frame) == HEADER_BYTES + self.size and frame.endswith(self.pieces[0])


def pack(header: Header, body: Body | bytes | memoryview) -> bytes:
    """Return header and body as one frame."""
    body = body if isinstance(body, Body) else Body(body)
    code = header.kind | (_EVALUATE if header.evaluate else 0)
    fields = _FIELDS.pack(VERSION, code, header.round_number, header.client)
    return b"".join((fields, _CHECKSUM.pack(body.after(header.digest + fields)), *body.pieces))


@lru_cache
def _power(size: int) -> int:
    """Return x^(8·size) modulo the polynomial of CRC-32, by repeated squaring."""
    if size == 0:
        return _ONE
    half = _power(size // 2)
    return _times(_times(half, half), _ONE >> 8 if size % 2 else _ONE)


def _times(first: int, second: int) -> int:
    """Return the product of two polynomials modulo that of CRC-32; the highest bit is the coefficient of x⁰."""
    product = 0
    while first:
        if first & _ONE:
            product ^= second
        first = first << 1 & 0xFFFF_FFFF
        second = second >> 1 ^ (_POLYNOMIAL if second & 1 else 0)
    return product


def unpack(frame: bytes, digest: bytes, known: Body | None = None) -> tuple[Header, memoryview]:
    """Return header and body of a frame; raise WireError if length, version, checksum or kind are wrong.

    `known` is the frame's body, if the caller has compared them.
    """
    code, round_number, client = _fields(frame)
    body = memoryview(frame)[HEADER_BYTES:]
    start = digest + frame[: _FIELDS.size]
    (checksum,) = _CHECKSUM.unpack_from(frame, _FIELDS.size)
    if checksum != (zlib.crc32(body, zlib.crc32(start)) if known is None else known.after(start)):
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
