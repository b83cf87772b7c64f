"""SIGTERM and SIGHUP, sent to a whole process group as terminals and schedulers do, lose nothing of a run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

CONFIG = """\
name: trial
partition: {num_clients: 4, alpha: 0.5, min_samples: 20}
models: [small_cnn_c]
prototypes: {dim: 10, cps_dim: 2}
train: {rounds: 25, batch_size: 64}
checkpoint: {every_seconds: 1000}
algorithms: [fedproto]
seeds: [0, 1]
"""
GO_ON = "tinyproto: interrupted; resume with: tinyproto resume runs/trial\n"
SLOWLY = """\
import sys, time
import tinyproto.cli.run as run
from tinyproto.cli.main import main

def load(*_, **__):
    print("loading", flush=True)
    time.sleep(60)

run.Experiment = load
sys.argv = ["tinyproto", *sys.argv[1:]]
main()
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "trial.yaml").write_text(CONFIG)
    return tmp_path


@pytest.fixture
def start(project: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start a command in a process group of its own; what is left of it at the end is killed."""
    started: list[subprocess.Popen[str]] = []

    def begin(*arguments: str, script: str = "", ignored: tuple[signal.Signals, ...] = ()) -> subprocess.Popen[str]:
        def ignore() -> None:
            for number in ignored:
                signal.signal(number, signal.SIG_IGN)

        command = ["-c", script] if script else ["-m", "tinyproto.cli.main"]
        process = subprocess.Popen(
            [sys.executable, *command, *arguments], cwd=project, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, start_new_session=True, preexec_fn=ignore if ignored else None,
        )  # fmt: skip
        started.append(process)
        return process

    yield begin
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


def wait_for(what: Callable[[], object], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def rounds(project: Path) -> int:
    return sum(path.read_bytes().count(b"\n") for path in (project / "runs").rglob("rounds.jsonl"))


def children(parent: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("undisturbed")
    (folder / "trial.yaml").write_text(CONFIG)
    subprocess.run([sys.executable, "-m", "tinyproto.cli.main", "run", "trial.yaml", "-q"], cwd=folder, check=True)
    return (folder / "runs" / "trial" / "rounds.jsonl").read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "moment"),
    [
        (signal.SIGTERM, "starting"),
        (signal.SIGTERM, "playing"),
        (signal.SIGHUP, "playing"),
        (signal.SIGINT, "starting"),
    ],
    ids=["SIGTERM starting", "SIGTERM playing", "SIGHUP playing", "SIGINT starting"],
)
@pytest.mark.parametrize("how", ["train.workers=2", "train.parallel_cells=2"])
def test_a_signal_to_all_processes_leaves_checkpoints_and_the_same_bytes_after_a_resume(
    project: Path, start: Callable[..., subprocess.Popen[str]], undisturbed: bytes, how: str,
    number: signal.Signals, moment: str,
) -> None:  # fmt: skip
    process = start("run", "trial.yaml", how, "-q")
    if moment == "starting":
        wait_for(lambda: len(children(process.pid)) == 2)
    else:
        wait_for(lambda: rounds(project) >= 3)
    before = rounds(project)
    os.killpg(process.pid, number)
    _, errors = process.communicate(timeout=120)
    assert (process.returncode, errors) == (128 + number, GO_ON)
    assert rounds(project) >= before
    if moment == "playing":
        begun = [path.parent for path in (project / "runs" / "trial" / "cells").glob("*/rounds.jsonl")]
        assert begun
        assert all(list((cell / "checkpoint").iterdir()) for cell in begun)
        assert not list((project / "runs").rglob("cells/*/summary.json"))  # nobody played on to the end
    again = start("resume", "runs/trial", "-q")
    _, errors = again.communicate(timeout=240)
    assert (again.returncode, errors) == (0, "")
    assert (project / "runs" / "trial" / "rounds.jsonl").read_bytes() == undisturbed


@pytest.mark.slow
def test_a_second_signal_ends_a_run_at_once_and_a_resumed_run_answers_signals_too(
    project: Path, start: Callable[..., subprocess.Popen[str]]
) -> None:
    (project / "nets.py").write_text(
        "import time\nfrom torch import nn\n\n\nclass Slow(nn.Flatten):\n    def forward(self, x):\n"
        "        time.sleep(2)\n        return super().forward(x)\n\n\n"
        "def slow(proto_dim):\n    return nn.Sequential(Slow(), nn.Linear(64, proto_dim))\n"
    )
    process = start("run", "trial.yaml", "models=[nets:slow]", "-q")
    wait_for(lambda: (project / "runs" / "trial" / "cells").is_dir())
    time.sleep(1)
    process.terminate()
    time.sleep(0.5)
    sent = time.monotonic()
    process.terminate()
    _, errors = process.communicate(timeout=30)
    assert time.monotonic() - sent < 10  # a round takes minutes
    assert (process.returncode, errors) == (143, GO_ON)

    quick = start("run", "trial.yaml", "--overwrite", "-q", "train.rounds=100000")
    wait_for(lambda: rounds(project) >= 1)
    quick.send_signal(signal.SIGHUP)
    assert quick.wait(60) == 129
    again = start("resume", "runs/trial", "-q")
    before = rounds(project)
    wait_for(lambda: rounds(project) > before)
    again.terminate()
    _, errors = again.communicate(timeout=60)
    assert (again.returncode, errors) == (143, GO_ON)


@pytest.mark.slow
def test_under_nohup_a_run_outlives_its_terminal_and_still_ends_on_sigterm(
    project: Path, start: Callable[..., subprocess.Popen[str]]
) -> None:
    process = start("run", "trial.yaml", "-q", "train.rounds=100000", ignored=(signal.SIGHUP,))
    wait_for(lambda: rounds(project) >= 1)
    process.send_signal(signal.SIGHUP)
    before = rounds(project)
    wait_for(lambda: rounds(project) > before + 3)
    process.terminate()
    assert process.wait(60) == 143


@pytest.mark.slow
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, -15), (signal.SIGHUP, -1)])
def test_a_signal_before_the_first_round_ends_it_and_leaves_nothing(
    project: Path, start: Callable[..., subprocess.Popen[str]], number: signal.Signals, status: int
) -> None:
    process = start("run", "trial.yaml", "train.rounds=100000", script=SLOWLY)
    assert process.stdout is not None
    assert process.stdout.readline() == "loading\n"
    time.sleep(0.1)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (status, "")
    assert not (project / "runs").exists()
