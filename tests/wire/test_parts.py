"""Tensors that may travel whole or in parts, and sizes that vary up to a limit."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from tinyproto.core.prototypes import AtMost, Message
from tinyproto.errors import WireError
from tinyproto.wire.codec import encode
from tinyproto.wire.frame import Header, Kind, federation_digest
from tinyproto.wire.validate import Expectation, open_frame

EXPECTED = Expectation(
    federation_digest({"a": 1}),
    num_classes=3,
    row_width=None,
    tensor_shapes={"bias": (4,), "scale": (), "w": (4, 6), "w.left": (4, AtMost(2)), "w.right": (AtMost(2), 6)},
    tensor_parts={"w": ("w.left", "w.right")},
)
HEADER = Header(Kind.UPDATE, round_number=5, client=4, digest=EXPECTED.digest)
OTHERS = {"bias": torch.ones(4), "scale": torch.tensor(2.0)}
WHOLE = {**OTHERS, "w": torch.ones(4, 6)}


def halves(left: int, right: int) -> dict[str, Tensor]:
    return {**OTHERS, "w.left": torch.ones(4, left), "w.right": torch.ones(right, 6)}


def opened(tensors: dict[str, Tensor], expected: Expectation = EXPECTED) -> Message:
    frame = encode(HEADER, Message(tensors=tensors))
    return open_frame(frame, expected, client=4, round_number=5, kinds=(Kind.UPDATE,)).message


def without(tensors: dict[str, Tensor], name: str) -> dict[str, Tensor]:
    return {key: value for key, value in tensors.items() if key != name}


@pytest.mark.parametrize("tensors", [WHOLE, halves(1, 1), halves(2, 2)])
def test_a_tensor_may_come_whole_or_in_parts_of_any_size_up_to_the_limit(tensors: dict[str, Tensor]) -> None:
    received = opened(tensors).tensors
    assert {name: value.shape for name, value in received.items()} == {
        name: value.shape for name, value in tensors.items()
    }


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        (without(WHOLE, "bias"), "tensor 'bias': it has to be there once, whole$"),
        (without(WHOLE, "scale"), "tensor 'scale': it has to be there once, whole$"),
        (OTHERS, "tensor 'w': it has to be there once, whole or in parts$"),
        ({**WHOLE, **halves(1, 1)}, "tensor 'w': it has to be there once"),
        (without(halves(1, 1), "w.right"), "tensor 'w': it has to be there once"),
        (without(halves(1, 1), "w.left"), "tensor 'w': it has to be there once"),
        (without({**WHOLE, **halves(1, 1)}, "w.left"), "tensor 'w': it has to be there once"),
    ],
)
def test_a_tensor_that_is_missing_there_twice_or_in_half_is_refused(tensors: dict[str, Tensor], words: str) -> None:
    with pytest.raises(WireError, match=f"frame of client 4, round 5, refused: {words}"):
        opened(tensors)


def test_parts_that_do_not_fit_each_other_are_refused() -> None:
    with pytest.raises(WireError, match=r"tensor 'w': its parts do not fit, .* 1 and 2"):
        opened(halves(2, 1))


@pytest.mark.parametrize("size", [0, 3, 2**20])
def test_a_size_beyond_the_limit_and_one_of_nothing_are_refused(size: int) -> None:
    shape = f"4 × {size}"
    with pytest.raises(WireError, match=f"tensor 'w.left': its shape is {shape}, not 4 × up to 2"):
        EXPECTED.check_tensor("w.left", (4, size))
    for good in (1, 2):
        EXPECTED.check_tensor("w.left", (4, good))
    if size < 10:
        with pytest.raises(WireError, match=rf"refused: tensor 'w.left': its shape is {shape}"):
            opened(halves(size, size))


def test_a_message_without_tensors_says_nothing_and_is_no_fault() -> None:
    assert not opened({}).tensors


def test_values_in_parts_are_checked_like_any_other() -> None:
    broken = halves(1, 1)
    broken["w.right"][0, 3] = math.nan
    with pytest.raises(WireError, match=r"NaN in tensor 'w.right'"):
        opened(broken)


def test_the_largest_frame_holds_either_form_and_never_more_than_both() -> None:
    for tensors in (WHOLE, halves(2, 2)):
        assert len(encode(HEADER, Message(tensors=tensors, metrics={"loss": 1.0}))) <= EXPECTED.largest_frame
    without_parts = replace(EXPECTED, tensor_shapes={"bias": (4,)}, tensor_parts={})
    values = 1 + 4 * 6 + 4 * 2 + 2 * 6  # of scale, w and its two parts
    names = sum(len(name) for name in ("scale", "w", "w.left", "w.right"))
    sizes_and_types = 4 * (0 + 2 + 2 + 2) + 4 * 3
    assert EXPECTED.largest_frame - without_parts.largest_frame == 4 * values + names + sizes_and_types
