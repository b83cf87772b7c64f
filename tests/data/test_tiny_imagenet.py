"""Tiny-ImageNet-200 from a folder in the official layout."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from support_data import write_picture, write_tiny_imagenet
from tinyproto.data import load
from tinyproto.data.sources import Request, locate, tiny_imagenet
from tinyproto.errors import DataError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_tiny_imagenet(tmp_path / "tiny-imagenet-200")
    return tmp_path / "tiny-imagenet-200"


def refused(folder: Path) -> str:
    with pytest.raises(DataError) as error:
        load("tiny_imagenet", folder)
    sentence = str(error.value)
    assert f"tinyproto data fetch tiny_imagenet --root {folder}" in sentence
    return sentence


def test_sorted_train_comes_before_val_by_class(folder: Path) -> None:
    images = load("tiny_imagenet", folder.parent)
    assert images.labels.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2, 0, 0, 1, 1, 2, 2]
    assert images.input_shape == (3, 8, 8)
    assert images.num_classes == 3
    in_order = [
        *(f"train/{name}/images/{name}_{index}.JPEG" for name in ("n01", "n02", "n03") for index in range(3)),
        *(f"val/images/val_{index}.JPEG" for index in (0, 3, 1, 4, 2, 5)),
    ]
    for path, pixels in zip(in_order, images.inputs.numpy(), strict=True):
        expected = np.asarray(Image.open(folder / path).convert("RGB")).transpose(2, 0, 1)
        assert pixels.tolist() == expected.tolist(), path


def test_a_grey_image_becomes_colour(folder: Path) -> None:
    assert Image.open(folder / "train/n02/images/n02_0.JPEG").mode == "L"
    grey = load("tiny_imagenet", folder).inputs[3]
    assert grey[0].equal(grey[1])
    assert grey[0].equal(grey[2])


def test_names_are_sorted_as_text_as_image_folders_are(tmp_path: Path) -> None:
    write_tiny_imagenet(tmp_path, ("n01",), train=11)
    files = tiny_imagenet.listing(Request(tmp_path)).paths
    assert files[:3] == [f"train/n01/images/n01_{index}.JPEG" for index in (0, 1, 10)]


def test_a_part_of_it_is_named_as_a_part(folder: Path) -> None:
    assert load("tiny_imagenet", folder).name == "tiny_imagenet (3 of 200 classes, 15 of 110000 images)"


def test_val_images_of_classes_that_are_not_there_are_passed_over(folder: Path) -> None:
    shutil.rmtree(folder / "train" / "n02")
    (folder / "wnids.txt").write_text("n01\nn03\n")
    assert load("tiny_imagenet", folder).labels.tolist() == [0, 0, 0, 1, 1, 1, 0, 0, 1, 1]


def test_where_it_is_or_how_to_get_it_is_told(folder: Path, tmp_path: Path) -> None:
    assert locate("tiny_imagenet", tmp_path) == str(folder)
    (tmp_path / "empty").mkdir()
    assert "get it with: tinyproto data fetch tiny_imagenet" in locate("tiny_imagenet", tmp_path / "empty")
    assert f"{tmp_path}/empty/tiny-imagenet-200/train" in refused(tmp_path / "empty")


@pytest.mark.parametrize("missing", ["train/n02/images/n02_1.JPEG", "val/images/val_3.JPEG", "val/val_annotations.txt"])
def test_a_missing_file_is_named(folder: Path, missing: str) -> None:
    (folder / missing).unlink()
    assert f"{folder / missing} is missing" in refused(folder)


def test_a_class_folder_and_wnids_have_to_agree(folder: Path) -> None:
    (folder / "wnids.txt").write_text("n01\nn02\nn03\nn04\n")
    assert f"{folder / 'train'} and wnids.txt differ: only one of them has n04" in refused(folder)
    (folder / "wnids.txt").write_text("n01\nn02\n")
    assert "only one of them has n03" in refused(folder)
    (folder / "wnids.txt").unlink()
    assert load("tiny_imagenet", folder).num_classes == 3


def test_truncated_annotations_are_named(folder: Path) -> None:
    annotations = folder / "val" / "val_annotations.txt"
    annotations.write_text("".join(annotations.read_text().splitlines(keepends=True)[:-1]))
    assert re.match(rf"{annotations} is truncated: .*val_5\.JPEG", refused(folder))


@pytest.mark.parametrize("keep", [0, 20, 300, -20])
def test_a_truncated_or_corrupt_image_is_named_and_leaves_no_cache(folder: Path, keep: int) -> None:
    image = folder / "val" / "images" / "val_1.JPEG"
    image.write_bytes(image.read_bytes()[:keep])
    assert f"{image} cannot be decoded" in refused(folder)
    assert [path for path in folder.rglob("*") if "cache" in str(path) and path.is_file()] == []


def test_an_image_of_another_size_is_named(folder: Path) -> None:
    write_picture(folder / "val" / "images" / "val_1.JPEG", 3, size=(8, 9))
    assert "val_1.JPEG has 9 × 8 pixels" in refused(folder)


def test_the_real_folder_has_550_images_a_class() -> None:
    root = Path(os.environ.get("TINYPROTO_DATA", "data"))
    if locate("tiny_imagenet", root).startswith("not in"):
        pytest.skip(f"no tiny_imagenet in {root}; set TINYPROTO_DATA")
    found = tiny_imagenet.listing(Request(root))
    assert torch.bincount(torch.tensor(found.labels)).tolist() == [550] * len(found.classes)
