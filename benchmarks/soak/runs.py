"""Runs of `tinyproto` in processes of their own: started, killed with all their workers, compared."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import tinyproto
from benchmarks.soak import Verdict

CONFIG = """\
name: trial
partition: {{num_clients: 4, alpha: 0.5, min_samples: 20}}
models: [small_cnn_a, small_cnn_b]
prototypes: {{dim: 20, cps_dim: 4}}
train: {{rounds: {rounds}, batch_size: 64, workers: {workers}, parallel_cells: 1, device: cpu}}
checkpoint: {{every_seconds: 0}}
algorithms: [{{name: tinyproto_ft, server_epochs: 5}}, lg_fedavg]
seeds: [{seed}]
"""
COMPARED = ("rounds.jsonl", "prototypes.safetensors")
LONGEST = 300.0  # seconds for any run; beyond, it hangs


@contextmanager
def scratch(verdict: Verdict) -> Iterator[Path]:
    """Make a folder for a part's runs; after failures it stays, and the verdict names it."""
    folder = Path(tempfile.mkdtemp(prefix="tinyproto-soak-"))
    try:
        yield folder
    finally:
        if verdict.failures:
            verdict.failures.append(f"the runs are kept in {folder}")
        else:
            shutil.rmtree(folder)


def write_config(folder: Path, *, rounds: int, workers: int, seed: int) -> None:
    """Write `trial.yaml`: a prototype method and one that exchanges networks, with a checkpoint after every round."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "trial.yaml").write_text(CONFIG.format(rounds=rounds, workers=workers, seed=seed))


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """Start `tinyproto` with these arguments in a folder, as the leader of a process group."""
    command = [sys.executable, "-m", "tinyproto", *arguments]
    same = {**os.environ, "PYTHONPATH": str(Path(tinyproto.__file__).parents[1])}  # the package that is imported here
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=folder, env=same, stdout=pipe, stderr=pipe, text=True, start_new_session=True)


def finish(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Wait for the end; return the exit status and what it wrote to stderr. A process that hangs is killed."""
    try:
        _, said = process.communicate(timeout=LONGEST)
    except subprocess.TimeoutExpired:
        kill(process)
        return -1, f"did not end in {LONGEST:.0f} s"
    return process.returncode, said


def run(folder: Path, *arguments: str) -> tuple[int, str]:
    """Run `tinyproto` to its end; return the exit status and what it wrote to stderr."""
    return finish(start(folder, *arguments))


def kill(process: subprocess.Popen[str]) -> None:
    """Send SIGKILL to a process and all it started, and wait for its end."""
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def reference(folder: Path, *, rounds: int, seed: int) -> dict[str, bytes]:
    """Run undisturbed; return the files that every other run is compared with."""
    write_config(folder, rounds=rounds, workers=1, seed=seed)
    status, said = run(folder, "run", "trial.yaml")
    assert status == 0, f"the undisturbed run failed: {said}"
    return contents(folder)


def contents(folder: Path) -> dict[str, bytes]:
    """Return the files of a run that repeat byte for byte; empty where they are missing."""
    files = {name: folder / "runs" / "trial" / name for name in COMPARED}
    return {name: file.read_bytes() if file.is_file() else b"" for name, file in files.items()}


def differing(folder: Path, expected: dict[str, bytes]) -> list[str]:
    """Return the names of files that are not byte for byte as expected."""
    return [name for name, data in contents(folder).items() if data != expected[name]]
