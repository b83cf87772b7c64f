"""A run that is killed again and again ends bit for bit as one that was left alone."""

from __future__ import annotations

import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

CONFIG = """\
name: trial
partition: {num_clients: 8, alpha: 0.3, min_samples: 20}
models: [small_cnn_a, small_cnn_b, small_cnn_d]
prototypes: {dim: 20, cps_dim: 4}
train: {rounds: 25, batch_size: 32}
checkpoint: {every_seconds: 0.2}
algorithms: [fedproto, {name: tinyproto_ft, server_epochs: 20}]
"""
KILLS = 10


def tinyproto(*arguments: str, cwd: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tinyproto.cli.main", *arguments]
    return subprocess.Popen(command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_ten_kills_at_random_moments_change_nothing(tmp_path: Path) -> None:
    (tmp_path / "trial.yaml").write_text(CONFIG)
    alone = tinyproto("run", "trial.yaml", "--runs", "alone", cwd=tmp_path)
    start = time.monotonic()
    assert alone.wait(timeout=300) == 0
    whole = time.monotonic() - start

    folder = tmp_path / "runs" / "trial"
    moments = random.Random(0)
    process = tinyproto("run", "trial.yaml", cwd=tmp_path)
    killed = 0
    while killed < KILLS:
        while not (folder / "config.yaml").exists():
            time.sleep(0.01)
        try:
            process.wait(timeout=moments.uniform(0.5, max(whole / 3, 4)))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
            killed += 1
        else:  # it got to the end: what was killed so far has to have left no trace; begin another
            assert (folder / "rounds.jsonl").read_bytes() == (tmp_path / "alone/trial/rounds.jsonl").read_bytes()
            process = tinyproto("run", "trial.yaml", "--overwrite", cwd=tmp_path)
            time.sleep(1)
            continue
        process = tinyproto("resume", str(folder), cwd=tmp_path)
    assert process.wait(timeout=300) == 0
    for name in ("rounds.jsonl", "prototypes.safetensors"):
        assert (folder / name).read_bytes() == (tmp_path / "alone" / "trial" / name).read_bytes()


@pytest.mark.slow
def test_a_first_interrupt_checkpoints_and_a_second_ends_at_once(tmp_path: Path) -> None:
    # A round takes about a second, so that the second interrupt comes before the first one has ended the run.
    (tmp_path / "trial.yaml").write_text(CONFIG.replace("rounds: 25", "rounds: 100000, local_epochs: 60"))
    process = tinyproto("run", "trial.yaml", cwd=tmp_path)
    records = tmp_path / "runs" / "trial" / "cells" / "001-fedproto-0" / "rounds.jsonl"
    while not records.exists():
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert re.fullmatch("tinyproto: interrupted; .* tinyproto resume runs/trial\n", errors)

    again = tinyproto("resume", "runs/trial", cwd=tmp_path)
    before = records.stat().st_size
    while records.stat().st_size <= before:
        time.sleep(0.05)
    again.send_signal(signal.SIGINT)
    time.sleep(0.3)
    again.send_signal(signal.SIGINT)
    assert again.wait(timeout=30) == 130
