from __future__ import annotations

import struct
import zlib

import pytest

from tinyproto.errors import WireError
from tinyproto.wire.frame import HEADER_BYTES, Header, Kind, federation_digest, pack, unpack

DIGEST = federation_digest({"algorithm": "test"})
FRAME = pack(Header(Kind.UPDATE, 7, 3, DIGEST), b"body")


def patched(offset: int, layout: str, value: object) -> bytes:
    """The frame with one header field changed and the checksum made right again."""
    frame = bytearray(FRAME)
    struct.pack_into(layout, frame, offset, value)
    head, body = bytes(frame[: HEADER_BYTES - 4]), bytes(frame[HEADER_BYTES:])
    frame[HEADER_BYTES - 4 : HEADER_BYTES] = struct.pack("<I", zlib.crc32(body, zlib.crc32(head)))
    return bytes(frame)


def test_a_header_comes_back() -> None:
    header, body = unpack(FRAME)
    assert header == Header(Kind.UPDATE, 7, 3, DIGEST)
    assert bytes(body) == b"body"


@pytest.mark.parametrize(
    ("frame", "words"),
    [
        (FRAME[:10], "length: a frame has at least 40 bytes, .* 10"),
        (patched(0, "<4s", b"NOPE"), "magic"),
        (patched(4, "<B", 9), "version: .* version 1, .* version 9"),
        (patched(5, "<B", 77), "kind: 77 is none of"),
        (patched(6, "<H", 6), "flags"),
        (patched(32, "<I", 5), "length: .* 5 bytes, 4 follow"),
        (FRAME + b"x", "length"),
        (FRAME[:-1] + b"!", "checksum"),
    ],
)
def test_a_malformed_header_is_refused_with_its_field(frame: bytes, words: str) -> None:
    with pytest.raises(WireError, match=words):
        unpack(frame)


def test_requests_and_their_answers() -> None:
    assert Kind.TRAIN.answer is Kind.UPDATE
    assert Kind.EVALUATE.answer is Kind.EVALUATION
    assert Kind.HELLO.answer is Kind.HELLO


def test_the_digest_depends_on_every_fact_and_not_on_their_order() -> None:
    assert federation_digest({"a": 1, "b": None}) == federation_digest({"b": None, "a": 1})
    assert federation_digest({"a": 1}) != federation_digest({"a": 2})
    assert len(DIGEST) == 16
