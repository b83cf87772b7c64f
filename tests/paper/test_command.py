from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from support_reproduce import in_process


def test_the_list_names_every_target_and_its_configs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert in_process(monkeypatch, tmp_path, "--list") == 0
    shown = capsys.readouterr().out
    for words in ("table1", "table3", "appendix", "figure-neurons", "figure-compression", "table1_cifar100.yaml"):
        assert words in shown


def test_the_list_as_json_is_one_value_with_a_line_per_config(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert in_process(monkeypatch, tmp_path, "--list", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    first = found[0]
    assert {key: first[key] for key in ("target", "config", "dataset", "cells")} == {
        "target": "table1", "config": "paper/configs/table1_cifar10.yaml", "dataset": "cifar10", "cells": 27,
    }  # fmt: skip


def test_without_the_list_the_verb_says_what_it_needs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert in_process(monkeypatch, tmp_path) == 2
    assert "--list" in capsys.readouterr().err


def test_a_target_s_cells_are_listed_with_how_far_they_are(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    label = "tinyproto_fp(cps_dim=150,scaling=none)"
    part = ("appendix", "--dataset", "cifar100", "--algorithms", label, "--seeds", "0,3", "--list")
    assert in_process(monkeypatch, tmp_path, *part) == 0
    shown = capsys.readouterr().out
    assert shown.count(label) == 2
    assert "2 cells, 2 to do" in " ".join(shown.split())
    assert in_process(monkeypatch, tmp_path, *part, "--json") == 0
    assert json.loads(capsys.readouterr().out)[1] == {
        "config": "appendix_cifar100", "dataset": "cifar100", "algorithm": "tinyproto_fp", "label": label, "seed": 3,
        "rounds": 300, "state": "to do", "played": 0, "folder": None,
    }  # fmt: skip
    assert list(tmp_path.iterdir()) == []


def test_a_figure_that_is_computed_has_nothing_to_play(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert in_process(monkeypatch, tmp_path, "figure1") == 0
    assert "python -m paper report paper/records" in capsys.readouterr().out
    assert in_process(monkeypatch, tmp_path, "figure1", "--list") == 0
    assert capsys.readouterr().out == "figure1: parameters compared with FedAvg; computed, so it has no cells.\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["table9"], "target 'table9'"),
        (["table3", "--dataset", "cifar10"], "--dataset: table3 has no cells with cifar10; it has cifar100"),
        (["table1", "--algorithms", "fedprotto"], "'fedproto'"),
        (["table1", "--seeds", "0,x"], "--seeds: .*'x'"),
        (["table1", "--seeds", ","], "--seeds: ','"),
        (["table1", "--import", "nowhere"], "--import .*TARGET"),
        (["--list", "--import", "nowhere"], "--import .*--list"),
        (["table1", "train.precision=tf32"], "'train.precision=tf32'.*train.parallel_cells"),
        (["table1", "--rounds", "0"], "--rounds: .*'0'"),
        (["table1", "--preset", "mine"], "--preset: .*'mine'"),
        (["table1", "train.batch_size=8"], "'train.batch_size=8'.*train.parallel_cells"),
        (["table1", "train.parallel_cells=0"], "train.parallel_cells: "),
        (["table1", "train.trainer=quick"], "train.trainer: "),
        (["--import", "nowhere"], "nowhere is not a run folder"),
    ],
)
def test_what_is_wrong_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    words: str,
) -> None:
    assert in_process(monkeypatch, tmp_path, *arguments) == 2
    said = capsys.readouterr()
    (sentence,) = said.err.splitlines()
    assert sentence.startswith("python -m paper: error: ")
    assert re.search(words, sentence)
    assert said.out == ""
    assert list(tmp_path.iterdir()) == []
