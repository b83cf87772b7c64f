from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tinyproto.core.messages import Message
from tinyproto.core.prototypes import Prototypes
from tinyproto.errors import WireError
from tinyproto.wire.codec import encode
from tinyproto.wire.frame import Header, Kind, federation_digest
from tinyproto.wire.validate import Expectation, open_frame

EXPECTED = Expectation(federation_digest({"a": 1}), num_classes=3, row_width=2, tensor_names=frozenset({"head"}))
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
        (replace(HEADER, digest=bytes(16)), "client 4, round 5, refused: digest"),
        (replace(HEADER, kind=Kind.TRAIN), "kind: train where update was due"),
        (replace(HEADER, client=9), "client: the frame says client 9"),
        (replace(HEADER, round_number=4), "round: the frame says round 4"),
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
        (rows([[1.0, 2.0], [float("nan"), 0.0], [0.0, 0.0]]), "NaN in row 1"),
        (rows([[float("inf"), 2.0], [0.0, 0.0], [0.0, 0.0]]), "infinity in row 0"),
        (rows([[1.0, 2.0], [0.0, 0.0], [3e9, 0.0]]), "norm 3e\\+09 of row 2 is absurd"),
        (Message(tensors={"tail": torch.zeros(1)}), "tensor 'tail': this algorithm exchanges no such"),
        (Message(tensors={"head": torch.tensor([1.0, float("nan")])}), "tensor 'head': NaN"),
        (Message(metrics={"loss": float("nan")}), "metric 'loss'"),
        (Message(metrics={"loss": float("-inf")}), "metric 'loss'"),
    ],
)
def test_values_no_training_gives_are_refused(message: Message, words: str) -> None:
    with pytest.raises(WireError, match=words):
        opened(HEADER, message)


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
