"""Clients in several processes: same bytes, clear failures, no orphans."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

CONFIG = """\
name: trial
partition: {num_clients: 5, alpha: 0.3, min_samples: 20}
models: [small_cnn_a, small_cnn_b]
prototypes: {dim: 20, cps_dim: 4}
train: {rounds: 4, batch_size: 32, participation: 0.8}
checkpoint: {every_seconds: 0}
algorithms: [local, {name: tinyproto_ft, server_epochs: 5}]
"""
NETS = """\
from torch import nn
from tinyproto import SplitModel

class Moody(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(64, dim))
        self.steps = 0
    def forward(self, images):
        if self.training and len(images) > 2:
            self.steps += 1
            if self.steps > 3:
                MISHAP
        return self.net(images)

def make(proto_dim):
    return Moody(proto_dim)
"""
pytestmark = pytest.mark.slow


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "tinyproto.cli.main", *arguments]


def run(cwd: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*arguments), cwd=cwd, capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "trial.yaml").write_text(CONFIG)
    return tmp_path


def test_one_two_and_three_workers_leave_the_same_bytes(project: Path) -> None:
    for workers in (1, 2, 3):
        done = run(project, "run", "trial.yaml", "--runs", f"runs{workers}", f"train.workers={workers}")
        assert done.returncode == 0, done.stderr
    for name in ("rounds.jsonl", "prototypes.safetensors"):
        alone = (project / "runs1" / "trial" / name).read_bytes()
        assert (project / "runs2" / "trial" / name).read_bytes() == alone
        assert (project / "runs3" / "trial" / name).read_bytes() == alone


def test_workers_with_little_memory_and_small_parcels_leave_the_same_bytes(project: Path) -> None:
    for memory in ("auto", "1B"):
        arguments = ("--runs", memory, "train.workers=2", f"train.client_memory={memory}", "evaluate.clients=all")
        done = run(project, "run", "trial.yaml", *arguments)
        assert done.returncode == 0, done.stderr
    for name in ("rounds.jsonl", "prototypes.safetensors"):
        assert (project / "1B" / "trial" / name).read_bytes() == (project / "auto" / "trial" / name).read_bytes()
    assert not (project / "1B" / "trial" / "clients").exists()


@pytest.mark.parametrize(
    ("mishap", "words"),
    [
        ("raise RuntimeError('bad mood')", "failed while training client"),
        ("import os; os._exit(7)", "ended with status 7 on client"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "was killed by signal 9 on client"),
    ],
)
def test_a_worker_that_fails_or_dies_ends_the_run_with_the_client_and_the_cause(
    project: Path, mishap: str, words: str
) -> None:
    (project / "nets.py").write_text(NETS.replace("MISHAP", mishap))
    done = run(project, "run", "trial.yaml", "models=[nets:make]", "train.workers=2")
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert words in done.stderr


def children(process: int) -> list[int]:
    listed = subprocess.run(["ps", "-o", "pid=", "--ppid", str(process)], capture_output=True, text=True, check=False)
    return [int(line) for line in listed.stdout.split()]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_no_worker_outlives_its_run(project: Path, number: signal.Signals) -> None:
    arguments = ("run", "trial.yaml", "train.workers=2", "train.rounds=100000")
    process = subprocess.Popen(command(*arguments), cwd=project, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    records = project / "runs" / "trial" / "cells" / "001-local-0" / "rounds.jsonl"
    deadline = time.monotonic() + 60
    while not records.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    workers = children(process.pid)
    assert len(workers) == 2
    process.send_signal(number)
    process.wait(timeout=30)
    deadline = time.monotonic() + 5
    while any(_alive(worker) for worker in workers) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(_alive(worker) for worker in workers)


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
        return "Z" not in Path(f"/proc/{process}/stat").read_text().split()[2]
    except (ProcessLookupError, FileNotFoundError):
        return False


def test_a_run_with_workers_resumes_to_the_same_bytes(project: Path) -> None:
    assert run(project, "run", "trial.yaml", "--runs", "alone", "train.workers=2", "train.rounds=12").returncode == 0
    process = subprocess.Popen(
        command("run", "trial.yaml", "train.workers=2", "train.rounds=12"), cwd=project, stdout=subprocess.DEVNULL
    )
    records = project / "runs" / "trial" / "rounds.jsonl"
    second = project / "runs" / "trial" / "cells" / "002-tinyproto_ft-0" / "rounds.jsonl"
    while not second.exists() or second.read_text().count("\n") < 3:
        time.sleep(0.02)
    process.kill()
    process.wait()
    assert run(project, "resume", "runs/trial").returncode == 0
    assert records.read_bytes() == (project / "alone" / "trial" / "rounds.jsonl").read_bytes()
