"""Any folder of images."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from support_data import write_picture
from tinyproto.config import parse_config
from tinyproto.data import load
from tinyproto.data.sources import locate
from tinyproto.errors import ConfigError, DataError


def test_class_folders_sorted_by_name_are_the_classes(tmp_path: Path) -> None:
    for name, shade in (("dog", 50), ("cat", 10), ("Ant", 90)):
        write_picture(tmp_path / name / "b.png", shade)
        write_picture(tmp_path / name / "deeper" / "a.png", shade + 1)
    (tmp_path / "cat" / "notes.txt").write_text("no image")
    (tmp_path / ".hidden").mkdir()
    images = load("image_folder", tmp_path)
    assert (images.name, images.class_names) == (tmp_path.name, ("Ant", "cat", "dog"))
    assert (images.num_classes, images.input_shape) == (3, (3, 8, 8))
    assert images.labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert images.inputs[:, 0, 3, 3].tolist() == [90, 91, 10, 11, 50, 51]
    assert images.inputs[:, 0, 0, 3].tolist() == [0] * 6
    assert images.inputs.dtype == torch.uint8


@pytest.mark.parametrize("second", ["val", "test", "valid"])
def test_train_and_val_or_test_are_merged_train_first(tmp_path: Path, second: str) -> None:
    for part, shade in (("train", 10), (second, 100)):
        for number, name in enumerate(("a", "b")):
            write_picture(tmp_path / part / name / "0.jpg", shade + number)
    assert load("image_folder", tmp_path).labels.tolist() == [0, 1, 0, 1]


def test_a_class_called_train_beside_others_is_a_class(tmp_path: Path) -> None:
    for name in ("car", "train"):
        write_picture(tmp_path / name / "0.png", 1)
    assert load("image_folder", tmp_path).num_classes == 2


def test_all_grey_stays_grey_and_one_colour_image_makes_all_colour(tmp_path: Path) -> None:
    for index in range(3):
        write_picture(tmp_path / "a" / f"{index}.png", 10 + index, mode="L")
    grey = load("image_folder", tmp_path)
    assert grey.input_shape == (1, 8, 8)
    assert grey.inputs[:, 0, 3, 3].tolist() == [10, 11, 12]
    write_picture(tmp_path / "a" / "3.png", 13)
    colour = load("image_folder", tmp_path)
    assert colour.input_shape == (3, 8, 8)
    assert colour.inputs[0, :, 3, 3].tolist() == [10, 10, 10]


def test_images_of_several_sizes_need_an_image_size(tmp_path: Path) -> None:
    write_picture(tmp_path / "a" / "0.png", 10, size=(8, 8))
    write_picture(tmp_path / "a" / "1.png", 200, size=(16, 12))
    with pytest.raises(DataError, match=r"1\.png has 12 × 16 pixels, .*0\.png has 8 × 8; set data\.image_size"):
        load("image_folder", tmp_path)
    images = load("image_folder", tmp_path, image_size=6)
    assert images.input_shape == (3, 6, 6)
    assert images.inputs[:, 0, 4, 4].tolist() == [10, 200]


@pytest.mark.parametrize("mode", ["P", "RGBA", "LA", "CMYK", "1"])
def test_images_of_every_8_bit_mode_are_read(tmp_path: Path, mode: str) -> None:
    (tmp_path / "a").mkdir()
    suffix = "jpg" if mode == "CMYK" else "png"
    write_picture(tmp_path / "a" / "0.png", 7)
    Image.new("RGB", (8, 8), (255, 255, 255)).convert(mode).save(tmp_path / "a" / f"1.{suffix}")
    assert int(load("image_folder", tmp_path).inputs[1].min()) > 250


def test_an_image_of_16_bits_is_refused_and_not_cut_off(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    Image.fromarray(np.full((8, 8), 3000, dtype=np.uint16)).save(tmp_path / "a" / "0.png")
    with pytest.raises(DataError, match=r"0\.png has more than 8 bits per channel"):
        load("image_folder", tmp_path)


def test_folders_that_are_no_dataset_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no folder at .*nowhere"):
        load("image_folder", tmp_path / "nowhere")
    with pytest.raises(DataError, match="has no folders"):
        load("image_folder", tmp_path)
    with pytest.raises(DataError, match=r"data\.root has to name the folder"):
        load("image_folder")
    (tmp_path / "a").mkdir()
    with pytest.raises(DataError, match="a has no images"):
        load("image_folder", tmp_path)


def test_a_class_of_val_that_train_lacks_is_named(tmp_path: Path) -> None:
    write_picture(tmp_path / "train" / "a" / "0.png", 1)
    write_picture(tmp_path / "val" / "b" / "0.png", 1)
    with pytest.raises(DataError, match=r"val/b is a class that .*train does not have"):
        load("image_folder", tmp_path)


def test_a_dangling_link_is_named(tmp_path: Path) -> None:
    write_picture(tmp_path / "a" / "0.png", 1)
    (tmp_path / "a" / "1.png").symlink_to("gone.png")
    with pytest.raises(DataError, match=r"1\.png cannot be decoded .* replace or remove it"):
        load("image_folder", tmp_path)


def test_doctor_says_what_to_set() -> None:
    assert "set data.root" in locate("image_folder")
    assert "set data.root" in locate("npz")


def test_a_key_that_the_dataset_does_not_read_is_refused() -> None:
    for name, key in (("cifar10", {"image_size": 32}), ("npz", {"cache": "x"})):
        with pytest.raises(ConfigError, match=rf"data: {next(iter(key))} is read by .*image_folder, not by {name}"):
            parse_config({"data": {"name": name, **key}, "models": ["small_cnn_a"], "algorithms": ["local"]})
    data = {"name": "image_folder", "root": "a", "image_size": 32, "cache": "b"}
    request = parse_config({"data": data, "models": ["small_cnn_a"], "algorithms": ["local"]}).model.data.request()
    assert (request.root, request.cache, request.image_size) == (Path.cwd() / "a", Path.cwd() / "b", 32)
