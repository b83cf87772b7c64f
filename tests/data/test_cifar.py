"""CIFAR-10 and CIFAR-100 from files in the official layouts."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from support_data import CIFAR10_PYTHON, Array, Python2Pickle, random_pixels, write_binary, write_cifar10_binary
from tinyproto.data import load
from tinyproto.data.dataset import Dataset
from tinyproto.data.sources import Request, cifar, locate
from tinyproto.errors import DataError


def write_cifar10_python(folder: Path, per_file: int = 4) -> tuple[Array, list[int]]:
    folder.mkdir(parents=True)
    pixels, labels = random_pixels(6 * per_file), [index * 3 % 10 for index in range(6 * per_file)]
    for number, name in enumerate(CIFAR10_PYTHON):
        part = slice(number * per_file, (number + 1) * per_file)
        (folder / name).write_bytes(Python2Pickle().dumps({"labels": labels[part], "data": pixels[part]}))
    return pixels, labels


def write_cifar100_binary(folder: Path) -> tuple[Array, list[int]]:
    pixels, labels = random_pixels(9), [0, 99, 5, 17, 3, 44, 60, 98, 1]
    coarse = [label % 20 for label in labels]
    write_binary(folder / "train.bin", pixels[:6], coarse[:6], labels[:6])
    write_binary(folder / "test.bin", pixels[6:], coarse[6:], labels[6:])
    return pixels, labels


def write_cifar100_python(folder: Path) -> tuple[Array, list[int]]:
    folder.mkdir(parents=True)
    pixels, labels = random_pixels(9), [0, 99, 5, 17, 3, 44, 60, 98, 1]
    for name, part in (("train", slice(0, 6)), ("test", slice(6, 9))):
        coarse = [label % 20 for label in labels[part]]
        content = {"data": pixels[part], "coarse_labels": coarse, "fine_labels": labels[part]}
        (folder / name).write_bytes(Python2Pickle().dumps(content))
    return pixels, labels


LAYOUTS: list[tuple[str, str, Callable[[Path], tuple[Array, list[int]]]]] = [
    ("cifar10", "cifar-10-batches-bin", write_cifar10_binary),
    ("cifar10", "cifar-10-batches-py", write_cifar10_python),
    ("cifar100", "cifar-100-binary", write_cifar100_binary),
    ("cifar100", "cifar-100-python", write_cifar100_python),
]


@pytest.mark.parametrize(("name", "folder", "write"), LAYOUTS, ids=[folder for _, folder, _ in LAYOUTS])
@pytest.mark.parametrize("inside", [False, True])
def test_every_official_layout_gives_train_then_test(
    tmp_path: Path, name: str, folder: str, write: Callable[[Path], tuple[Array, list[int]]], inside: bool
) -> None:
    pixels, labels = write(tmp_path / folder)
    images = load(name, tmp_path / folder if inside else tmp_path)
    assert (images.name, images.num_classes) == (name, 10 if name == "cifar10" else 100)
    assert images.labels.tolist() == labels
    assert images.inputs.dtype == torch.uint8
    assert images.inputs.numpy().tolist() == pixels.reshape(-1, 3, 32, 32).tolist()
    assert locate(name, tmp_path) == str(tmp_path / folder)


def test_a_network_sees_minus_one_to_one(tmp_path: Path) -> None:
    write_binary(tmp_path / "train.bin", np.repeat(np.array([[0], [255]], np.uint8), 3072, 1), [0, 0], [1, 2])
    write_binary(tmp_path / "test.bin", np.zeros((1, 3072), np.uint8), [0], [1])
    inputs = load("cifar100", tmp_path).take(torch.arange(2)).batch(slice(None)).inputs
    assert (float(inputs[0].max()), float(inputs[1].min())) == (-1.0, 1.0)


def test_a_dataset_that_is_not_there_says_where_it_was_sought_and_how_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"cifar-10-batches-bin nor .*cifar-10-batches-py .*tinyproto data fetch cifar10"
    ):
        load("cifar10", tmp_path)
    assert "tinyproto data fetch cifar10 --root" in locate("cifar10", tmp_path)


def test_without_a_root_the_folder_data_is_looked_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_cifar10_binary(tmp_path / "data" / "cifar-10-batches-bin")
    assert len(load("cifar10")) == 24
    assert locate("cifar10") == "data/cifar-10-batches-bin"
    assert locate("cifar100") == "not in data; get it with: tinyproto data fetch cifar100 --root data"


def refused(root: Path, name: str = "cifar10") -> str:
    with pytest.raises(DataError) as error:
        load(name, root)
    return str(error.value)


def test_a_missing_file_is_named_with_the_remedy(tmp_path: Path) -> None:
    write_cifar10_binary(tmp_path / "cifar-10-batches-bin")
    (tmp_path / "cifar-10-batches-bin" / "data_batch_4.bin").unlink()
    sentence = refused(tmp_path)
    assert "cifar-10-batches-bin/data_batch_4.bin is missing" in sentence
    assert f"tinyproto data fetch cifar10 --root {tmp_path}" in sentence


@pytest.mark.parametrize("cut", [0, 100, 3 * 3073 + 1])
def test_a_truncated_binary_file_is_named_with_the_remedy(tmp_path: Path, cut: int) -> None:
    write_cifar10_binary(tmp_path)
    file = tmp_path / "data_batch_2.bin"
    file.write_bytes(file.read_bytes()[:cut])
    sentence = refused(tmp_path)
    assert f"{file} is truncated" in sentence
    assert "tinyproto data fetch cifar10" in sentence


def test_a_truncated_python_file_is_named_with_the_remedy(tmp_path: Path) -> None:
    write_cifar100_python(tmp_path / "cifar-100-python")
    file = tmp_path / "cifar-100-python" / "test"
    file.write_bytes(file.read_bytes()[:5000])
    sentence = refused(tmp_path, "cifar100")
    assert f"{file} is truncated" in sentence
    assert "tinyproto data fetch cifar100" in sentence


def test_labels_that_cannot_be_are_a_corrupt_file(tmp_path: Path) -> None:
    write_cifar10_binary(tmp_path)
    write_binary(tmp_path / "data_batch_5.bin", random_pixels(2), [3, 10])
    assert f"{tmp_path / 'data_batch_5.bin'} is corrupt" in refused(tmp_path)


def test_a_python_file_of_the_other_dataset_is_refused(tmp_path: Path) -> None:
    write_cifar100_python(tmp_path / "cifar-100-python")
    (tmp_path / "cifar-100-python" / "test").write_bytes(
        Python2Pickle().dumps({"labels": [1], "data": random_pixels(1)})
    )
    assert "needs `data` and `fine_labels`" in refused(tmp_path, "cifar100")


def test_a_python_file_with_fewer_labels_than_images_is_corrupt(tmp_path: Path) -> None:
    write_cifar10_python(tmp_path / "cifar-10-batches-py")
    file = tmp_path / "cifar-10-batches-py" / "test_batch"
    file.write_bytes(Python2Pickle().dumps({"labels": [1], "data": random_pixels(2)}))
    assert f"{file} is corrupt: its data has shape (2, 3072) for 1 labels" in refused(tmp_path)


def with_first_labels(root: Path, checksum: str) -> Dataset:
    """Load four images as if they were the official ones, known by their first labels."""
    layout = replace(cifar.CIFAR100.binary, files={"train.bin": checksum, "test.bin": checksum})
    official = replace(cifar.CIFAR100, first_labels=(7, 8), binary=layout)
    for name in layout.files:
        write_binary(root / name, np.zeros((2, 3072), np.uint8), [0, 0], [7, 8])
    return cifar.load(official, Request(root))


def test_files_that_begin_as_the_official_ones_have_to_be_them(tmp_path: Path) -> None:
    good = "22d6cf53bc2da7a0b7f1f0ba8aa1a3b6d0cbb8ea"
    with pytest.raises(DataError, match=r"train\.bin is corrupt or truncated: its sha1 is (\w+), not") as error:
        with_first_labels(tmp_path, good)
    found = str(error.value).split("its sha1 is ")[1].split(",")[0]
    assert len(with_first_labels(tmp_path, found)) == 4


def real_root() -> Path:
    return Path(os.environ.get("TINYPROTO_DATA", "data"))


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_the_real_files_are_the_official_60000(name: str) -> None:
    if locate(name, real_root()).startswith("not in"):
        pytest.skip(f"no {name} in {real_root()}; set TINYPROTO_DATA")
    images = load(name, real_root())
    assert torch.bincount(images.labels).tolist() == [60000 // images.num_classes] * images.num_classes
    first = cifar.CIFAR10.first_labels if name == "cifar10" else cifar.CIFAR100.first_labels
    assert images.labels[:10].tolist() == list(first)
