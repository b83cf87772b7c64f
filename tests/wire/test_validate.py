from __future__ import annotations

import struct
from dataclasses import replace

import pytest
import torch

from tinyproto.core.prototypes import AtMost, Message, Prototypes
from tinyproto.errors import WireError
from tinyproto.memory import PeakMemory
from tinyproto.wire.codec import encode
from tinyproto.wire.frame import Header, Kind, federation_digest, pack
from tinyproto.wire.validate import Expectation, open_frame

EXPECTED = Expectation(federation_digest({"a": 1}), num_classes=3, row_width=2, tensor_shapes={"head": (2, AtMost(5))})
HEADER = Header(Kind.UPDATE, round_number=5, client=4, digest=EXPECTED.digest)


def rows(values: list[list[float]]) -> Message:
    return Message(rows=Prototypes(torch.tensor(values), torch.ones(len(values), dtype=torch.bool)))


GOOD = rows([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])


def opened(header: Header, message: Message, expected: Expectation = EXPECTED) -> Message:
    return open_frame(encode(header, message), expected, client=4, round_number=5, kinds=(Kind.UPDATE,)).message


def test_a_good_frame_is_opened() -> None:
    message = opened(HEADER, GOOD)
    assert message.rows is not None
    assert message.rows.values.tolist() == [[1, 2], [3, 4], [5, 6]]


@pytest.mark.parametrize(
    ("header", "words"),
    [
        (HEADER._replace(digest=bytes(16)), "client 4, round 5, refused: checksum"),
        (HEADER._replace(kind=Kind.TRAIN), "kind: train instead of update"),
        (HEADER._replace(client=9), "client: the frame says client 9"),
        (HEADER._replace(round_number=4), "round: the frame says round 4"),
    ],
)
def test_a_frame_from_elsewhere_is_refused(header: Header, words: str) -> None:
    with pytest.raises(WireError, match=words):
        opened(header, GOOD)


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (rows([[1.0, 2.0]]), "classes × width is 1 × 2, not 3 × 2"),
        (rows([[1.0], [1.0], [1.0]]), "classes × width is 3 × 1, not 3 × 2"),
        (rows([[1.0, 2.0], [float("nan"), 0.0], [0.0, 0.0]]), "NaN in the prototype of class 1"),
        (rows([[float("inf"), 2.0], [0.0, 0.0], [0.0, 0.0]]), "infinity in the prototype of class 0"),
        (rows([[1.0, 2.0], [0.0, 0.0], [3e9, 0.0]]), "norm 3e\\+09 of the prototype of class 2, above 1e\\+08"),
        (Message(tensors={"tail": torch.zeros(1)}), "tensor 'tail': this algorithm exchanges no such"),
        (Message(tensors={"head": torch.tensor([[1.0], [float("nan")]])}), "NaN in tensor 'head'"),
        (Message(tensors={"head": torch.zeros(3, 2)}), "its shape is 3 × 2, not 2 × up to 5"),
        (Message(tensors={"head": torch.zeros(2)}), "its shape is 2, not 2 × up to 5"),
        (Message(metrics={"regulariser": float("nan")}), "loss regulariser is nan"),
        (Message(metrics={"mine": float("-inf")}), "loss mine is -inf"),
        (Message(metrics={"mine": -1e308}), "loss mine is -1e\\+308"),
        (Message(metrics={"test_samples": float("inf")}), "metric test_samples is inf"),
    ],
)
def test_values_no_training_gives_are_refused(message: Message, words: str) -> None:
    with pytest.raises(WireError, match=words):
        opened(HEADER, message)


def test_a_diverged_upload_is_named_by_client_round_and_value_with_the_remedies_in_order() -> None:
    expected = replace(EXPECTED, remedies=("algorithms.proto_weight", "train.learning_rate"))
    sent = encode(HEADER, rows([[1e16, 0.0], [0.0, 0.0], [0.0, 0.0]]))
    with pytest.raises(WireError) as caught:
        open_frame(sent, expected, client=4, round_number=5, kinds=(Kind.UPDATE,))
    assert str(caught.value) == (
        "training diverged at client 4 in round 5 (norm 1e+16 of the prototype of class 0, above 1e+08); "
        "lower algorithms.proto_weight, then train.learning_rate"
    )


def test_clients_accept_longer_rows_than_the_server_does() -> None:
    between = rows([[5e8, 0.0], [0.0, 0.0], [0.0, 0.0]])
    with pytest.raises(WireError, match=r"norm 5e\+08 .* above 1e\+08"):
        opened(HEADER, between)
    down = encode(HEADER._replace(kind=Kind.TRAIN), between)
    assert open_frame(down, EXPECTED, client=4, round_number=None, kinds=(Kind.TRAIN,)).message.rows is not None
    too_long = encode(HEADER._replace(kind=Kind.TRAIN), rows([[2e9, 0.0], [0.0, 0.0], [0.0, 0.0]]))
    with pytest.raises(WireError, match=r"frame of client 4, refused: norm 2e\+09 .* above 1e\+09"):
        open_frame(too_long, EXPECTED, client=4, round_number=None, kinds=(Kind.TRAIN,))


def test_foreign_rows_are_refused_before_memory_is_taken_for_them() -> None:
    bomb = pack(HEADER, struct.pack("<BBHI", 1, 1, 1, 1 << 28) + b"\x00")
    for expected in (EXPECTED, replace(EXPECTED, row_width=None)):
        before = PeakMemory(torch.device("cpu"))
        start = before.read()
        with pytest.raises(WireError, match="rows"):
            open_frame(bomb, expected, client=4, round_number=5, kinds=(Kind.UPDATE,))
        assert before.read() - start < 100_000_000


def test_the_header_is_checked_before_the_body_is_read() -> None:
    frame = pack(HEADER._replace(digest=bytes(16)), b"garbage")
    with pytest.raises(WireError, match="checksum"):
        open_frame(frame, EXPECTED, client=4, round_number=5, kinds=(Kind.UPDATE,))


def test_a_frame_longer_than_any_can_be_is_refused_at_once() -> None:
    fixed = replace(EXPECTED, tensor_shapes={"head": (2, 2)})
    with pytest.raises(WireError, match=r"length: 100000 bytes, .* at most"):
        open_frame(bytes(100_000), fixed, client=4, round_number=5, kinds=(Kind.UPDATE,))
    whole = Message(rows=GOOD.rows, tensors={"head": torch.ones(2, 2)}, metrics={"loss": 1.0})
    assert len(encode(HEADER, whole)) <= fixed.largest_frame
    assert EXPECTED.largest_frame == fixed.largest_frame + 2 * 3 * 4  # up to 2 × 5


def test_rows_are_refused_where_an_algorithm_exchanges_none() -> None:
    with pytest.raises(WireError, match="exchanges none"):
        opened(HEADER, GOOD, replace(EXPECTED, row_width=None))


def test_an_expected_tensor_and_no_rows_at_all_are_fine() -> None:
    assert opened(HEADER, Message(tensors={"head": torch.ones(2, 2)})).tensors["head"].shape == (2, 2)
    nobody = Prototypes.absent(3, 2)
    message = opened(HEADER, Message(rows=nobody))
    assert message.rows is not None
    assert not message.rows.present.any()


def test_a_client_takes_the_round_from_the_frame() -> None:
    decoded = open_frame(encode(HEADER, GOOD), EXPECTED, client=4, round_number=None, kinds=(Kind.UPDATE,))
    assert decoded.header.round_number == 5


def test_frames_that_differ_in_the_header_only_share_a_message() -> None:
    frames = [encode(HEADER._replace(client=client), GOOD) for client in (4, 5, 6)]
    first = open_frame(frames[0], EXPECTED, client=4, round_number=5, kinds=(Kind.UPDATE,))
    second = open_frame(frames[1], EXPECTED, client=5, round_number=5, kinds=(Kind.UPDATE,), last=first)
    assert second.header == HEADER._replace(client=5)
    assert second.message is first.message
    with pytest.raises(WireError, match="client: the frame says client 6"):
        open_frame(frames[2], EXPECTED, client=5, round_number=5, kinds=(Kind.UPDATE,), last=first)
    damaged = frames[1][:4] + b"\x01" + frames[1][5:]
    with pytest.raises(WireError, match="checksum"):
        open_frame(damaged, EXPECTED, client=5, round_number=5, kinds=(Kind.UPDATE,), last=first)
    other = encode(HEADER._replace(client=5), rows([[1.0, 2.0], [3.0, 4.0], [5.0, 7.0]]))
    message = open_frame(other, EXPECTED, client=5, round_number=5, kinds=(Kind.UPDATE,), last=first).message
    assert message.rows is not None
    assert message.rows.values[2].tolist() == [5.0, 7.0]
