"""Several cells at once: the same run folder as one after another, clear failures, nothing lost."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from support_cli import jsonl
from support_grid import Recording, assert_same, make_experiment
from tinyproto import grid
from tinyproto.errors import CellsFailed
from tinyproto.experiment import Experiment

CONFIG = """\
name: trial
data: {name: digits, first_classes: 3}
partition: {num_clients: 3, alpha: 0.5, min_samples: 20}
models: [small_cnn_b, small_cnn_c]
prototypes: {dim: 12, cps_dim: 3}
train: {rounds: 4, batch_size: 64, participation: 0.7}
checkpoint: {every_seconds: 0}
algorithms: [local, {name: fedproto, label: "proto/type"}, {name: tinyproto_ft, server_epochs: 2}]
"""
NETS = """\
import os
import time
from pathlib import Path

import torch
from torch import nn

steps = 0


def first():
    try:
        Path("once").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


class Moody(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(64, dim))

    def forward(self, images):
        global steps
        if self.training and len(images) > 2:
            Path(f"seen-{os.getpid()}").touch()
            steps += 1
            if steps == 16:  # in round 3
                while len(list(Path(".").glob("seen-*"))) < TOGETHER:
                    time.sleep(0.05)
                MISHAP
        return self.net(images)


def make(proto_dim):
    return Moody(proto_dim)
"""
LABELS = ("local", "proto/type", "tinyproto_ft")
TITLES = ("Local, seed 0", "proto/type, seed 0", "TinyProto-FT, seed 0")


def experiment(folder: Path, *overrides: str) -> Experiment:
    return make_experiment(folder, CONFIG, *overrides)


@pytest.fixture(scope="module")
def in_turn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("in_turn")
    return grid.run(experiment(folder), folder / "runs")


@pytest.mark.parametrize("cells", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_cells_at_once_leave_the_same_run_folder(tmp_path: Path, in_turn: Path, cells: int) -> None:
    told = Recording()
    folder = grid.run(experiment(tmp_path, f"train.parallel_cells={cells}"), tmp_path / "runs", observer=told)
    assert_same(folder, in_turn)
    assert {path.name for path in folder.iterdir()} == {path.name for path in in_turn.iterdir()}
    order = [(line["label"], line["round"]) for line in jsonl(in_turn / "timings.jsonl")]
    assert [(line["label"], line["round"]) for line in jsonl(folder / "timings.jsonl")] == order
    assert json.loads((folder / "environment.json").read_text())["parallel_cells"] == cells
    assert told.events[0] == ("opens", -1, 3)
    for cell in range(3):
        assert told.of("started", cell) == [0]
        assert [round_.record.round for round_ in told.of("played", cell)] == [1, 2, 3, 4, 5]
        assert [result["label"] for result in told.of("finished", cell)] == [
            ("local", "proto/type", "tinyproto_ft")[cell]
        ]
    assert [told.of("derived", cell) for cell in (0, 1)] == [[], []]
    ((derived, first),) = told.of("derived", 2)
    assert (derived.keys(), first) == ({"global_scale"}, 1)
    assert [words for words in told.words if f"{cells} run at once" in words]
    first_of_second = told.events.index(("started", 1, 0))
    assert len([event for event in told.events[:first_of_second] if event[:2] == ("played", 0)]) >= 2  # measured first


@pytest.mark.slow
def test_a_stop_leaves_every_cell_where_it_is_and_any_number_goes_on(tmp_path: Path) -> None:
    two = ("algorithms=[local, fedproto]", "train.rounds=20", "train.participation=0.3")
    stopper = Recording(stop_at=(1, 1))
    with pytest.raises(KeyboardInterrupt):
        grid.run(experiment(tmp_path, *two, "train.parallel_cells=2"), tmp_path / "runs", observer=stopper)
    folder = tmp_path / "runs" / "trial"
    kept = len(jsonl(folder / "cells" / "002-fedproto-0" / "rounds.jsonl"))
    assert 1 <= kept < 20
    told = Recording()
    grid.resume(experiment(tmp_path, *two), folder, observer=told)
    assert told.of("started", 1) == [kept]
    assert_same(folder, grid.run(experiment(tmp_path, *two), tmp_path / "alone"))


def test_the_dataset_is_not_loaded_again_by_the_cells(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    pixels, labels = random.integers(0, 256, (200, 1, 8, 8), dtype=np.uint8), np.arange(200) % 4
    np.savez(tmp_path / "mine.npz", images=pixels, labels=labels)
    overrides = (f"data={{name: npz, root: {tmp_path / 'mine.npz'}}}", "algorithms=[local, fedproto]", "train.rounds=1")
    ready = experiment(tmp_path, *overrides, "train.parallel_cells=2", "partition.min_samples=5")
    (tmp_path / "mine.npz").unlink()
    folder = grid.run(ready, tmp_path / "runs")
    assert [result["dataset"] for result in json.loads((folder / "summary.json").read_text())["results"]] == [
        "mine"
    ] * 2


def moody(folder: Path, monkeypatch: pytest.MonkeyPatch, mishap: str, together: int) -> Experiment:
    """A grid whose networks have a mishap once so many cells train."""
    (folder / "nets.py").write_text(NETS.replace("MISHAP", mishap).replace("TOGETHER", str(together)))
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.delitem(sys.modules, "nets", raising=False)
    return experiment(folder, "models=[nets:make]", "train.parallel_cells=3", "train.rounds=6")


@pytest.mark.slow
def test_out_of_memory_beside_others_goes_on_with_fewer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mishap = "if first(): raise torch.OutOfMemoryError('CUDA out of memory')"
    told = Recording()
    folder = grid.run(moody(tmp_path, monkeypatch, mishap, 3), tmp_path / "runs", observer=told)
    (words,) = [words for words in told.words if "out of memory with" in words]
    assert any(words.startswith(f"{title}: out of memory with 3 cells at once") for title in TITLES)
    assert words.endswith("at most 2 run at once")
    again = [cell for cell in range(3) if len(told.of("started", cell)) == 2]
    assert len(again) == 1
    assert told.of("started", again[0])[1] >= 2  # from its checkpoint
    alone = moody(tmp_path, monkeypatch, "pass", 1)
    assert_same(folder, grid.run(alone, tmp_path / "alone"))


@pytest.mark.parametrize(
    ("mishap", "together", "words"),
    [
        pytest.param(
            "raise torch.OutOfMemoryError('CUDA out of memory')",
            1,
            "out of memory although nothing ran beside it",
            marks=pytest.mark.slow,
        ),
        ("raise RuntimeError('bad mood')", 2, "while training client"),
        pytest.param("os._exit(7)", 2, "its process ended with status 7", marks=pytest.mark.slow),
        pytest.param(
            "os.kill(os.getpid(), 9)",
            2,
            "its process was killed by signal 9, as happens where memory runs out",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_cell_that_fails_is_named_with_the_cause_and_a_resume_tries_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mishap: str, together: int, words: str
) -> None:
    once = f"if first(): {mishap}" if together > 1 else mishap
    told = Recording()
    with pytest.raises(CellsFailed) as caught:
        grid.run(moody(tmp_path, monkeypatch, once, together), tmp_path / "runs", observer=told)
    folder = tmp_path / "runs" / "trial"
    sentence = str(caught.value)
    assert words in sentence
    assert sentence.endswith(f"; `tinyproto resume {folder}` tries again")
    failed = [(LABELS.index(one["label"]), one["reason"]) for one in caught.value.failed]
    assert failed == [(cell, reason) for event, cell, reason in told.events if event == "failed"]
    assert 1 <= len(failed) <= (1 if together > 1 else 3)  # alone with the memory, a cell may still come to its end
    assert all(f"{TITLES[cell]}: " in sentence for cell, _ in failed[:1])
    assert finished_labels(folder) == [label for cell, label in enumerate(LABELS) if cell not in dict(failed)]
    kept = {cell: len(jsonl(next(folder.glob(f"cells/{cell + 1:03}-*/rounds.jsonl")))) for cell, _ in failed}
    assert min(kept.values()) >= 2
    again = Recording()
    grid.resume(moody(tmp_path, monkeypatch, "pass", 1), folder, observer=again)
    assert {cell: again.of("started", cell) for cell in range(3) if again.of("started", cell)} == {
        cell: [rounds] for cell, rounds in kept.items()
    }
    assert_same(folder, grid.run(moody(tmp_path, monkeypatch, "pass", 1), tmp_path / "alone"))


def finished_labels(folder: Path) -> list[str]:
    """In summary.json, and with all their rounds in rounds.jsonl."""
    if not (folder / "summary.json").exists():
        return []
    labels = [result["label"] for result in json.loads((folder / "summary.json").read_text())["results"]]
    rounds = [line["label"] for line in jsonl(folder / "rounds.jsonl")]
    assert rounds == [label for label in labels for _ in range(7)]
    return labels


# Through the command line, with kills


def tinyproto(cwd: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tinyproto.cli.main", *arguments]
    return subprocess.Popen(command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def children(process: int) -> list[int]:
    listed = subprocess.run(["ps", "-o", "pid=", "--ppid", str(process)], capture_output=True, text=True, check=False)
    return [int(line) for line in listed.stdout.split()]


def gone(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().split()[2] == "Z"
    except (ProcessLookupError, FileNotFoundError):
        return True


def wait_for(what: object, seconds: float = 60) -> None:
    assert callable(what)
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def lines(folder: Path) -> int:
    return sum(path.read_bytes().count(b"\n") for path in folder.rglob("rounds.jsonl"))


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["parent", "child", "interrupt", "two interrupts", "terminate"])
@pytest.mark.parametrize("moment", [2, 9, 25])
def test_a_run_killed_in_the_middle_resumes_to_the_same_bytes(tmp_path: Path, victim: str, moment: int) -> None:
    rounds = "train.rounds=12"
    (tmp_path / "trial.yaml").write_text(CONFIG)
    assert tinyproto(tmp_path, "run", "trial.yaml", "--runs", "alone", rounds, "-q").wait(timeout=120) == 0
    process = tinyproto(tmp_path, "run", "trial.yaml", rounds, "train.parallel_cells=3", "-q")
    folder = tmp_path / "runs" / "trial"
    wait_for(lambda: folder.exists() and lines(folder) >= moment)
    own = children(process.pid)
    assert own
    if victim == "child":
        os.kill(own[-1], signal.SIGKILL)
    elif victim == "parent":
        process.kill()
    elif victim == "terminate":
        process.terminate()
    else:
        process.send_signal(signal.SIGINT)
        if victim == "two interrupts":
            time.sleep(0.3)
            process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    wait_for(lambda: all(map(gone, own)))
    assert process.returncode in {"parent": (-9,), "child": (0, 2), "terminate": (0, 143)}.get(victim, (0, 130))
    if process.returncode in (130, 143):
        assert re.fullmatch("tinyproto: interrupted; .* tinyproto resume runs/trial\n", errors)
    if victim == "child" and process.returncode:
        assert process.returncode == 2
        assert len(errors.splitlines()) == 1
        assert "its process was killed by signal 9" in errors
    told = tinyproto(tmp_path, "resume", "runs/trial")
    output, errors = told.communicate(timeout=120)
    assert (told.returncode, errors) == (0, "")
    assert "TinyProto-FT" in output
    assert (folder / "report.html").stat().st_size > 10_000
    assert_same(folder, tmp_path / "alone" / "trial")
