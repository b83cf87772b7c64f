"""One message, one encoding: bytes that the encoder never writes are refused, each built from a good frame."""

from __future__ import annotations

import struct

import numpy as np
import pytest
import torch

from tinyproto.core.prototypes import Message, Prototypes
from tinyproto.errors import WireError
from tinyproto.wire.codec import METRIC_CODES, decode, encode
from tinyproto.wire.frame import Header, Kind, pack, unpack
from tinyproto.wire.values import FLOAT16, INT4, INT8, Coding, ValueType

NEVER = "^rows values: row 0 with scale .*: (float16|int8|int4) never encodes a row like this$"
HEADER = Header(Kind.UPDATE, round_number=7, client=3, digest=bytes(16))
SCALE, VALUES = 9, 11  # of a single row: behind the section's head and a bitmap of one byte


def body(message: Message, kind: ValueType | None = None) -> bytearray:
    frame = encode(HEADER, message, Coding() if kind is None else Coding(kind))
    decode(frame, HEADER.digest)  # is good
    return bytearray(unpack(frame, HEADER.digest)[1])


def row(*values: float) -> Message:
    return Message(Prototypes(torch.tensor([values]), torch.tensor([True])))


def refused(mutated: bytes | bytearray, words: str) -> None:
    with pytest.raises(WireError, match=words):
        decode(pack(HEADER, bytes(mutated)), HEADER.digest)


def test_integers_beyond_the_range_of_the_encoder_are_refused() -> None:
    eight = body(row(1.0, -1.0, 0.5), INT8)
    eight[VALUES + 1] = 0x80
    refused(eight, "^rows values: row 0 with scale 0.00793457: int8 never encodes a row like this$")
    four = body(row(1.0, -1.0, 0.5), INT4)
    assert four[VALUES] == 0x97
    four[VALUES] = 0x87
    refused(four, "^rows values: row 0 with scale 0.143555: int4 never")


@pytest.mark.parametrize("kind", [FLOAT16, INT8, INT4], ids=lambda kind: kind.name)
@pytest.mark.parametrize(
    ("bits", "scale"),
    [
        (0xBF80, "-1"),
        (0x8000, "-0"),
        (0x0000, "0"),
        (0x0001, "9.18355e-41"),
        (0x7F80, "inf"),
        (0x7FC0, "nan"),
        (0x7F81, "nan"),
        (0x7F00, "1.70141e\\+38"),
    ],
)
def test_a_scale_that_no_row_has_is_refused(kind: ValueType, bits: int, scale: str) -> None:
    mutated = body(row(1.0, -1.0, 0.5), kind)
    struct.pack_into("<H", mutated, SCALE, bits)
    refused(mutated, f"^rows values: row 0 with scale {scale}: {kind.name} never")


@pytest.mark.parametrize("kind", [FLOAT16, INT8, INT4], ids=lambda kind: kind.name)
def test_a_row_of_zeros_has_scale_0_alone(kind: ValueType) -> None:
    for bits in (0x3F80, 0x0080):
        mutated = body(row(0.0, 0.0), kind)
        struct.pack_into("<H", mutated, SCALE, bits)
        refused(mutated, NEVER)


@pytest.mark.parametrize("kind", [INT8, INT4], ids=lambda kind: kind.name)
def test_a_row_that_rounds_to_zeros_is_written_as_one(kind: ValueType) -> None:
    assert body(row(2.0**-140, -(2.0**-149)), kind) == body(row(0.0, 0.0), kind)


def test_a_scale_of_float16_is_a_power_of_two() -> None:
    mutated = body(row(1.0, -0.5), FLOAT16)
    mutated[SCALE] |= 1
    refused(mutated, NEVER)


@pytest.mark.parametrize("kind", [FLOAT16, INT8, INT4], ids=lambda kind: kind.name)
def test_the_same_values_with_a_larger_scale_are_refused(kind: ValueType) -> None:
    values = {FLOAT16: [8192.0, -4096.0], INT8: [64.0, -3.0], INT4: [3.0, -1.0]}[kind]
    written = np.array(values, np.float16 if kind is FLOAT16 else np.int8)
    mutated = body(row(*values), kind)
    mutated[VALUES:] = bytes(((int(written[1]) & 15) << 4 | int(written[0]),)) if kind is INT4 else written.tobytes()
    struct.pack_into("<H", mutated, SCALE, 0x3F80)  # 1
    refused(mutated, NEVER)


def test_values_of_float16_beyond_its_row_are_refused() -> None:
    for bits in (0x7801, 0x7C00, 0xFC00, 0x7E00):  # above 2¹⁵, the infinities, a NaN
        mutated = body(row(1.0, 0.5), FLOAT16)
        struct.pack_into("<H", mutated, VALUES + 2, bits)
        refused(mutated, NEVER)


def test_a_value_of_float16_that_no_float32_has_is_refused() -> None:
    small = 2.0**-128  # the scale is the smallest, 2⁻¹²⁶; with 2⁻²⁴ it gives 2⁻¹⁵⁰, and float32 ends at 2⁻¹⁴⁹
    for values, place in ((row(small, small), VALUES + 2), (row(2.0**-112, small), VALUES + 2), (row(small), VALUES)):
        for bits, passes in ((0x0001, False), (0x8007, False), (0x0401, False), (0x0002, True), (0x0802, True)):
            mutated = body(values, FLOAT16)
            struct.pack_into("<H", mutated, place, bits)
            if passes:
                decoded = decode(pack(HEADER, bytes(mutated)), HEADER.digest).message
                assert body(decoded, FLOAT16) == mutated
            else:
                refused(mutated, NEVER)


def test_a_diverged_row_has_one_form() -> None:
    for kind in (FLOAT16, INT8, INT4):
        for value in (float("nan"), float("inf")):
            mutated = body(row(value, 1.0), kind)
            mutated[-1] ^= 0xE0  # another sign, another number
            refused(mutated, NEVER)


def test_padding_other_than_zero_is_refused() -> None:
    odd = body(row(1.0, -1.0, 0.5), INT4)
    odd[-1] |= 0x10
    refused(odd, "^rows values: padding: the unused half of the last byte is not 0$")
    bitmap = body(row(1.0))
    bitmap[SCALE - 1] |= 0x80
    refused(bitmap, "rows bitmap: has a class above the 1")


def test_tensors_are_refused_in_their_own_name() -> None:
    mutated = body(Message(tensors={"head": torch.ones(2, 3)}), INT8)
    mutated[-1] = 0x80
    refused(mutated, "^tensor 'head' values: row 1 with scale 0.00793457: int8 never")


def metric(code: int, layout: str, value: float, name: str = "") -> bytes:
    tag = code | (0x80 if layout == "<d" else 0)
    return bytes((tag,)) + (bytes((len(name),)) + name.encode() if not code else b"") + struct.pack(layout, value)


def metrics(*several: bytes) -> bytes:
    return struct.pack("<BB", 3, len(several)) + b"".join(several)


def test_a_metric_is_as_wide_as_its_value_needs() -> None:
    exact, rounded = {"cross_entropy": 0.5}, {"cross_entropy": 0.1}
    assert body(Message(metrics=exact)) == metrics(metric(8, "<f", 0.5))
    assert body(Message(metrics=rounded)) == metrics(metric(8, "<d", 0.1))
    refused(metrics(metric(8, "<d", 0.5)), "^metric 'cross_entropy': 0.5 as an f64, where an f32 holds it exactly$")
    refused(metrics(metric(0, "<d", 0.5, "mine")), "^metric 'mine': 0.5 as an f64")
    for value in (3.2e38, float("inf"), float("nan")):  # wide, though an f32 may hold it
        assert body(Message(metrics={"mine": value})) == metrics(metric(0, "<d", value, "mine"))
        refused(metrics(metric(0, "<f", value, "mine")), "^metric 'mine': .* as an f32, where only")


def test_metrics_have_one_order_whoever_hands_them_over() -> None:
    values = dict.fromkeys((*METRIC_CODES, "b", "a"), 1.0)
    expected = [8, 9, 0, 0, 1, 2, 3, 4, 5, 6, 7]
    names = ["cross_entropy", "regulariser", "a", "b", *list(METRIC_CODES)[:7]]
    for order in (list(values), list(reversed(values))):
        frame = encode(HEADER, Message(metrics={name: values[name] for name in order}))
        assert list(decode(frame, HEADER.digest).message.metrics) == names
        pieces = [metric(code, "<f", 1.0, "" if code else name) for code, name in zip(expected, names, strict=True)]
        assert bytes(unpack(frame, HEADER.digest)[1]) == metrics(*pieces)


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        ((5, "correct_head"), (4, "test_samples"), "metric 'test_samples': out of order, it follows 'correct_head'"),
        ((4, "test_samples"), (8, "cross_entropy"), "metric 'cross_entropy': out of order, it follows 'test_samples'"),
        ((9, "regulariser"), (8, "cross_entropy"), "metric 'cross_entropy': out of order"),
        ((0, "b"), (0, "a"), "metric 'a': out of order, it follows 'b'"),
        ((0, "a"), (9, "regulariser"), "metric 'regulariser': out of order"),
        ((1, "train_samples"), (0, "a"), "metric 'a': out of order"),
        ((0, "a"), (0, "a"), "metric 'a': appears twice"),
    ],
)
def test_metrics_out_of_order_are_refused(first: tuple[int, str], second: tuple[int, str], words: str) -> None:
    pieces = [metric(code, "<f", 1.0, "" if code else name) for code, name in (first, second)]
    refused(metrics(*pieces), f"^{words}")


def test_a_metric_with_a_code_is_not_spelled_out() -> None:
    refused(metrics(metric(0, "<f", 1.0, "test_samples")), "^metric 'test_samples': spelled out although it has code 4")


def test_tensors_out_of_order_are_refused() -> None:
    one, other = (bytes(body(Message(tensors={name: torch.ones(1)})))[3:] for name in ("a", "b"))
    decode(pack(HEADER, struct.pack("<BH", 2, 2) + one + other), HEADER.digest)
    refused(struct.pack("<BH", 2, 2) + other + one, "^tensor 'a': out of order, it follows 'b'$")
    refused(struct.pack("<BH", 2, 2) + one + one, "^tensor 'a': appears twice$")


def test_an_empty_section_is_refused() -> None:
    refused(struct.pack("<BH", 2, 0), "^tensors: the section is empty")
    refused(struct.pack("<BB", 3, 0), "^metrics: the section is empty")
