"""How many cells at once: what the config asks for, what the machine has, what memory takes."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from support import make_images
from support_grid import make_experiment
from tinyproto import experiment as experiments
from tinyproto.config import parse_config
from tinyproto.experiment import Experiment
from tinyproto.grid import capacity
from tinyproto.grid.capacity import Capacity, Footprint, footprint
from tinyproto.memory import CONTEXT

GIB = 2**30
CONFIG = """\
models: [small_cnn_b]
partition: {num_clients: 2}
prototypes: {dim: 12, cps_dim: 3}
train: {rounds: 100}
algorithms: [local, fedproto]
seeds: [0, 1, 2, 3, 4]
"""


def test_the_first_cell_runs_alone_until_it_has_shown_what_it_takes() -> None:
    eight = Capacity(8)
    assert eight.at_once == 1
    assert eight.measured(Footprint(takes=1 * GIB, available=139 * GIB))
    assert eight.at_once == 8


@pytest.mark.parametrize(("takes", "at_once"), [(10.0, 8), (14.0, 8), (15.0, 7), (60.0, 1), (200.0, 1)])
def test_as_many_run_as_fit_with_a_margin_and_never_none(takes: float, at_once: int) -> None:
    eight = Capacity(8)
    eight.measured(Footprint(int(takes * GIB), 139 * GIB))
    assert eight.at_once == at_once
    assert f"a cell took {takes:.1f} GiB of 139.0 GiB" in eight.words()
    assert ("1 runs at a time" if at_once == 1 else f"{at_once} run at once") in eight.words()


def test_a_cell_that_takes_more_leaves_room_for_fewer_from_then_on() -> None:
    four = Capacity(4)
    four.measured(Footprint(1 * GIB, 12 * GIB))
    assert four.at_once == 4
    assert not four.measured(Footprint(4 * GIB, 2 * GIB))  # its share is what the others beside it have left
    assert four.at_once == 2
    four.measured(Footprint(1 * GIB, 12 * GIB))
    assert four.at_once == 2


def test_where_memory_is_not_known_the_config_decides() -> None:
    three = Capacity(3)
    three.measured(None)
    assert three.at_once == 3
    assert three.words().endswith("3 run at once")


def test_a_process_s_footprint_leaves_out_what_it_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    said = {"VmHWM": 900, "RssAnon": 300, "RssFile": 200, "RssShmem": 150, "MemAvailable": 5000}
    monkeypatch.setattr(capacity, "status_bytes", lambda field, file="": said.get(field))
    monkeypatch.setattr(capacity, "container_limit", lambda: math.inf)
    assert footprint(torch.device("cpu")) == Footprint(takes=550, available=5300)
    monkeypatch.setattr(capacity, "container_limit", lambda: 4000)
    assert footprint(torch.device("cpu")) == Footprint(takes=550, available=4000)
    del said["RssAnon"]
    assert footprint(torch.device("cpu")) is None


def test_on_a_gpu_the_reserved_peak_and_the_context_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (100 * GIB, 139 * GIB))
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda device: 3 * GIB)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 2 * GIB)
    found = footprint(torch.device("cuda"))
    assert found == Footprint(3 * GIB + CONTEXT, 102 * GIB + CONTEXT)


def test_this_process_has_a_footprint() -> None:
    found = footprint(torch.device("cpu"))
    assert found is not None
    assert 10 * 2**20 < found.takes < found.available


@pytest.mark.parametrize(
    ("asked", "device", "cores", "at_once"),
    [
        ("1", "cpu", 4, 1),
        ("3", "cpu", 1, 3),
        ("99", "cpu", 4, 10),
        ("auto", "cpu", 4, 4),
        ("auto", "cpu", 10, 10),
        ("auto", "cpu", 16, 1),  # more cores than cells: the clients of one cell fill them better
        ("auto", "cpu", 1, 1),
        ("auto", "cuda", 2, 8),
    ],
)
def test_how_many_the_config_means(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: str, device: str, cores: int, at_once: int
) -> None:
    monkeypatch.setattr(experiments, "_cores", lambda: cores)
    monkeypatch.setattr(experiments, "resolve_device", lambda name: device)
    grid = make_experiment(tmp_path, CONFIG, f"train.parallel_cells={asked}")
    assert grid.cells_at_once == at_once
    assert grid.workers == (1 if at_once > 1 or device == "cuda" else min(cores, 2))


def test_short_cells_are_not_worth_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experiments, "_cores", lambda: 4)
    assert make_experiment(tmp_path, CONFIG, "train.parallel_cells=auto", "train.rounds=99").cells_at_once == 1


def test_networks_or_images_that_are_objects_stay_in_this_process() -> None:
    values = {
        "models": ["small_cnn_b"],
        "partition": {"num_clients": 2},
        "algorithms": ["local", "fedproto"],
        "train": {"parallel_cells": 2},
    }
    images = make_images(60)
    assert Experiment(parse_config(values, images=images), images).cells_at_once == 1
