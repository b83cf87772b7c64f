"""What a run does when the world gets in its way."""

from __future__ import annotations

import json
import re
import resource
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
    records = tmp_path / "runs" / "long" / "cells" / "001-fedproto-0" / "rounds.jsonl"
    deadline = time.monotonic() + 60
    while not (records.exists() and records.stat().st_size) and time.monotonic() < deadline:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    assert errors.strip() == f"tinyproto: interrupted; go on with: tinyproto resume {tmp_path / 'runs' / 'long'}"
    assert records.read_text().startswith('{"algorithm":"fedproto"')


def test_a_full_disk_ends_a_run_with_one_sentence_and_whole_lines(tmp_path: Path) -> None:
    config = tmp_path / "long.yaml"
    config.write_text(CONFIG)
    command = [sys.executable, "-m", "tinyproto.cli.main", "run", str(config), "--runs", str(tmp_path / "runs")]

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))

    done = subprocess.run(command, capture_output=True, text=True, preexec_fn=limit, timeout=60, check=False)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "tinyproto: error: 1 cell failed (FedProto, seed 0: cannot write" in done.stderr
    lines = (tmp_path / "runs" / "long" / "cells" / "001-fedproto-0" / "rounds.jsonl").read_text()
    assert lines.endswith("}\n")
    assert 0 < len(lines) <= 5000


def test_training_that_diverges_ends_with_a_sentence_that_names_client_and_remedy(tmp_path: Path) -> None:
    config = tmp_path / "long.yaml"
    config.write_text(CONFIG + "seeds: [0]\n")
    command = [sys.executable, "-m", "tinyproto.cli.main", "run", str(config), "train.learning_rate=1e30"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=60, check=False)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert re.search(r"1 cell failed \(FedProto, seed 0: frame of client \d, round 1, refused", done.stderr)
    assert "did training diverge?" in done.stderr


def test_one_cell_that_diverges_leaves_the_others_a_table_and_a_report(tmp_path: Path) -> None:
    config = tmp_path / "long.yaml"
    config.write_text(CONFIG)
    asked = ["algorithms=[local, {name: fedproto, proto_weight: 1.0e9}, tinyproto_fp]", "train.rounds=2", "seeds=[0]"]
    command = [sys.executable, "-m", "tinyproto.cli.main"]
    for arguments in (["run", str(config), *asked], ["resume", "runs/long"]):
        done = subprocess.run(
            [*command, *arguments, "--json"], capture_output=True, text=True, cwd=tmp_path, timeout=60, check=False
        )
        assert done.returncode == 2
        assert "[2/3] FedProto, seed 0: failed: frame of client" in done.stderr
        last = done.stderr.splitlines()[-1]
        assert last.startswith("tinyproto: error: 1 cell failed (FedProto, seed 0: frame of client ")
        assert last.endswith("; `tinyproto resume runs/long` tries again")
        told = json.loads(done.stdout)
        assert [row["label"] for row in told["rows"]] == ["local", "tinyproto_fp"]
        assert [(one["label"], one["seed"]) for one in told["failed"]] == [("fedproto", 0)]
        assert "TinyProto-FP" in (tmp_path / "runs" / "long" / "report.html").read_text()
        (tmp_path / "runs" / "long" / "report.html").unlink()
