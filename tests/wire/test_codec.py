from __future__ import annotations

import struct

import pytest
import torch

from tinyproto.core.prototypes import Message, Prototypes
from tinyproto.errors import WireError
from tinyproto.wire.codec import METRIC_CODES, decode, encode, payload_bytes
from tinyproto.wire.frame import HEADER_BYTES, Header, Kind, federation_digest, pack

DIGEST = federation_digest({"algorithm": "test"})
HEADER = Header(Kind.UPDATE, round_number=7, client=3, digest=DIGEST)


def rows(num_classes: int, width: int, held: list[int]) -> Prototypes:
    present = torch.zeros(num_classes, dtype=torch.bool)
    present[held] = True
    values = torch.arange(num_classes * width, dtype=torch.float32).view(num_classes, width) / 7
    return Prototypes(values * present.unsqueeze(1), present)


def test_rows_come_back_bit_for_bit() -> None:
    message = Message(rows=rows(10, 4, [0, 3, 9]))
    decoded = decode(encode(HEADER, message), DIGEST)
    assert decoded.header == HEADER
    assert decoded.message.rows is not None
    assert message.rows is not None
    assert torch.equal(decoded.message.rows.values, message.rows.values)
    assert torch.equal(decoded.message.rows.present, message.rows.present)


def test_tensors_and_metrics_come_back_with_names_shapes_and_values() -> None:
    tensors = {"head.weight": torch.randn(3, 4), "scalar": torch.tensor(2.5), "empty": torch.zeros(0, 5)}
    metrics = {"test_samples": 12.0, "correct_head": float(2**40 + 1), "my_metric": 0.1}
    decoded = decode(encode(HEADER, Message(tensors=tensors, metrics=metrics)), DIGEST).message
    assert decoded.rows is None
    assert list(decoded.tensors) == sorted(tensors)
    assert all(torch.equal(decoded.tensors[name], tensor) for name, tensor in tensors.items())
    assert decoded.metrics == metrics


@pytest.mark.parametrize("num_classes", [1, 8, 9, 10, 100, 200, 1000])
def test_a_rows_only_frame_costs_at_most_64_bytes_and_the_bitmap_over_its_values(num_classes: int) -> None:
    message = Message(rows=rows(num_classes, 50, list(range(0, num_classes, 2))))
    overhead = len(encode(HEADER, message)) - payload_bytes(message)
    assert overhead <= 64 + (num_classes + 7) // 8


def test_only_rows_present_travel() -> None:
    few, many = Message(rows=rows(100, 50, [5])), Message(rows=rows(100, 50, [5, 6, 7]))
    assert len(encode(HEADER, many)) - len(encode(HEADER, few)) == 2 * 50 * 4
    assert payload_bytes(many) == 3 * 50 * 4


def test_a_known_metric_costs_five_bytes() -> None:
    one = encode(HEADER, Message(metrics={"test_samples": 1.0}))
    two = encode(HEADER, Message(metrics={"test_samples": 1.0, "correct_head": 1.0}))
    assert len(two) - len(one) == 5


def test_the_order_of_metric_codes_is_part_of_the_protocol() -> None:
    assert METRIC_CODES["train_samples"] == 1
    assert METRIC_CODES["correct_local"] == 7
    assert METRIC_CODES["regulariser"] == 9


def test_an_empty_message_is_a_bare_header() -> None:
    assert len(encode(HEADER, Message())) == HEADER_BYTES
    assert decode(encode(HEADER, Message()), DIGEST).message == Message()


def test_the_evaluate_flag_travels() -> None:
    header = Header(Kind.TRAIN, 1, 0, DIGEST, evaluate=True)
    assert decode(encode(header, Message()), DIGEST).header.evaluate


def refused(body: bytes, words: str) -> None:
    with pytest.raises(WireError, match=words):
        decode(pack(HEADER, body), DIGEST)


def test_each_malformed_section_is_refused_with_its_field() -> None:
    refused(b"\x09", "section: unknown type 9")
    metric = struct.pack("<BBBf", 3, 1, 1, 1.0)
    refused(metric * 2, "repeated or out of order")
    refused(struct.pack("<BBHI", 1, 9, 1, 1), "dtype")
    refused(struct.pack("<BBHI", 1, 1, 1, 1) + b"\x02", "has a class above the 1")
    refused(struct.pack("<BBHI", 1, 1, 1, 1) + b"\x01", "rows values: needs 4 bytes, 0 are left")
    refused(struct.pack("<BBHI", 1, 1, 60000, 60000), "more than any federation")
    refused(struct.pack("<BH", 2, 1), "tensor name")
    refused(struct.pack("<BH", 2, 1) + b"\x01\xff", "UTF-8")
    refused(struct.pack("<BH", 2, 1) + b"\x01a\x07\x00", "dtype")
    tensor = b"\x01a\x01\x00" + struct.pack("<f", 1.0)
    refused(struct.pack("<BH", 2, 2) + tensor + tensor, "appears twice")
    refused(struct.pack("<BB", 3, 1) + b"\x70" + struct.pack("<f", 1.0), "unknown code 112")
    refused(struct.pack("<BB", 3, 1) + b"\x01", "metric 'train_samples'")


def test_shapes_that_would_overflow_are_refused() -> None:
    huge = struct.pack("<4I", 0, 2**32 - 1, 2**32 - 1, 2**32 - 1)
    refused(struct.pack("<BH", 2, 1) + b"\x01a\x01\x04" + huge, "more than any federation")


def test_a_metric_given_twice_is_refused() -> None:
    metric = b"\x04" + struct.pack("<f", 1.0)
    refused(struct.pack("<BB", 3, 2) + metric + metric, "metric 'test_samples': appears twice")


def test_what_cannot_travel_is_our_own_mistake() -> None:
    with pytest.raises(ValueError, match="only float32"):
        encode(HEADER, Message(tensors={"steps": torch.tensor(3)}))
    with pytest.raises(ValueError, match="at most 65535 classes"):
        encode(HEADER, Message(rows=Prototypes.absent(70_000, 1)))


def test_a_tensor_with_too_long_a_name_is_our_own_mistake() -> None:
    with pytest.raises(ValueError, match="255 bytes"):
        encode(HEADER, Message(tensors={"n" * 300: torch.zeros(1)}))
