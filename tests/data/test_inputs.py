"""Inputs that are not images: floats of any shape and token ids, how networks see them, and what is refused."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tinyproto.data import Dataset, Share, from_arrays, load
from tinyproto.data.normalise import with_normalisation, with_statistics
from tinyproto.data.partition import train_rows
from tinyproto.errors import DataError
from tinyproto.workers.child import SharedDataset, received_dataset

RANDOM = np.random.default_rng(0)
TABLE = RANDOM.normal((5.0, -1000.0, 0.0), (1.0, 200.0, 0.0), (40, 3))
LABELS = np.arange(40) % 4


def seen(images: Dataset) -> torch.Tensor:
    return images.take(torch.arange(len(images))).batch(slice(None)).inputs


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.bool_])
@pytest.mark.parametrize("shape", [(40, 3), (40, 2, 7), (40, 1, 4, 4), (40, 2, 2, 2, 2)])
def test_floats_of_any_shape_are_stored_as_float32(shape: tuple[int, ...], dtype: Any) -> None:
    values = RANDOM.normal(size=shape).astype(dtype)
    images = from_arrays(values, LABELS)
    assert (images.dtype, images.input_shape) == ("float32", shape[1:])
    assert np.array_equal(images.inputs.numpy(), values.astype(np.float32))


def test_floats_are_normalised_by_the_training_samples_of_each_column() -> None:
    shares = [Share(np.arange(10), np.arange(10, 20)), Share(np.arange(20, 30), np.arange(30, 40))]
    inputs = seen(with_statistics(from_arrays(TABLE, LABELS), train_rows(shares)))
    train = inputs[torch.from_numpy(train_rows(shares))]
    torch.testing.assert_close(train.mean(0), torch.zeros(3), atol=1e-4, rtol=0)
    torch.testing.assert_close(train.std(0, correction=0), torch.tensor([1.0, 1.0, 0.0]), atol=1e-4, rtol=0)
    assert abs(inputs.mean(0)[0]) > 1e-3  # the others have means of their own


def test_signals_are_normalised_by_channel() -> None:
    signals = RANDOM.normal([[3.0], [-7.0]], [[2.0], [0.1]], (40, 2, 50))
    images = with_statistics(from_arrays(signals, LABELS), np.arange(40))
    assert isinstance(images.scale, tuple)
    assert len(images.scale) == 2
    torch.testing.assert_close(seen(images).mean((0, 2)), torch.zeros(2), atol=1e-4, rtol=0)
    torch.testing.assert_close(seen(images).std((0, 2)), torch.ones(2), atol=1e-2, rtol=0)


def test_agreed_constants_replace_the_statistics() -> None:
    images = from_arrays(TABLE, LABELS, normalise={"mean": [5.0, -1000.0, 0.0], "std": 2.0})
    assert (images.scale, images.shift) == ((0.5, 0.5, 0.5), (-2.5, 500.0, 0.0))
    assert with_statistics(images, np.arange(3)) is images
    torch.testing.assert_close(seen(images), (images.inputs - torch.tensor([5.0, -1000.0, 0.0])) / 2)
    pixels = from_arrays(np.full((1, 3, 2, 2), 4, np.uint8), [0], normalise={"mean": [1.0, 2.0, 3.0], "std": 1.0})
    assert seen(pixels)[0, :, 0, 0].tolist() == [3.0, 2.0, 1.0]


def test_none_shows_values_as_they_are_stored() -> None:
    images = with_statistics(from_arrays(TABLE, LABELS, normalise="none"), np.arange(40))
    assert torch.equal(seen(images), images.inputs)


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"mean": [1.0, 2.0], "std": 1.0}, r"mean has 2 numbers; give one, or 3"),
        ({"mean": 0.0, "std": 0.0}, "std has to be greater than 0"),
        ({"mean": 0.0}, "auto, none, or a mapping with mean and std"),
        ("zscore", "auto, none, or a mapping"),
    ],
)
def test_a_normalisation_that_does_not_fit_is_refused(how: Any, says: str) -> None:
    with pytest.raises(DataError, match=says):
        from_arrays(TABLE, LABELS, normalise=how)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_token_ids_reach_a_network_as_they_are(dtype: Any) -> None:
    ids = RANDOM.integers(0, 50, (40, 6)).astype(dtype)
    images = from_arrays(ids, LABELS, vocabulary=60)
    assert (images.dtype, images.vocabulary) == ("int64", 60)
    assert torch.equal(seen(images), torch.from_numpy(ids.astype(np.int64)))
    assert from_arrays(ids, LABELS).vocabulary == ids.max() + 1
    with pytest.raises(DataError, match="token ids, which are not normalised"):
        with_normalisation(images, "none")


@pytest.mark.parametrize(
    ("inputs", "more", "says"),
    [
        (TABLE.astype(np.int16), {}, r"int16 may be measurements or token ids; say which with \.astype\('float32'\)"),
        (TABLE.astype(np.int64), {}, r"token ids are 0 or more, .* convert measurements with \.astype\('float32'\)"),
        (np.where(TABLE > 5, np.nan, TABLE), {}, r"sample \d+ has the value nan; fill it in or remove the sample"),
        (TABLE * 1e300, {}, r"sample 0 has the value (-)?inf"),
        ([["a", "b"]] * 40, {}, "turn text into token ids first"),
        ([[1.0], *[[1.0, 2.0]] * 39], {}, "differ in shape; crop, pad or resize"),
        (TABLE[:, 0], {}, "give each sample an axis"),
        (TABLE.astype(np.uint8), {}, r"uint8 images have to be .* convert other data with \.astype\('float32'\)"),
        (np.zeros((40, 8, 8, 3)), {}, r"look like \(N, H, W, C\); transpose"),
        (TABLE, {"vocabulary": 9}, "vocabulary is for token ids"),
        (np.full((40, 2), 9), {"vocabulary": 9}, r"token ids are 0 … 8, but one is 9"),
        (TABLE, {"columns": ["a"]}, "cannot have 1 columns"),
        (TABLE, {"class_names": ["a", "b"]}, r"labels have to be in 0 … 1"),
        (TABLE, {"class_names": ["a", "b", "b", "c"]}, "a name twice"),
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_refused_with_advice_that_keeps_the_data(inputs: Any, more: Any, says: str) -> None:
    with pytest.raises(DataError, match=says) as error:
        from_arrays(inputs, LABELS, **more)
    assert "round" not in str(error.value)


@pytest.mark.parametrize(
    "values",
    [TABLE, TABLE.astype(np.float32), np.abs(TABLE).astype(np.int64), RANDOM.normal(size=(40, 2, 5))],
)
def test_an_npz_file_holds_any_of_them(values: Any, tmp_path: Path) -> None:
    np.savez(tmp_path / "mine.npz", x=values, y=LABELS, class_names=np.array(["a", "b", "c", "d"]))
    images = load("npz", tmp_path / "mine.npz")
    again = from_arrays(values, LABELS, class_names=["a", "b", "c", "d"])
    assert torch.equal(images.inputs, again.inputs)
    assert (images.name, images.class_names, images.vocabulary) == ("mine", again.class_names, again.vocabulary)


@pytest.mark.parametrize("values", [TABLE, np.abs(TABLE).astype(np.int64)])
def test_a_child_process_gets_them_with_all_facts(values: Any, tmp_path: Path) -> None:
    np.savez(tmp_path / "mine.npz", x=values, y=LABELS, class_names=np.array(["a", "b", "c", "d"]))
    images = with_statistics(load("npz", tmp_path / "mine.npz"), np.arange(20))
    handover = SharedDataset(images)
    request = handover.request({})
    for part in ("inputs", "labels"):  # a child inherits copies of the descriptors
        request.head[part]["descriptor"] = os.dup(request.head[part]["descriptor"])
    received = received_dataset(request)
    assert received is not None
    assert received.facts() == images.facts()
    assert torch.equal(seen(received), seen(images))
    assert torch.equal(received.labels, images.labels)


def test_wine_is_scikit_learns() -> None:
    from sklearn.datasets import load_wine

    theirs, ours = load_wine(), load("wine")
    assert np.array_equal(ours.inputs.numpy(), theirs.data.astype(np.float32))
    assert ours.labels.tolist() == theirs.target.tolist()
    assert (ours.columns, ours.class_names) == (tuple(theirs.feature_names), tuple(theirs.target_names))


def test_signals_are_the_same_whenever_they_are_drawn() -> None:
    first, again = load("signals"), load("signals", first_classes=4)
    assert torch.equal(first.inputs[first.labels < 4], again.inputs)
    assert first.labels.bincount().tolist() == [150] * 6
    assert again.class_names == ("sine", "square", "sawtooth", "rising")
    torch.testing.assert_close(
        first.inputs[0, 0, :4], torch.tensor([-1.756989, -0.692023, -1.222031, -0.132474]), atol=1e-5, rtol=0
    )  # fmt: skip
