from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

CONFIG = """
name: long
models: [small_cnn_c]
partition: {num_clients: 3}
prototypes: {dim: 10, cps_dim: 2}
train: {rounds: 100000}
algorithms: [fedproto]
"""


def test_control_c_ends_a_run_with_one_sentence_and_keeps_what_was_recorded(tmp_path: Path) -> None:
    config = tmp_path / "long.yaml"
    config.write_text(CONFIG)
    command = [sys.executable, "-m", "tinyproto.cli.main", "run", str(config), "--runs", str(tmp_path / "runs")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    records = tmp_path / "runs" / "long" / "rounds.jsonl"
    deadline = time.monotonic() + 60
    while not (records.exists() and records.stat().st_size) and time.monotonic() < deadline:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    assert errors.strip() == f"tinyproto: interrupted; what was recorded so far is in {tmp_path / 'runs' / 'long'}"
    assert records.read_text().startswith('{"algorithm":"fedproto"')
