"""Frames whose values are rounded: what they say of themselves, what they cost, and what is refused."""

from __future__ import annotations

import math
import struct

import pytest
import torch

from tinyproto.core.prototypes import AtMost, Message, Prototypes, Shape
from tinyproto.errors import WireError
from tinyproto.wire.codec import decode, encode, payload_bytes
from tinyproto.wire.frame import HEADER_BYTES, Header, Kind, pack, unpack
from tinyproto.wire.validate import Expectation, open_frame
from tinyproto.wire.values import (
    FLOAT32,
    INT4,
    INT8,
    VALUE_TYPES,
    Coding,
    ValueName,
    ValueType,
    WireSettings,
    as_matrix,
)

DIGEST = bytes(16)
HEADER = Header(Kind.UPDATE, round_number=7, client=3, digest=DIGEST)
TYPES = pytest.mark.parametrize("kind", list(VALUE_TYPES.values()), ids=lambda kind: kind.name)
SHAPES = {"weight": (6, 5), "kernel": (4, 3, 2, 2), "bias": (7,), "scalar": (), "none": (0, 4), "hollow": (3, 0)}


def message() -> Message:
    generator = torch.Generator().manual_seed(0)
    present = torch.tensor([True, False, True, True, False])
    values = torch.randn(5, 9, generator=generator) * present.unsqueeze(1)
    tensors = {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}
    return Message(Prototypes(values, present), tensors, {"cross_entropy": 0.1})


def expectation(up: ValueName = "float32", down: ValueName = "float32") -> Expectation:
    return Expectation(DIGEST, 5, 9, SHAPES, wire=WireSettings(up, down))


@TYPES
def test_a_frame_says_its_type_and_rows_and_tensors_come_back_rounded(kind: ValueType) -> None:
    sent = message()
    decoded = decode(encode(HEADER, sent, Coding(kind)), DIGEST)
    got = decoded.message
    assert got.rows is not None
    assert sent.rows is not None
    assert torch.equal(got.rows.present, sent.rows.present)
    pairs = [(sent.rows.values, got.rows.values), *((sent.tensors[name], got.tensors[name]) for name in SHAPES)]
    for before, after in pairs:
        assert before.shape == after.shape
        assert after.dtype == torch.float32
        matrix = before.reshape(as_matrix(tuple(before.shape)))
        if matrix.numel():
            step = matrix.abs().amax(1, keepdim=True) / (7 if kind is INT4 else 127)
            assert bool(((after.reshape(matrix.shape) - matrix).abs() <= step * (1 + 2**-7) / 2 + 1e-9).all())
    assert got.metrics == sent.metrics  # which are never rounded
    assert got.parameters == sent.parameters


@TYPES
def test_payload_is_what_lies_in_the_frame(kind: ValueType) -> None:
    sent = message()
    frame = encode(HEADER, sent, Coding(kind))
    heads = 8 + 1 + 3 + sum(1 + len(name) + 2 + 4 * len(shape) for name, shape in SHAPES.items())
    metrics = 2 + 1 + 8
    assert payload_bytes(sent, kind) == len(frame) - HEADER_BYTES - heads - metrics
    assert decode(frame, DIGEST).payload_bytes == payload_bytes(sent, kind)


@TYPES
def test_no_frame_is_longer_than_the_expectation_says(kind: ValueType) -> None:
    whole = Message(Prototypes(torch.ones(5, 9), torch.ones(5, dtype=torch.bool)), message().tensors)
    expected = expectation(up=kind.name, down="int4")
    assert len(encode(HEADER, whole, Coding(kind))) <= expected.largest_frame < expectation().largest_frame + 1


def test_a_size_that_varies_is_counted_with_its_limit() -> None:
    shapes: dict[str, Shape] = {"left": (4, AtMost(6)), "right": (AtMost(6), 3)}
    expected = Expectation(DIGEST, 5, None, shapes, wire=WireSettings("float16", "int8"))
    smaller = Expectation(DIGEST, 5, None, {"left": (4, 6)}, wire=WireSettings("float16", "int8"))
    assert expected.largest_frame - smaller.largest_frame == 6 * 3 * 2 + 6 * 2 + len("right") + 2 * 4 + 3


@pytest.mark.parametrize(("kind", "due"), [(Kind.UPDATE, "int8"), (Kind.EVALUATION, "int8"), (Kind.TRAIN, "float16"), (
    Kind.EVALUATE, "float16"), (Kind.HELLO, "float32")])  # fmt: skip
def test_each_way_has_the_type_that_was_agreed_on_and_no_other(kind: Kind, due: ValueName) -> None:
    expected = expectation(up="int8", down="float16")
    header = HEADER._replace(kind=kind)
    sent = message()
    for name, values in VALUE_TYPES.items():
        frame = encode(header, sent, Coding(values))
        if name == due:
            assert open_frame(frame, expected, 3, 7, (kind,)).payload_bytes == payload_bytes(sent, values)
        else:
            with pytest.raises(WireError, match=f"refused: dtype: rows are {name}, where {due} was agreed on"):
                open_frame(frame, expected, 3, 7, (kind,))
    tensors = encode(header, Message(tensors=sent.tensors), Coding(INT4))
    with pytest.raises(WireError, match=f"dtype: values of tensor 'bias' are int4, where {due} was agreed on"):
        open_frame(tensors, expected, 3, 7, (kind,))


@TYPES
@pytest.mark.parametrize(("bad", "word"), [(math.nan, "NaN"), (math.inf, "infinity"), (-math.inf, "infinity")])
@pytest.mark.parametrize("seed", [None, 0], ids=["nearest", "stochastic"])
def test_diverged_training_is_refused_in_the_same_words_whatever_the_type(
    kind: ValueType, bad: float, word: str, seed: int | None
) -> None:
    coding = Coding(kind, None if seed is None else torch.Generator().manual_seed(seed))
    sent, expected = message(), expectation(up=kind.name)
    assert sent.rows is not None
    sent.rows.values[2, 4] = bad
    whose = "training diverged at client 3 in round 7"
    with pytest.raises(WireError, match=f"{whose} .{word} in the prototype of class 2"):
        open_frame(encode(HEADER, sent, coding), expected, 3, 7, (Kind.UPDATE,))
    broken = message()
    broken.tensors["kernel"][3, 0, 1, 1] = bad
    with pytest.raises(WireError, match=f"{whose} .{word} in tensor 'kernel'"):
        open_frame(encode(HEADER, broken, coding), expected, 3, 7, (Kind.UPDATE,))


@pytest.mark.parametrize("kind", [kind for kind in VALUE_TYPES.values() if kind.scaled], ids=lambda kind: kind.name)
def test_scales_that_no_sender_writes_are_refused(kind: ValueType) -> None:
    rows = Message(Prototypes(torch.ones(1, 2), torch.tensor([True])))
    expected = Expectation(DIGEST, 1, 2, wire=WireSettings(kind.name))
    body = bytearray(unpack(encode(HEADER, rows, Coding(kind)), DIGEST)[1])
    scale = slice(9, 11)  # behind the section's head and the bitmap
    for bits, value in (
        (0xBF80, "-1"),
        (0x7F80, "inf"),
        (0x7FC0, "nan"),
        (0x7FC1, "nan"),
        (0x0001, "9.18355e-41"),
        (0x7F00, "1.70141e\\+38"),
        (0x0000, "0"),
    ):
        body[scale] = struct.pack("<H", bits)
        with pytest.raises(WireError, match=f"rows values: row 0 with scale {value}: {kind.name} never"):
            open_frame(pack(HEADER, bytes(body)), expected, 3, 7, (Kind.UPDATE,))


def test_an_unknown_type_is_refused_with_the_known_ones() -> None:
    body = bytearray(unpack(encode(HEADER, message()), DIGEST)[1])
    body[1] = 9
    with pytest.raises(WireError, match=r"dtype: rows have type 9, this side knows 1 \(float32\), 2 \(float16\), 3"):
        decode(pack(HEADER, bytes(body)), DIGEST)


def test_a_frame_that_ends_within_its_scales_is_refused() -> None:
    body = bytes(unpack(encode(HEADER, Message(message().rows), Coding(INT8)), DIGEST)[1])
    with pytest.raises(WireError, match="rows values: needs 33 bytes, 5 are left"):
        decode(pack(HEADER, body[:-28]), DIGEST)


def test_float32_rows_are_a_view_of_the_frame() -> None:
    from tinyproto.wire.codec import decode_body

    frame = encode(HEADER, message())
    rows = decode_body(unpack(frame, DIGEST)[1], agreed=FLOAT32).rows
    assert rows is not None
    assert not rows.values.flags.owndata
    assert not rows.values.flags.writeable
