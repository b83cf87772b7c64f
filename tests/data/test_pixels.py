"""Pixels that several processes hold together."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch

from tinyproto.data.dataset import Dataset, SharedArray
from tinyproto.workers.child import SharedDataset, received_dataset

READ_ELSEWHERE = """
import json, sys
from tinyproto.data.dataset import SharedArray
print(SharedArray(**json.loads(sys.argv[1])).tensor.flatten().tolist())
"""


def filled() -> SharedArray:
    pixels = SharedArray.blank((2, 1, 1, 3))
    pixels.array[:] = [[[[1, 2, 3]]], [[[4, 5, 255]]]]
    return pixels


def test_another_process_reads_what_was_written() -> None:
    pixels = filled()
    assert pixels.descriptor is not None
    done = subprocess.run(
        [sys.executable, "-c", READ_ELSEWHERE, json.dumps(pixels.address())],
        pass_fds=[pixels.descriptor],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "[1, 2, 3, 4, 5, 255]\n"


def test_what_another_mapping_writes_stays_its_own() -> None:
    pixels = filled()
    assert pixels.descriptor is not None
    other = SharedArray(os.dup(pixels.descriptor), pixels.shape)
    other.array[0] = 9
    assert pixels.tensor.flatten().tolist() == [1, 2, 3, 4, 5, 255]


def test_the_pixels_outlive_what_mapped_them() -> None:
    tensor = filled().tensor
    assert tensor.sum() == 270


def test_without_memory_files_a_nameless_file_takes_their_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create")
    assert filled().tensor.sum() == 270


def test_a_worker_is_handed_the_same_dataset() -> None:
    shared = filled()
    images = Dataset("tiny", shared.tensor, torch.tensor([1, 0]), 3, 0.5, -2.0, shared)
    handover = SharedDataset(images)
    request = handover.request({"name": "x"})
    for name, descriptor in zip(("inputs", "labels"), handover.descriptors, strict=True):
        request.head[name]["descriptor"] = os.dup(descriptor)
    received = received_dataset(request)
    assert received is not None
    assert (received.name, received.num_classes, received.scale, received.shift) == ("tiny", 3, 0.5, -2.0)
    assert received.labels.tolist() == [1, 0]
    assert received.inputs.equal(images.inputs)


def test_where_no_such_file_may_be_the_pixels_are_this_process_s_and_workers_load_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def too_large(*_: object) -> None:
        raise OSError(27, "File too large")

    monkeypatch.setattr(os, "ftruncate", too_large)
    shared = filled()
    assert shared.tensor.sum() == 270
    handover = SharedDataset(Dataset("tiny", shared.tensor, torch.tensor([1, 0]), 3, 0.5, -2.0, shared))
    assert handover.descriptors == []
    assert received_dataset(handover.request({"name": "x"})) is None
