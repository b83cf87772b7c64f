""".npz files as people have them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tinyproto.data import load
from tinyproto.errors import DataError

PIXELS = np.random.default_rng(0).integers(0, 256, (7, 3, 6, 5), dtype=np.uint8)
LABELS = np.array([0, 1, 2, 1, 0, 3, 3])


@pytest.mark.parametrize("compressed", [False, True])
def test_images_and_labels_are_taken_as_they_are(tmp_path: Path, compressed: bool) -> None:
    file = tmp_path / "mine.npz"
    (np.savez_compressed if compressed else np.savez)(file, images=PIXELS, labels=LABELS)
    images = load("npz", file)
    assert (images.name, images.num_classes) == ("mine", 4)
    assert images.inputs.numpy().tolist() == PIXELS.tolist()
    assert images.labels.tolist() == LABELS.tolist()
    assert images.shared is not None


def test_train_and_test_are_merged_in_that_order(tmp_path: Path) -> None:
    parts = {"x_test": PIXELS[4:], "y_test": LABELS[4:], "x_train": PIXELS[:4], "y_train": LABELS[:4]}
    np.savez(tmp_path / "a.npz", **parts)  # type: ignore[arg-type]
    images = load("npz", tmp_path / "a.npz")
    assert images.inputs.numpy().tolist() == PIXELS.tolist()
    assert images.labels.tolist() == LABELS.tolist()


def test_channels_that_come_last_are_brought_forward(tmp_path: Path) -> None:
    last = np.ascontiguousarray(PIXELS.transpose(0, 2, 3, 1))
    np.savez(tmp_path / "a.npz", x_train=last[:4], y_train=LABELS[:4, None], x_test=last[4:], y_test=LABELS[4:, None])
    images = load("npz", tmp_path / "a.npz")
    assert images.inputs.numpy().tolist() == PIXELS.tolist()
    assert images.inputs.is_contiguous()
    assert images.labels.tolist() == LABELS.tolist()


def test_grey_images_get_a_channel(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", images=PIXELS[:, 0], labels=LABELS.astype(np.uint8))
    assert load("npz", tmp_path / "a.npz").input_shape == (1, 6, 5)


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({"images": PIXELS}, "not images"),
        ({"pictures": PIXELS}, "it has to hold the arrays `images` and `labels`, `x` and `y`, or `x_train`"),
        ({"x_train": PIXELS, "y_train": LABELS, "x_test": PIXELS}, "it has to hold"),
        ({"images": PIXELS.astype(np.int16), "labels": LABELS}, r"`images`: int16 may be measurements or token ids"),
        ({"x": np.full((7, 2), np.nan), "y": LABELS}, "`x`: sample 0 has the value nan"),
        ({"x": np.full((7, 2), -1), "y": LABELS}, r"token ids are 0 or more, .* \.astype\('float32'\)"),
        ({"images": PIXELS[0, 0], "labels": LABELS}, r"its shape is \(6, 5\)"),
        ({"images": np.asfortranarray(PIXELS), "labels": LABELS}, "stored by columns; save numpy.ascontiguousarray"),
        ({"images": PIXELS, "labels": LABELS[:-1]}, "7 samples need as many labels"),
        ({"images": PIXELS, "labels": LABELS - 1}, "in -1 …"),
        ({"images": PIXELS, "labels": LABELS.astype(float)}, "integers"),
        ({"images": PIXELS[:0], "labels": LABELS[:0]}, "at least one sample"),
        ({"x_train": PIXELS, "y_train": LABELS, "x_test": PIXELS[:, :1], "y_test": LABELS}, "cannot be merged"),
        ({"images": PIXELS, "labels": np.array([{}] * 7, dtype=object)}, "damaged or not an .npz file"),
    ],
)
def test_arrays_that_are_no_dataset_are_refused_by_file(tmp_path: Path, arrays: dict[str, Any], says: str) -> None:
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(DataError, match=says) as error:
        load("npz", tmp_path / "a.npz")
    assert str(tmp_path / "a.npz") in str(error.value)


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("harm", ["truncated", "flipped", "empty", "text"])
def test_a_damaged_file_is_named_with_the_remedy(tmp_path: Path, compressed: bool, harm: str) -> None:
    file = tmp_path / "a.npz"
    (np.savez_compressed if compressed else np.savez)(file, images=PIXELS, labels=LABELS)
    content = bytearray(file.read_bytes())
    content[400] ^= 255
    harmed = {"truncated": bytes(content[:300]), "flipped": bytes(content), "empty": b"", "text": b"x,y\n"}
    file.write_bytes(harmed[harm])
    with pytest.raises(DataError, match=r"a\.npz is damaged or not an \.npz file .* save it again with numpy\.savez"):
        load("npz", file)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no file at .*a\.npz"):
        load("npz", tmp_path / "a.npz")
    with pytest.raises(DataError, match=r"data\.root has to name the \.npz file"):
        load("npz")
