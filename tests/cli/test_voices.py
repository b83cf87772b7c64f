"""Verbosity, JSON and colours: --json, --quiet, --verbose, NO_COLOR."""

from __future__ import annotations

import json
import os
import pty
import re
import sys
import threading
from pathlib import Path

import pytest
import torch

import tinyproto
from support_cli import RUN_FILES, in_process

Captured = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch
SHORT = ("run", "trial.yaml", "algorithms=[local, fedproto]", "seeds=[0]", "train.rounds=1")
COLOUR = re.compile(r"\x1b\[(?:\d+;)*(?:3[0-8]|4[0-8]|9[0-7]|10[0-7])(?:;\d+)*m")


def test_run_prints_one_json_value_and_its_words_elsewhere(project: Path, monkeypatch: Patch, capsys: Captured) -> None:
    assert in_process(monkeypatch, project, *SHORT, "--json") == 0
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    assert found["run"] == "runs/trial"
    assert found["report"] == "runs/trial/report.html"
    assert [row["label"] for row in found["rows"]] == ["local", "fedproto"]
    results = json.loads((project / "runs" / "trial" / "summary.json").read_text())["results"]
    assert found["rows"][1]["accuracy"]["global"]["mean"] == results[1]["accuracy"]["last10"]["global"]
    assert "nearest global prototype" in found["verdict"][0]
    for words in ("[2/2] FedProto, seed 0", "algorithm ", "runs/trial/report.html"):
        assert words in captured.err


def test_run_quietly_says_nothing_and_leaves_everything(project: Path, monkeypatch: Patch, capsys: Captured) -> None:
    assert in_process(monkeypatch, project, *SHORT, "--quiet") == 0
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "")
    assert {path.name for path in (project / "runs" / "trial").iterdir()} >= RUN_FILES


def test_quietly_an_error_is_still_said(project: Path, monkeypatch: Patch, capsys: Captured) -> None:
    assert in_process(monkeypatch, project, "run", "nothing.yaml", "-q") == 2
    assert "nothing.yaml" in capsys.readouterr().err


def test_verbosely_every_round_is_a_line(project: Path, monkeypatch: Patch, capsys: Captured) -> None:
    assert in_process(monkeypatch, project, *SHORT, "train.rounds=2", "-v") == 0
    lines = capsys.readouterr().out.splitlines()
    told = [line.partition(": ")[2] for line in lines if line.startswith("FedProto, seed 0: ")]
    assert [line.partition(":")[0] for line in told] == ["round 1", "round 2", "closing"]
    assert "cross_entropy " in told[0]
    assert re.search(r"global \d+\.\d %, .* total \d+\.\d+ s", told[2])
    assert [line for line in lines if re.search("1 worker .*networks nets:flat, small_cnn_c; ", line)]


def test_without_verbose_rounds_are_not_told(project: Path, monkeypatch: Patch, capsys: Captured) -> None:
    assert in_process(monkeypatch, project, *SHORT) == 0
    assert "round 1" not in capsys.readouterr().out


@pytest.mark.parametrize("verb", [("run", "trial.yaml"), ("resume", "runs/trial")])
def test_quiet_and_verbose_exclude_each_other(
    project: Path, monkeypatch: Patch, capsys: Captured, verb: tuple[str, str]
) -> None:
    assert in_process(monkeypatch, project, *verb, "-q", "-v") == 2
    assert re.fullmatch("tinyproto: error: --quiet and --verbose .*\n", capsys.readouterr().err)
    assert not (project / "runs").exists()


def test_doctor_prints_one_json_value(tmp_path: Path, monkeypatch: Patch, capsys: Captured) -> None:
    assert in_process(monkeypatch, tmp_path, "doctor", "--json") == 0
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    assert found["torch"] == torch.__version__
    assert found["tinyproto"].startswith(tinyproto.__version__)
    assert captured.err == ""


def in_terminal(monkeypatch: Patch, cwd: Path, *arguments: str, **variables: str) -> str:
    """Return what a terminal receives."""
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"TERM": "xterm-256color", **variables}.items():
        monkeypatch.setenv(name, value)
    keyboard, screen = pty.openpty()
    seen: list[bytes] = []

    def watch() -> None:
        try:
            while chunk := os.read(keyboard, 4096):
                seen.append(chunk)
        except OSError:  # the other end was closed
            return

    watcher = threading.Thread(target=watch)
    watcher.start()
    with os.fdopen(screen, "w", encoding="utf-8") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        status = in_process(monkeypatch, cwd, *arguments)
        stream.flush()
    watcher.join(timeout=10)
    os.close(keyboard)
    assert status == 0
    return b"".join(seen).decode()


def test_a_terminal_gets_bars_in_colours(project: Path, monkeypatch: Patch) -> None:
    shown = in_terminal(monkeypatch, project, *SHORT)
    assert COLOUR.search(shown)
    assert "[2/2] FedProto, seed 0" in shown
    assert "━" in shown


@pytest.mark.parametrize("also", [{}, {"FORCE_COLOR": "1"}])
def test_no_color_means_no_colours_even_where_they_are_forced(
    project: Path, monkeypatch: Patch, also: dict[str, str]
) -> None:
    shown = in_terminal(monkeypatch, project, *SHORT, NO_COLOR="1", **also)
    assert "[2/2] FedProto, seed 0" in shown
    assert COLOUR.findall(shown) == []


def test_a_dumb_terminal_gets_no_escape_codes(project: Path, monkeypatch: Patch) -> None:
    shown = in_terminal(monkeypatch, project, *SHORT, TERM="dumb")
    assert "FedProto, seed 0" in shown
    assert "\x1b" not in shown
