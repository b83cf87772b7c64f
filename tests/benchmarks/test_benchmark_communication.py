from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks import communication
from benchmarks.communication import (
    CLIENTS,
    DATASETS,
    LATE,
    METHODS,
    NEAREST,
    SETTINGS,
    Case,
    by_better_rule,
    few_samples,
    main,
    membership,
    table,
    train,
    with_noise,
)
from tinyproto.data.dataset import Dataset
from tinyproto.data.partition import Share


def images(labels: list[int]) -> Dataset:
    pixels = torch.zeros(len(labels), 1, 2, 2, dtype=torch.uint8)
    return Dataset("made", pixels, torch.tensor(labels), max(labels) + 1, scale=1.0, shift=0.0)


def test_few_samples_are_as_many_of_each_class_and_all_others_are_tested_on_once() -> None:
    labels = np.repeat(np.arange(3), 60)
    shares = few_samples(labels, 5, seed=0)
    assert len(shares) == 9  # three quarters of the smallest class are enough for nine clients
    for share in shares:
        assert np.bincount(labels[share.train]).tolist() == [5, 5, 5]
    used = np.concatenate([part for share in shares for part in (share.train, share.test)])
    assert sorted(used.tolist()) == list(range(180))


def test_noise_changes_a_fifth_of_every_second_client_s_training_labels_and_nothing_else() -> None:
    data = images([0, 1, 2, 3] * 20)
    shares = [Share(np.arange(0, 30), np.arange(30, 40)), Share(np.arange(40, 70), np.arange(70, 80))]
    changed = (with_noise(data, shares, 0.2, seed=0).labels != data.labels).nonzero()[:, 0]
    assert len(changed) == 6
    assert int(changed.max()) < 30


def result(method: str, seed: int, head: float, local: float) -> dict[str, Any]:
    accuracy = {"head": head, "global": None, "local": local}
    return {"data": "digits", "setting": "iid", "method": method, "seed": seed, "accuracy": accuracy, "asked": {}}


def test_a_method_is_read_by_one_rule_for_all_its_seeds() -> None:
    found = [result("local", 0, 0.9, 0.1), result("local", 1, 0.5, 0.7)]
    assert by_better_rule(found, "iid") == pytest.approx([90.0, 50.0])
    words = table([*found, {"data": "digits", "setting": "iid", "method": "anchors", "seed": 0, "ended": "NaN"}])
    assert "| iid | 70.0 ± 28.3 | ended |" in words


def test_late_clients_come_in_the_round_in_which_they_are_said_to(tmp_path: Path) -> None:
    shares = [Share(np.arange(5), np.arange(5, 6))] * CLIENTS
    case = Case("digits", "late clients", "local", 0)
    config = communication.config_of(case, DATASETS["digits"], SETTINGS["late clients"], shares, tmp_path)
    lines = (tmp_path / "trace.csv").read_text().splitlines()[1:]
    assert len(lines) == 49 * len(LATE)
    assert config["train"]["rounds"] == 54


@pytest.mark.parametrize("setting", ["5 samples a class", "half weak", "half noisy", "all classes"])
def test_every_setting_trains(setting: str, monkeypatch: pytest.MonkeyPatch) -> None:
    small = communication.Data("digits", 1, 20, 4, 64, 20, most=600)
    monkeypatch.setattr(communication, "DATASETS", {"digits": small})
    found = train(Case("digits", setting, "input_means, all classes", 0))
    assert 0 <= found["asked"]["head"] <= 1
    alone = train(Case("digits", setting, NEAREST, 0))
    assert alone["accuracy"]["global"] > 0.6


def test_single_samples_tell_their_owner_and_means_of_many_hardly_do() -> None:
    assert membership(DATASETS["digits"], None, 1, seed=0) == 1.0
    assert membership(DATASETS["digits"], None, 5, seed=0) < 0.75


def test_a_study_adds_what_its_record_lacks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--settings", "iid", "--methods", NEAREST, "--seeds", "0", "1", "--processes", "1", "--out", str(tmp_path)]
    main(words)
    main(words)
    lines = [json.loads(line) for line in (tmp_path / "cells.jsonl").read_text().splitlines()]
    assert sorted(line["seed"] for line in lines) == [0, 1]
    assert NEAREST in capsys.readouterr().out
    assert set(METHODS) >= {line["method"] for line in lines}
