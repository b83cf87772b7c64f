"""CIFAR's python files: what they hold comes out, what they must not hold does nothing."""

from __future__ import annotations

import io
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support_data import Array, Python2Pickle, random_pixels
from tinyproto.data.sources.cifar_python import PickledArray, Refused, read_batch

PIXELS = random_pixels(40)
LABELS = [index % 10 for index in range(40)]
BATCH = {
    "batch_label": "training batch 1 of 5", "labels": LABELS, "data": PIXELS,
    "filenames": [f"leptodactylus_pentadactylus_s_{n:06}.png" for n in range(400)],
}  # fmt: skip


def pixels_of(content: bytes) -> Array:
    file = io.BytesIO(content)
    data = read_batch(file)["data"]
    assert isinstance(data, PickledArray)
    target = np.zeros(data.shape, dtype=np.uint8)
    data.read_into(file, target)
    return target


def test_the_test_files_are_what_python_2_wrote() -> None:
    read = pickle.loads(Python2Pickle().dumps(BATCH), encoding="latin1")
    assert read["data"].tolist() == PIXELS.tolist()
    assert {key: value for key, value in read.items() if key != "data"} == {
        k: v for k, v in BATCH.items() if k != "data"
    }


@pytest.mark.parametrize("by_column", [False, True])
@pytest.mark.parametrize("rows", [2, 40])
def test_an_official_file_gives_its_labels_and_pixels(rows: int, by_column: bool) -> None:
    content = Python2Pickle(by_column).dumps({**BATCH, "data": PIXELS[:rows]})
    assert read_batch(io.BytesIO(content))["labels"] == LABELS
    assert pixels_of(content).tolist() == PIXELS[:rows].tolist()


class Malicious:
    def __init__(self, call: Callable[..., Any], *arguments: Any) -> None:
        self.call, self.arguments = call, arguments

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self.call, self.arguments


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
def test_a_malicious_file_is_refused_and_nothing_of_it_runs(tmp_path: Path, protocol: int) -> None:
    trace = tmp_path / "was_here"
    content = pickle.dumps([Malicious(os.system, f"touch {trace}"), 1], protocol=protocol)
    with pytest.raises(Refused):
        read_batch(io.BytesIO(content))
    assert not trace.exists()
    pickle.loads(content)  # the file does mean harm
    assert trace.exists()


def test_a_refusal_says_what_the_file_asked_for() -> None:
    with pytest.raises(Refused, match=r"refers to \w+\.system.*nothing was executed"):
        read_batch(io.BytesIO(pickle.dumps([Malicious(os.system, "true")], protocol=2)))


@pytest.mark.parametrize(
    "content",
    [
        b"\x80\x02cnumpy\nndarray\n(K\x01tR.",  # calls what may only be named
        b"\x80\x02c_codecs\nencode\nX\x01\x00\x00\x00aX\x05\x00\x00\x00utf-8\x86R.",
        b"\x80\x02}}b.",  # sets the state of a mapping
        b"\x80\x02K\x01K\x02a.",
        b"\x80\x02K\x01(K\x02K\x03u.",
        b"\x80\x02]]\x81.",
        b"\x80\x02]q\x01.",
        b"\x80\x02h\x09.",
        b"\x80\x02}(]K\x01u.",
        b".",
        b"",
        b"<!DOCTYPE html>",
    ],
)
def test_anything_else_is_refused_in_words(content: bytes) -> None:
    with pytest.raises(Refused):
        read_batch(io.BytesIO(content))


def test_an_array_of_other_numbers_is_refused() -> None:
    content = Python2Pickle().dumps({"data": PIXELS[:2], "labels": LABELS[:2]})
    with pytest.raises(Refused, match="'f8', not of uint8"):
        read_batch(io.BytesIO(content.replace(b"U\x02u1", b"U\x02f8")))


@pytest.mark.parametrize("length", [1, 60, 5_000, 100_000])
def test_a_truncated_file_is_refused_as_such(length: int) -> None:
    with pytest.raises(Refused, match="is truncated"):
        read_batch(io.BytesIO(Python2Pickle().dumps(BATCH)[:length]))


def test_pixels_that_do_not_fill_their_shape_are_refused() -> None:
    content = Python2Pickle().dumps({"data": PIXELS[:2], "labels": LABELS[:2]})
    with pytest.raises(Refused, match=r"shape \(3, 3072\) with 6144 bytes"):
        read_batch(io.BytesIO(content.replace(b"K\x02M\x00\x0c", b"K\x03M\x00\x0c")))


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_no_damage_to_a_file_does_more_than_be_refused(data: st.DataObject) -> None:
    content = bytearray(Python2Pickle().dumps({"data": PIXELS[:2], "labels": LABELS[:2]}))
    for _ in range(data.draw(st.integers(1, 6))):
        content[data.draw(st.integers(0, 250) | st.integers(len(content) - 60, len(content) - 1))] = data.draw(
            st.integers(0, 255)
        )
    try:
        read_batch(io.BytesIO(bytes(content)))
    except Refused:
        return
