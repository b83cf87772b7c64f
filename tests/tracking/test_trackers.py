"""Trackers hear of each round once, and one that fails does not stop the run; packages have tests of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from support_cli import jsonl
from support_grid import Recording, StopsAfter, make_experiment
from support_trackers import TRIAL, remember
from tinyproto import grid
from tinyproto.config import parse_config
from tinyproto.errors import CellsFailed, ConfigError
from tinyproto.tracking import trackers
from tinyproto.tracking.run_folder import RunFolder

CONFIG = f"""\
{TRIAL}\
algorithms: [{{name: fedproto, label: "proto/type"}}, local]
tracking: [wandb, tensorboard]
"""
Patch = pytest.MonkeyPatch


def test_each_round_of_each_cell_is_told_once_and_then_the_summary(tmp_path: Path, monkeypatch: Patch) -> None:
    runs = remember(monkeypatch, "wandb")
    remember(monkeypatch, "tensorboard")
    folder = grid.run(make_experiment(tmp_path, CONFIG), tmp_path / "runs")
    assert [run.cell.name for run in runs] == ["proto_type-0", "local-0"]
    for run, label in zip(runs, ("proto/type", "local"), strict=True):
        records = [line for line in jsonl(folder / "rounds.jsonl") if line["label"] == label]
        (result,) = (one for one in RunFolder(folder).read_results() if one["label"] == label)
        assert run.steps == [1, 2, 3, 4]
        for (step, values), record in zip(run.logged, records, strict=False):
            assert values["accuracy/head"] == record["accuracy"]["head"]
            assert ("accuracy/global" in values) == (record["accuracy"]["global"] is not None)
            if step < 4:
                sent = record["traffic"]["training"]
                assert values["payload_bytes/up"] == sent["up"]["payload"]
                assert values["wire_bytes/down"] == sent["down"]["wire"]
            assert values["seconds/total"] > 0
        step, summary = run.logged[-1]
        assert (step, len(run.logged)) == (4, 5)
        assert summary["summary/accuracy/last/head"] == result["accuracy"]["last"]["head"]
        assert summary["summary/payload_bytes_per_round/up"] == result["payload_bytes_per_round"]["up"]
        assert run.closed == [True]
        assert run.cell.run == "trial"
        assert run.cell.settings["algorithm.label"] == label
        assert (run.cell.settings["train.rounds"], run.cell.settings["seed"]) == (3, 0)
        assert run.cell.folder == folder / "tracking" / "wandb"
        assert run.cell.folder.is_dir()


def test_a_resumed_cell_is_told_from_its_first_round_so_that_no_step_is_doubled(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    runs = remember(monkeypatch, "wandb")
    remember(monkeypatch, "tensorboard")
    with pytest.raises(KeyboardInterrupt):
        grid.run(make_experiment(tmp_path, CONFIG), tmp_path / "runs", observer=StopsAfter(2))
    folder = grid.resume(make_experiment(tmp_path, CONFIG), tmp_path / "runs" / "trial")
    interrupted, resumed, other = runs
    assert (interrupted.steps, interrupted.closed) == ([1, 2], [False])
    assert (resumed.steps, resumed.closed) == ([1, 2, 3, 4], [True])
    assert resumed.logged[:2] == interrupted.logged
    assert resumed.cell.name == interrupted.cell.name
    assert other.steps == [1, 2, 3, 4]
    assert grid.resume(make_experiment(tmp_path, CONFIG), folder) == folder
    assert len(runs) == 3


def test_a_tracker_that_fails_in_a_round_is_named_once_and_the_run_goes_on(tmp_path: Path, monkeypatch: Patch) -> None:
    (failing, other), observer = (
        [remember(monkeypatch, "wandb", fails_at=2), remember(monkeypatch, "tensorboard")],
        Recording(),
    )
    folder = grid.run(make_experiment(tmp_path, CONFIG, "algorithms=[local]"), tmp_path / "runs", observer=observer)
    assert len(RunFolder(folder).read_results()) == 1
    assert observer.words == [
        "Local, seed 0: tracking: wandb failed at round 2 and is off from here on: OSError: the disk is full"
    ]
    assert (failing[0].steps, failing[0].closed) == ([1], [False])
    assert (other[0].steps, other[0].closed) == ([1, 2, 3, 4], [True])


def test_a_tracker_that_cannot_start_ends_the_cell_before_it_trains(tmp_path: Path, monkeypatch: Patch) -> None:
    opened = remember(monkeypatch, "wandb")
    remember(monkeypatch, "tensorboard", fails_at=0)
    observer = Recording()
    with pytest.raises(CellsFailed, match=r"tensorboard cannot start in .*tensorboard: PermissionError: no place"):
        grid.run(make_experiment(tmp_path, CONFIG), tmp_path / "runs", observer=observer)
    assert not [event for event, _, _ in observer.events if event == "played"]
    assert [run.closed for run in opened] == [[False], [False]]


def test_a_missing_package_is_an_error_that_says_what_to_install(tmp_path: Path, monkeypatch: Patch) -> None:
    remember(monkeypatch, "wandb")
    monkeypatch.setitem(trackers.PACKAGES, "tensorboard", ("no_such_package",))
    with pytest.raises(ConfigError, match=r'pip install "tinyproto-fl\[tensorboard\]"'):
        make_experiment(tmp_path, CONFIG)


def test_an_unknown_tracker_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match=r"tracking: unknown tracker 'tensorbord', did you mean 'tensorboard'\?"):
        parse_config({"models": ["small_cnn_a"], "algorithms": ["local"], "tracking": ["tensorbord"]})


def test_two_labels_that_would_share_a_folder_are_refused(tmp_path: Path, monkeypatch: Patch) -> None:
    remember(monkeypatch, "wandb")
    with pytest.raises(ConfigError, match="'a/b' and 'a_b' would both write to tracking/a_b-0"):
        make_experiment(
            tmp_path, CONFIG, "tracking=[wandb]", "algorithms=[{name: local, label: a/b}, {name: local, label: a_b}]"
        )


def test_only_the_folder_of_a_cell_belongs_to_a_run_above_it(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path / "cells" / "run", overwrite=False)
    cell = run.inner("cells", "001-local-0")
    assert (run.run, cell.run) == (run.path, cell.path)
    run.write_config({"schema_version": 1})
    assert (run.run, cell.run) == (run.path, run.path)
