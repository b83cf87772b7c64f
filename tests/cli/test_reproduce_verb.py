from __future__ import annotations

import json
from pathlib import Path

import pytest

from support_cli import in_process


def test_the_list_names_every_target_and_its_configs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert in_process(monkeypatch, tmp_path, "reproduce", "--list") == 0
    shown = capsys.readouterr().out
    for words in ("table1", "table3", "appendix", "figure-neurons", "figure-compression", "table1_cifar100.yaml"):
        assert words in shown


def test_the_list_as_json_is_one_value_with_a_line_per_config(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert in_process(monkeypatch, tmp_path, "reproduce", "--list", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    first = found[0]
    assert {key: first[key] for key in ("target", "config", "dataset", "cells")} == {
        "target": "table1", "config": "configs/paper/table1_cifar10.yaml", "dataset": "cifar10", "cells": 27,
    }  # fmt: skip


def test_without_the_list_the_verb_says_what_it_needs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert in_process(monkeypatch, tmp_path, "reproduce") == 2
    assert "--list" in capsys.readouterr().err


def test_a_target_s_cells_are_listed_with_how_far_they_are(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    label = "tinyproto_fp(cps_dim=150,scaling=none)"
    part = ("reproduce", "appendix", "--dataset", "cifar100", "--algorithms", label, "--seeds", "0,3", "--list")
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
    assert in_process(monkeypatch, tmp_path, "reproduce", "figure1") == 0
    assert "tinyproto report results" in capsys.readouterr().out
    assert in_process(monkeypatch, tmp_path, "reproduce", "figure1", "--list") == 0
    assert capsys.readouterr().out == "figure1: parameters against FedAvg; computed, so there are no cells.\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["table9"], "unknown target 'table9'"),
        (["table3", "--dataset", "cifar10"], "table3 has no cells with cifar10; it has cifar100"),
        (["table1", "--algorithms", "fedprotto"], "did you mean 'fedproto'"),
        (["table1", "--seeds", "0,x"], "--seeds: whole numbers from 0 on are needed, such as 0,1,2, not 'x'"),
        (["table1", "--seeds", ","], "--seeds: there is nothing in ','"),
        (["table1", "--adopt", "nowhere"], "--adopt makes records of run folders, whatever they are part of"),
        (["table1", "train.precision=tf32"], "a reproduction changes only what its numbers do not depend on"),
        (["table1", "--rounds", "0"], "--rounds: a whole number from 1"),
        (["table1", "--preset", "mine"], "--preset: unknown preset 'mine'"),
        (["table1", "train.batch_size=8"], "a reproduction changes only what its numbers do not depend on"),
        (["table1", "train.parallel_cells=0"], "train.parallel_cells: "),
        (["table1", "train.trainer=quick"], "train.trainer: "),
        (["--adopt", "nowhere"], "nowhere is not a run folder"),
    ],
)
def test_what_is_wrong_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    words: str,
) -> None:
    assert in_process(monkeypatch, tmp_path, "reproduce", *arguments) == 2
    said = capsys.readouterr()
    (sentence,) = said.err.splitlines()
    assert sentence.startswith("tinyproto: error: ")
    assert words in sentence
    assert said.out == ""
    assert list(tmp_path.iterdir()) == []
