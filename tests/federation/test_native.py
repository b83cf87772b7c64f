"""Without `tinyproto serve`: `flwr run` of the example app on Flower's simulation engine."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

pytest.importorskip("flwr")
pytest.importorskip("ray", reason="the extra flower-simulation is not installed")

from support_docs import ROOT
from support_flower import small_federation
from support_members import small_values

pytestmark = [pytest.mark.flower, pytest.mark.flower_slow]

BIN = Path(sys.executable).parent
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@pytest.fixture
def home(tmp_path: Path) -> Iterator[dict[str, str]]:
    """The environment of a Flower of its own, whose SuperLink simulates."""
    folder, port = tmp_path / "home", free_port()
    folder.mkdir()
    (folder / "config.toml").write_text(f'[superlink.here]\naddress = "127.0.0.1:{port}"\ninsecure = true\n')
    environment = {**os.environ, **QUIET, "FLWR_HOME": str(folder), "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
    command = [str(BIN / "flower-superlink"), "--insecure", "--simulation", "--host", "127.0.0.1", "--port", str(port)]
    with (tmp_path / "superlink.log").open("wb") as log:
        superlink = subprocess.Popen(command, env=environment, stdout=log, stderr=log, cwd=tmp_path)
    try:
        yield environment
    finally:
        superlink.terminate()
        superlink.wait(30)


def test_the_example_app_ends_in_the_records_of_the_grid_in_this_process(home: dict[str, str], tmp_path: Path) -> None:
    federation = small_federation(tmp_path / "here", small_values(rounds=2))
    federation.play()
    other = small_federation(tmp_path / "there", small_values(rounds=7))  # for its clients' folders
    config, folder = tmp_path / "config.yaml", tmp_path / "run"
    config.write_text(yaml.safe_dump(other.config.resolved()))
    asked = {"folder": folder, "config": config, "clients": tmp_path / "there", "overrides": "train.rounds=2"}
    run_config = " ".join(f'{key}="{value}"' for key, value in asked.items())
    command = [str(BIN / "flwr"), "run", str(ROOT / "examples" / "flower_app"), "here", "--run-config", run_config,
               "--federation-config", "num-supernodes=3 client-resources-num-cpus=1", "--stream"]  # fmt: skip
    for _ in range(20):  # the SuperLink takes a moment to listen
        done = subprocess.run(command, env=home, capture_output=True, text=True, cwd=tmp_path, check=False, timeout=180)
        if done.returncode == 0:
            break
        time.sleep(1)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
    assert (folder / "summary.json").exists(), (tmp_path / "superlink.log").read_text()
    assert [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()] == federation.records()
