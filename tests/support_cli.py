"""Run the command line on a small project."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from tinyproto.cli.main import main

CLIENTS, ROUNDS, DIM, CPS_DIM, CLASSES = 5, 2, 20, 4, 10
CONFIG = """\
name: trial
partition: {num_clients: 5, alpha: 0.3, min_samples: 20}
models: [nets:flat, small_cnn_c]
prototypes: {dim: 20, cps_dim: 4}
train: {rounds: 2, batch_size: 64}
algorithms: [local, fedproto, {name: tinyproto_ft, server_epochs: 2}]
seeds: [0, 1]
"""
NETS = """\
from torch import nn


def flat(proto_dim):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, proto_dim), nn.ReLU())


def too_wide(proto_dim):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, proto_dim + 1))


def talkative():
    raise RuntimeError("several\\nlines of\\nreasons")
"""
RUN_FILES = {
    "config.yaml", "environment.json", "federation.json", "rounds.jsonl", "timings.jsonl", "prototypes.safetensors",
    "summary.json", "report.html",
}  # fmt: skip
CELLS = [(name, seed) for seed in (0, 1) for name in ("local", "fedproto", "tinyproto_ft")]


def environment(**more: str) -> dict[str, str]:
    """Return this environment without the variables that make rich and typer expect a terminal."""
    unwanted = {"FORCE_COLOR", "PY_COLORS", "GITHUB_ACTIONS", "CLICOLOR_FORCE", "PYTHONIOENCODING"}
    kept = {name: value for name, value in os.environ.items() if name not in unwanted}
    return {**kept, "COLUMNS": "120", "PYTHONUTF8": "1", **more}


def command(*arguments: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tinyproto.cli.main", *arguments],
        cwd=cwd,
        env=environment(**variables),
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        timeout=120,
        check=False,
    )


def called(*arguments: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Like `command`, but in this process, which saves importing torch again. Not for signals, encodings or kills."""
    said, errors, status = io.StringIO(), io.StringIO(), 0
    sys.modules.pop("nets", None)
    with (
        mock.patch.object(sys, "argv", ["tinyproto", *arguments]),
        mock.patch.object(sys, "path", [str(cwd), *sys.path]),
        mock.patch.object(sys, "dont_write_bytecode", True),
        mock.patch.dict(os.environ, environment(**variables), clear=True),
        contextlib.chdir(cwd),
        contextlib.redirect_stdout(said),
        contextlib.redirect_stderr(errors),
    ):
        try:
            main()
        except SystemExit as ended:
            status = 0 if ended.code is None else int(ended.code)
    return subprocess.CompletedProcess(arguments, status, said.getvalue(), errors.getvalue())


def in_process(monkeypatch: pytest.MonkeyPatch, cwd: Path, *arguments: str) -> int:
    """Run the entry point in this process, which saves importing torch again; return its exit status."""
    monkeypatch.chdir(cwd)
    monkeypatch.setattr(sys, "argv", ["tinyproto", *arguments])
    monkeypatch.setattr(sys, "path", [str(cwd), *sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.delitem(sys.modules, "nets", raising=False)
    with pytest.raises(SystemExit) as ended:
        main()
    return 0 if ended.value.code is None else int(ended.value.code)


def write_project(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "trial.yaml").write_text(CONFIG)
    (folder / "nets.py").write_text(NETS)
    return folder


def tree(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def jsonl(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@dataclass(frozen=True)
class GoodRun:
    cwd: Path
    folder: Path
    stdout: str

    @property
    def results(self) -> list[dict[str, Any]]:
        summary = json.loads((self.folder / "summary.json").read_text())
        assert summary["schema_version"] == 1
        results: list[dict[str, Any]] = summary["results"]
        return results
