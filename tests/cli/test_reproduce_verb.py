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
