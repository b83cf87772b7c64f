"""Runs that are interrupted, damaged, out of disk space or diverging."""

from __future__ import annotations

import json
import re
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from support_cli import called, in_process

CONFIG = """
name: long
models: [small_cnn_c]
partition: {num_clients: 3}
prototypes: {dim: 10, cps_dim: 2}
train: {rounds: 100000, workers: 1}
algorithms: [fedproto]
"""


@pytest.mark.parametrize(
    ("number", "status"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), pytest.param(signal.SIGHUP, 129, marks=pytest.mark.slow)],
    ids=["SIGINT", "SIGTERM", "SIGHUP"],
)
def test_a_signal_ends_a_run_with_one_sentence_and_keeps_what_was_recorded(
    tmp_path: Path, number: signal.Signals, status: int
) -> None:
    config = tmp_path / "long.yaml"
    config.write_text(CONFIG)
    command = [sys.executable, "-m", "tinyproto.cli.main", "run", str(config), "--runs", str(tmp_path / "runs")]
    command += ["train.workers=2"] if number is signal.SIGINT else []
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    records = tmp_path / "runs" / "long" / "cells" / "001-fedproto-0" / "rounds.jsonl"
    deadline = time.monotonic() + 60
    while not (records.exists() and records.stat().st_size) and time.monotonic() < deadline:
        time.sleep(0.1)
    process.send_signal(number)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == status
    (line,) = errors.splitlines()
    assert line.startswith("tinyproto: interrupted; ")
    assert line.endswith(f" tinyproto resume {tmp_path / 'runs' / 'long'}")
    assert records.read_text().startswith('{"algorithm":"fedproto"')
    assert list((records.parent / "checkpoint").iterdir())


@pytest.mark.slow
def test_a_second_process_is_told_while_a_run_is_under_way_and_goes_on_once_that_is_killed(tmp_path: Path) -> None:
    (tmp_path / "long.yaml").write_text(CONFIG + "seeds: [0, 1]\ncheckpoint: {every_seconds: 0}\n")
    main = [sys.executable, "-m", "tinyproto.cli.main"]
    first = subprocess.Popen([*main, "run", "long.yaml", "train.parallel_cells=2"], cwd=tmp_path)
    records = tmp_path / "runs" / "long" / "cells" / "001-fedproto-0" / "rounds.jsonl"

    def wait_for_a_round_after(length: int) -> None:
        deadline = time.monotonic() + 120
        while not (records.exists() and records.stat().st_size > length) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert records.stat().st_size > length

    try:
        wait_for_a_round_after(0)
        attempts = [
            subprocess.Popen([*main, *arguments], cwd=tmp_path, stderr=subprocess.PIPE, text=True)
            for arguments in (["resume", "runs/long"], ["run", "long.yaml", "--overwrite"])
        ]
        for attempt in attempts:
            assert re.fullmatch("tinyproto: error: .*runs/long.*\n", attempt.communicate(timeout=120)[1])
            assert attempt.returncode == 2
        wait_for_a_round_after(records.stat().st_size)  # the first goes on
    finally:
        first.kill()
        first.wait()
    third = subprocess.Popen([*main, "resume", "runs/long"], cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    wait_for_a_round_after(records.stat().st_size)
    third.send_signal(signal.SIGINT)
    _, errors = third.communicate(timeout=120)
    assert re.fullmatch("tinyproto: interrupted; .* tinyproto resume runs/long\n", errors)
    rounds = [json.loads(line)["round"] for line in records.read_text().splitlines()]
    assert rounds == list(range(1, len(rounds) + 1))
    assert not (tmp_path / "runs" / ".long.lock").exists()


@pytest.mark.parametrize("name", ["summary.json", "prototypes.safetensors"])
def test_resuming_a_damaged_run_ends_with_one_sentence(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "long.yaml").write_text(CONFIG + "seeds: [0]\n")
    assert in_process(monkeypatch, tmp_path, "run", "long.yaml", "train.rounds=1") == 0
    file = tmp_path / "runs" / "long" / name
    file.write_bytes(file.read_bytes()[:100])
    capsys.readouterr()
    assert in_process(monkeypatch, tmp_path, "resume", "runs/long") == 2
    (sentence,) = capsys.readouterr().err.splitlines()
    assert sentence.startswith(f"tinyproto: error: runs/long/{name} ")


def test_resuming_a_completed_run_without_its_summary_does_not_advise_to_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "long.yaml").write_text(CONFIG + "seeds: [0]\n")
    assert in_process(monkeypatch, tmp_path, "run", "long.yaml", "train.rounds=1") == 0
    (tmp_path / "runs" / "long" / "summary.json").unlink()
    capsys.readouterr()
    assert in_process(monkeypatch, tmp_path, "resume", "runs/long") == 2
    (sentence,) = capsys.readouterr().err.splitlines()
    assert sentence.startswith("tinyproto: error: runs/long/summary.json ")
    assert "resume" not in sentence


def with_files_of(most: int, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run the command with files of at most `most` bytes, as on a disk that is nearly full."""

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))

    command = [sys.executable, "-m", "tinyproto.cli.main", *arguments]
    return subprocess.run(command, capture_output=True, text=True, preexec_fn=limit, timeout=60, check=False, cwd=cwd)


def test_a_full_disk_ends_a_run_with_one_sentence_and_whole_lines(tmp_path: Path) -> None:
    (tmp_path / "long.yaml").write_text(CONFIG)
    done = with_files_of(5000, "run", "long.yaml", cwd=tmp_path)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert re.search(r"error: 1 cell failed \(FedProto, seed 0: cannot write", done.stderr)
    lines = (tmp_path / "runs" / "long" / "cells" / "001-fedproto-0" / "rounds.jsonl").read_text()
    assert lines.endswith("}\n")
    assert 0 < len(lines) <= 5000


def test_a_report_that_cannot_be_written_does_not_hide_which_cells_failed(tmp_path: Path) -> None:
    (tmp_path / "long.yaml").write_text(CONFIG)
    asked = ["train.rounds=2", "seeds=[0]", "train.max_left_out=0"]
    algorithms = "algorithms=[local, {name: fedproto, proto_weight: 1.0e9}]"
    done = with_files_of(20_000, "run", "long.yaml", algorithms, *asked, cwd=tmp_path)
    assert done.returncode == 2
    assert not (tmp_path / "runs" / "long" / "report.html").exists()
    assert re.match(r"tinyproto: error: 1 cell failed \(FedProto, seed 0: ", done.stderr.splitlines()[-1])


def test_training_that_diverges_ends_with_a_sentence_that_names_client_and_remedy(tmp_path: Path) -> None:
    config = tmp_path / "long.yaml"
    config.write_text(CONFIG + "seeds: [0]\n")
    done = called("run", str(config), "train.learning_rate=1e30", cwd=tmp_path)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert re.search(r"1 cell failed \(FedProto, seed 0: .*client 0 in round 1 .*train\.learning_rate", done.stderr)
    assert "resume" not in done.stderr


def test_a_client_that_diverges_is_named_once_on_the_console_and_counted_at_the_end_and_in_json(tmp_path: Path) -> None:
    (tmp_path / "nets.py").write_text(
        "import torch\n"
        "from torch import nn\n"
        "class Ill(nn.Sequential):\n"
        "    def forward(self, images):\n"
        "        return super().forward(images) * (torch.nan if self.training and len(images) > 2 else 1.0)\n"
        "def ill(proto_dim):\n"
        "    return Ill(nn.Flatten(), nn.Linear(64, proto_dim))\n"
    )
    config = tmp_path / "long.yaml"
    config.write_text(CONFIG)
    asked = ["algorithms=[local]", "train.rounds=3", "seeds=[0]", "models=[small_cnn_a, 'nets:ill', small_cnn_b]"]
    done = called("run", str(config), *asked, "partition.num_clients=3", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(re.findall("^Local, seed 0: client 1 left out: .*cross_entropy", done.stderr, re.MULTILINE)) == 1
    assert "Local, seed 0: 3 client-rounds left out" in done.stderr
    assert json.loads(done.stdout)["rows"][0]["left_out"] == 3
    assert re.search("Client-rounds left out: Local 3", done.stderr)


def test_one_cell_that_diverges_leaves_the_others_a_table_and_a_report(tmp_path: Path) -> None:
    config = tmp_path / "long.yaml"
    config.write_text(CONFIG)
    asked = [
        "algorithms=[local, {name: fedproto, proto_weight: 1.0e9}, tinyproto_fp]",
        "train.rounds=2",
        "seeds=[0]",
        "train.max_left_out=0",
    ]
    for arguments in (["run", str(config), *asked], ["resume", "runs/long"]):
        done = called(*arguments, "--json", cwd=tmp_path)
        assert done.returncode == 2
        assert re.search(r"^\[2/3\] FedProto, seed 0: failed: ", done.stderr, re.MULTILINE)
        last = done.stderr.splitlines()[-1]
        assert last.startswith("tinyproto: error: 1 cell failed (FedProto, seed 0: ")
        assert "resume" not in last
        told = json.loads(done.stdout)
        assert [row["label"] for row in told["rows"]] == ["local", "tinyproto_fp"]
        assert [(one["label"], one["seed"]) for one in told["failed"]] == [("fedproto", 0)]
        assert "TinyProto-FP" in (tmp_path / "runs" / "long" / "report.html").read_text()
        (tmp_path / "runs" / "long" / "report.html").unlink()
