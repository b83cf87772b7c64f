from __future__ import annotations

import struct
import zlib

import pytest

from tinyproto.errors import WireError
from tinyproto.wire.frame import (
    EVERYONE,
    HEADER_BYTES,
    VERSION,
    Body,
    Header,
    Kind,
    federation_digest,
    pack,
    peek,
    readdressed,
    unpack,
)

DIGEST = federation_digest({"algorithm": "test"})
HEADER = Header(Kind.UPDATE, 7, 3, DIGEST)
FRAME = pack(HEADER, b"body")
GOLDEN = bytes.fromhex("02 82 07 00 00 00 ff ff ff ff 2f 87 ef d0 62 6f 64 79")
OF_VERSION_1 = struct.pack("<4sBBHII16sII", b"TPRO", 1, 3, 0, 7, 3, DIGEST, 4, 0) + b"body"
ANOTHER_FEDERATION = (
    "checksum: the frame was damaged on the way or belongs to another federation; compare algorithm, classes, "
    "prototype and CPS dimension, scaling, masks, mask seed and value types on both ends"
)


def patched(offset: int, value: int) -> bytes:
    """The frame with one byte of its header changed and the checksum made right again."""
    head, body = bytearray(FRAME[: HEADER_BYTES - 4]), FRAME[HEADER_BYTES:]
    head[offset] = value
    return bytes(head) + struct.pack("<I", zlib.crc32(DIGEST + head + body)) + body


@pytest.mark.parametrize("evaluate", [False, True])
@pytest.mark.parametrize("kind", Kind)
def test_a_header_comes_back(kind: Kind, evaluate: bool) -> None:
    sent = Header(kind, 7, EVERYONE, DIGEST, evaluate)
    frame = pack(sent, b"body")
    header, body = unpack(frame, DIGEST)
    assert header == sent
    assert bytes(body) == b"body"
    assert peek(frame) == sent._replace(digest=b"")


def test_the_bytes_of_a_frame_are_fixed() -> None:
    assert (VERSION, HEADER_BYTES) == (2, 14)
    header = Header(Kind.TRAIN, 7, EVERYONE, bytes(range(16)), evaluate=True)
    assert pack(header, b"body") == GOLDEN
    assert unpack(GOLDEN, bytes(range(16)))[0] == header


@pytest.mark.parametrize(
    ("frame", "words"),
    [
        (FRAME[:10], "length: a frame has at least 14 bytes, .* 10"),
        (patched(0, 9), "version: .* version 2, .* version 9"),
        (OF_VERSION_1, "version: this side has version 2, the frame has version 1; install the same release"),
        (patched(1, 77), "kind: 77 is none of"),
        (patched(1, 0x80), "kind: 0 is none of"),
        (FRAME[:-1] + b"!", "checksum"),
    ],
)
def test_a_malformed_header_is_refused_with_its_field(frame: bytes, words: str) -> None:
    with pytest.raises(WireError, match=words):
        unpack(frame, DIGEST)
    if words != "checksum":
        with pytest.raises(WireError, match=words):
            peek(frame)


@pytest.mark.parametrize("bit", range(8 * len(FRAME)))
def test_a_frame_with_any_bit_flipped_is_refused(bit: int) -> None:
    damaged = bytearray(FRAME)
    damaged[bit // 8] ^= 1 << bit % 8
    with pytest.raises(WireError, match="version" if bit < 8 else "checksum"):
        unpack(bytes(damaged), DIGEST)


def test_a_frame_cut_off_or_extended_is_refused() -> None:
    for size in range(len(FRAME)):
        with pytest.raises(WireError, match="length" if size < HEADER_BYTES else "checksum"):
            unpack(FRAME[:size], DIGEST)
    for more in (b"\0", b"x", bytes(4), FRAME):
        with pytest.raises(WireError, match="checksum"):
            unpack(FRAME + more, DIGEST)


def test_a_frame_of_another_federation_is_refused_and_says_what_to_compare() -> None:
    with pytest.raises(WireError) as refused:
        unpack(FRAME, federation_digest({"algorithm": "another"}))
    assert str(refused.value) == ANOTHER_FEDERATION


def test_a_frame_for_everyone_becomes_one_for_a_client() -> None:
    for_everyone = pack(HEADER._replace(kind=Kind.TRAIN, client=EVERYONE, evaluate=True), b"body")
    expected = pack(HEADER._replace(kind=Kind.TRAIN, evaluate=True), b"body")
    assert readdressed(for_everyone, DIGEST, 3) == expected
    with pytest.raises(WireError, match="checksum"):
        readdressed(for_everyone, bytes(16), 3)
    with pytest.raises(WireError, match="checksum"):
        readdressed(for_everyone[:-1], DIGEST, 3)


def test_requests_and_their_answers() -> None:
    assert Kind.TRAIN.answer is Kind.UPDATE
    assert Kind.EVALUATE.answer is Kind.EVALUATION
    assert Kind.HELLO.answer is Kind.HELLO


def test_the_digest_depends_on_every_fact_and_not_on_their_order() -> None:
    assert federation_digest({"a": 1, "b": None}) == federation_digest({"b": None, "a": 1})
    assert federation_digest({"a": 1}) != federation_digest({"a": 2})
    assert len(DIGEST) == 16


@pytest.mark.parametrize("size", [0, 1, 2, 3, 7, 255, 4096, 100_003])
def test_a_body_sent_to_many_has_one_checksum(size: int) -> None:
    content = bytes(number * 7 % 251 for number in range(size))
    body = Body(content[: size // 3], memoryview(content)[size // 3 :])
    for client in range(3):
        start = DIGEST + bytes((client,)) * 10
        assert body.after(start) == zlib.crc32(start + content)
        assert pack(HEADER._replace(client=client), body) == pack(HEADER._replace(client=client), content)


def test_only_an_equal_body_is_taken_for_a_known_one() -> None:
    known = Body(memoryview(FRAME)[HEADER_BYTES:])
    assert known.is_in(pack(HEADER._replace(client=9), b"body"))
    assert not any(known.is_in(pack(HEADER, other)) for other in (b"bodY", b"", b"a body", b"ody"))


def test_a_known_body_does_not_make_a_damaged_header_good() -> None:
    damaged = bytearray(FRAME)
    damaged[3] ^= 1
    with pytest.raises(WireError, match="checksum"):
        unpack(bytes(damaged), DIGEST, Body(b"body"))
