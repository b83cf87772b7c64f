"""Only the first classes of a dataset: the same samples regardless of other files on disk, and a name that says so."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from support_data import write_binary, write_cifar10_binary, write_picture, write_tiny_imagenet
from tinyproto.config import parse_config
from tinyproto.data import load
from tinyproto.data.dataset import Dataset, SharedArray
from tinyproto.data.sources import full_name, part_name, tiny_imagenet
from tinyproto.data.sources.tiny_imagenet import WNIDS
from tinyproto.errors import DataError
from tinyproto.experiment import Experiment
from tinyproto.workers.child import SharedDataset, received_dataset

PART = "tiny_imagenet, first 2 classes"


def first_of(images: Dataset, count: int) -> tuple[list[int], list[int]]:
    """Labels and all pixels of the first classes, picked here."""
    kept = images.labels < count
    return images.labels[kept].tolist(), images.inputs[kept].flatten().tolist()


def held(images: Dataset) -> tuple[list[int], list[int]]:
    return images.labels.tolist(), images.inputs.flatten().tolist()


# Tiny-ImageNet


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Four of the official classes, with five images each, which is taken for all that a class has."""
    monkeypatch.setattr(tiny_imagenet, "PER_CLASS", 5)
    write_tiny_imagenet(tmp_path / "tiny-imagenet-200", WNIDS[:4])
    return tmp_path / "tiny-imagenet-200"


def without(folder: Path, *classes: str) -> Path:
    """The folder as it would be had these classes never been there."""
    part = folder.with_name("part")
    shutil.copytree(folder, part)
    for name in classes:
        shutil.rmtree(part / "train" / name)
    left = sorted(path.name for path in (part / "train").iterdir())
    (part / "wnids.txt").write_text("\n".join(left) + "\n")
    annotations = part / "val" / "val_annotations.txt"
    lines = annotations.read_text().splitlines(keepends=True)
    kept = [line for line in lines if line.split("\t")[1] in left]
    for line in set(lines) - set(kept):
        (part / "val" / "images" / line.split("\t")[0]).unlink()
    annotations.write_text("".join(kept))
    return part


def test_the_first_classes_are_the_same_samples_whether_the_others_are_on_disk_or_not(folder: Path) -> None:
    whole = load("tiny_imagenet", folder)
    of_whole = load("tiny_imagenet", folder, first_classes=2)
    of_part = load("tiny_imagenet", without(folder, *WNIDS[2:4]), first_classes=2)
    assert held(of_whole) == held(of_part) == first_of(whole, 2)
    assert (of_whole.name, of_whole.num_classes) == (of_part.name, of_part.num_classes) == (PART, 2)


def test_a_folder_that_has_just_the_first_classes_is_named_as_these_without_being_asked(folder: Path) -> None:
    part = without(folder, *WNIDS[2:4])
    assert load("tiny_imagenet", part).name == PART
    next((part / "train" / WNIDS[0] / "images").iterdir()).unlink()
    (part / "train" / WNIDS[0] / f"{WNIDS[0]}_boxes.txt").unlink()
    assert load("tiny_imagenet", part).name == "tiny_imagenet (2 of 200 classes, 9 of 1000 images)"


def test_all_of_its_classes_are_the_dataset_itself(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiny_imagenet, "WNIDS", WNIDS[:4])
    assert load("tiny_imagenet", folder).name == "tiny_imagenet"
    assert load("tiny_imagenet", folder, first_classes=4).name == "tiny_imagenet"


def test_other_classes_are_not_taken_for_the_first(folder: Path) -> None:
    part = without(folder, WNIDS[0])
    assert load("tiny_imagenet", part).name == "tiny_imagenet (3 of 200 classes, 15 of 1000 images)"
    missing = f"{part / 'train' / WNIDS[0]} is missing, .*first 3 classes"
    with pytest.raises(DataError, match=missing):
        load("tiny_imagenet", part, first_classes=3)


def test_a_folder_of_classes_of_its_own_has_first_ones_too_but_they_are_not_named_as_the_dataset_s(
    tmp_path: Path,
) -> None:
    write_tiny_imagenet(tmp_path)
    images = load("tiny_imagenet", tmp_path, first_classes=2)
    assert held(images) == first_of(load("tiny_imagenet", tmp_path), 2)
    assert images.name == "tiny_imagenet (2 of 200 classes, 10 of 110000 images)"


def test_part_and_whole_have_a_cache_each(folder: Path) -> None:
    told: list[str] = []

    def progress(what: str, done: int, total: int) -> None:
        if not done:
            told.append(what)

    for count in (None, 2, None, 2):
        load("tiny_imagenet", folder, first_classes=count, progress=progress)
    assert told == [
        "decoding 20 images of tiny_imagenet, first 4 classes",
        "decoding 10 images of tiny_imagenet, first 2 classes",
    ]


def test_the_official_classes_are_200_in_order() -> None:
    assert len(set(WNIDS)) == 200
    assert list(WNIDS) == sorted(WNIDS)
    assert (WNIDS[0], WNIDS[99], WNIDS[199]) == ("n01443537", "n03250847", "n12267677")


# The other datasets


@pytest.fixture
def roots(tmp_path: Path) -> dict[str, Path]:
    """A few images of every dataset that has four classes or more."""
    write_cifar10_binary(tmp_path / "cifar10")
    for number, name in enumerate(("train.bin", "test.bin")):
        pixels = np.full((4, 3072), number, dtype=np.uint8)
        write_binary(tmp_path / "cifar100" / name, pixels, [0, 0, 0, 0], [3, 0, 99, 1 + number])
    for number, name in enumerate(("ape", "bee", "cat", "dog")):
        for part in ("train", "test"):
            write_picture(tmp_path / "image_folder" / part / name / "a.png", 10 * number)
    pixels = np.random.default_rng(0).integers(0, 256, (7, 3, 6, 5), dtype=np.uint8)
    np.savez(tmp_path / "npz.npz", images=pixels, labels=np.array([2, 1, 0, 3, 0, 3, 1]))
    return {name: tmp_path / name for name in ("cifar10", "cifar100", "image_folder", "digits")} | {
        "npz": tmp_path / "npz.npz"
    }


@pytest.mark.parametrize("name", ["cifar10", "cifar100", "image_folder", "digits", "npz"])
def test_every_dataset_has_first_classes(roots: dict[str, Path], name: str) -> None:
    whole, part = load(name, roots[name]), load(name, roots[name], first_classes=3)
    assert held(part) == first_of(whole, 3)
    assert 0 < len(part) < len(whole)
    assert (part.name, part.num_classes) == (f"{name}, first 3 classes", 3)
    assert load(name, roots[name], first_classes=whole.num_classes).name == name


@pytest.mark.parametrize("count", [-1, 0, 1, 5])
def test_none_one_and_more_than_there_are_are_refused(roots: dict[str, Path], folder: Path, count: int) -> None:
    for name, root in (("npz", roots["npz"]), ("image_folder", roots["image_folder"]), ("tiny_imagenet", folder)):
        says = rf"data\.first_classes has to be between 2 and 4, .*, not {count}$"
        with pytest.raises(DataError, match=says):
            load(name, root, first_classes=count)


def test_first_classes_without_an_image_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", images=np.zeros((2, 1, 2, 2), dtype=np.uint8), labels=np.array([3, 4]))
    with pytest.raises(DataError, match="a has no samples of its first 3 classes"):
        load("npz", tmp_path / "a.npz", first_classes=3)


def test_a_name_leads_back_to_the_whole_dataset() -> None:
    assert full_name(part_name("tiny_imagenet", 100)) == "tiny_imagenet"
    assert full_name(part_name("cifar10", None)) == "cifar10"
    assert full_name("mine, first classes") == "mine, first classes"


# Their memory


def test_images_left_out_take_no_memory_and_a_worker_maps_the_rest() -> None:
    part = load("digits", first_classes=3)
    assert part.shared is not None
    assert part.shared.descriptor is not None
    assert os.fstat(part.shared.descriptor).st_size == len(part) * 64
    handover = SharedDataset(part)
    request = handover.request({})
    for name, descriptor in zip(("inputs", "labels"), handover.descriptors, strict=True):
        request.head[name]["descriptor"] = os.dup(descriptor)
    received = received_dataset(request)
    assert received is not None
    assert held(received) == held(part)
    assert (received.name, received.num_classes) == ("digits, first 3 classes", 3)


def test_more_images_than_are_moved_at_a_time_keep_their_order() -> None:
    pool = SharedArray.blank((5000, 1, 1, 2))
    pool.array[:] = np.arange(10_000, dtype=np.int64).view(np.uint8)[: 10_000 * 8 : 8].reshape(5000, 1, 1, 2)
    places = np.flatnonzero(np.random.default_rng(0).random(5000) < 0.6)
    expected = pool.tensor.clone()[torch.from_numpy(places)]
    pool.keep(places)
    assert len(places) > 2000
    assert pool.tensor.equal(expected)
    assert pool.shape == tuple(expected.shape)


# What a federation makes of them


def test_a_federation_on_first_classes_has_as_many_classes_in_every_part() -> None:
    values = {
        "data": {"name": "digits", "first_classes": 4},
        "partition": {"num_clients": 3, "alpha": 0.5, "min_samples": 20},
        "models": ["small_cnn_b"],
        "prototypes": {"dim": 12, "cps_dim": 3},
        "train": {"rounds": 1},
        "algorithms": ["tinyproto_ft"],
    }
    experiment = Experiment(parse_config(values))
    assert experiment.shape.num_classes == 4
    assert {len(counts) for counts in experiment.holdings()["counts"]} == {4}
    (cell,) = experiment.cells
    host = experiment.loopback(cell)
    simulation = experiment.simulation(cell, host)
    summary = experiment.summarise(cell, simulation, list(simulation.rounds()))
    classes_held = sum((experiment.data.counts > 0).sum(1).tolist())
    assert summary["dataset"] == "digits, first 4 classes"
    assert summary["params_per_round_formula"] == 3 * (classes_held + 3 * 4)  # s up for a class held, s down for all
    assert host.store[0].model(torch.zeros(1, 1, 8, 8)).logits.shape == (1, 4)
