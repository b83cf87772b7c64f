from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tinyproto.data import from_arrays, load
from tinyproto.errors import DataError

GREY = np.zeros((4, 8, 8), dtype=np.uint8)
FOUR_LABELS = [0, 1, 2, 1]


def test_the_digits_need_no_files() -> None:
    digits = load("digits")
    assert digits.name == "digits"
    assert digits.input_shape == (1, 8, 8)
    assert digits.inputs.dtype == torch.uint8
    assert torch.bincount(digits.labels).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert (len(digits), digits.num_classes) == (1797, 10)


def test_a_network_sees_digits_between_minus_one_and_one() -> None:
    inputs = load("digits").take(torch.arange(1797)).batch(slice(None)).inputs
    assert (float(inputs.min()), float(inputs.max())) == (-1.0, 1.0)
    assert inputs.dtype == torch.float32


def test_an_unknown_dataset_is_an_error_that_names_the_nearest() -> None:
    with pytest.raises(DataError, match="unknown dataset 'digitz', did you mean 'digits'"):
        load("digitz")


def test_grey_arrays_get_a_channel_and_colour_arrays_keep_theirs() -> None:
    assert from_arrays(GREY, FOUR_LABELS).input_shape == (1, 8, 8)
    assert from_arrays(np.zeros((4, 3, 8, 6), dtype=np.uint8), FOUR_LABELS).input_shape == (3, 8, 6)


def test_pixels_0_to_255_become_minus_one_to_one() -> None:
    images = from_arrays(np.array([[[0, 51, 255]]], dtype=np.uint8), [0])
    inputs = images.take(torch.tensor([0])).batch(slice(None)).inputs
    torch.testing.assert_close(inputs, torch.tensor([[[[-1.0, -0.6, 1.0]]]]))


def test_tensors_and_small_integer_labels_are_taken_as_arrays_are() -> None:
    images = from_arrays(torch.zeros(4, 1, 8, 8, dtype=torch.uint8), np.array(FOUR_LABELS, dtype=np.uint8))
    assert images.labels.tolist() == FOUR_LABELS
    assert images.labels.dtype == torch.int64


def test_the_number_of_classes_is_the_largest_label_plus_one_unless_given() -> None:
    assert from_arrays(GREY, FOUR_LABELS).num_classes == 3
    assert from_arrays(GREY, FOUR_LABELS, num_classes=7).num_classes == 7


def test_arrays_carry_the_name_they_are_given() -> None:
    assert from_arrays(GREY, FOUR_LABELS, name="cifar10").name == "cifar10"


@pytest.mark.parametrize(
    ("images", "labels", "num_classes", "message"),
    [
        (GREY[0], FOUR_LABELS, None, r"\(N, C, H, W\)"),
        (GREY, [0, 1, 2], None, "4 samples need as many labels"),
        (GREY, [[0], [1], [2], [1]], None, "4 samples need as many labels"),
        (GREY, [0.0, 1.0, 2.0, 1.0], None, "integers"),
        (GREY, [0, 1, -1, 2], None, r"0 … 2, .* in -1 … 2"),
        (GREY, FOUR_LABELS, 2, r"0 … 1, .* in 0 … 2"),
        (GREY[:0], np.zeros(0, dtype=np.int64), None, "at least one"),
    ],
)
def test_arrays_that_cannot_be_a_dataset_are_refused(
    images: Any, labels: Any, num_classes: int | None, message: str
) -> None:
    with pytest.raises(DataError, match=message):
        from_arrays(images, labels, num_classes=num_classes)


def test_labels_that_are_words_become_the_names_of_classes() -> None:
    images = from_arrays(GREY, ["cat", "dog", "bird", "dog"])
    assert (images.class_names, images.labels.tolist()) == (("bird", "cat", "dog"), [1, 2, 0, 2])
    given = from_arrays(GREY, ["cat", "dog", "bird", "dog"], class_names=["dog", "cat", "bird", "cow"])
    assert (given.num_classes, given.labels.tolist()) == (4, [1, 0, 2, 0])
    with pytest.raises(DataError, match="unknown class 'bird'"):
        from_arrays(GREY, ["cat", "dog", "bird", "dog"], class_names=["dog", "cat"])


def test_the_embedded_digits_are_scikit_learn_s_whichever_way_they_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    from sklearn.datasets import load_digits

    digits = load_digits()
    read = load("digits")
    assert read.inputs.squeeze(1).numpy().tolist() == digits.images.tolist()
    assert read.labels.tolist() == digits.target.tolist()
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    assert load("digits").inputs.equal(read.inputs)
    assert load("digits").labels.equal(read.labels)
