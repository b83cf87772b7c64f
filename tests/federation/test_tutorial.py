"""The commands of the README and of the pages on a federation, typed one block after another in a fresh folder."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

pytest.importorskip("flwr")

from support_cli import environment
from support_docs import ROOT, blocks_of
from support_federation import MARK, eventually, marked

pytestmark = [pytest.mark.flower, pytest.mark.flower_slow]

PAGES = (ROOT / "docs" / "start" / "federation.md", ROOT / "docs" / "how-to" / "deploy.md")
BLOCKS = [block for page in PAGES for block in blocks_of(page)]
COMMANDS = [block.text for block in BLOCKS if block.info == "bash flower"]


def block(holding: str) -> str:
    (found,) = [text for text in COMMANDS if holding in text]
    return found


class Reader:
    """A clone's folder, in which blocks are typed; nothing that they start outlives it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.mark = uuid4().hex
        for name in ("configs", "examples"):
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))

    def type(self, *blocks: str, seconds: float = 300) -> str:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        output = self.folder / "typed.out"
        with output.open("w") as stream:
            done = subprocess.run(
                ["bash", "-c", "\n".join(["set -euo pipefail", *blocks])], cwd=self.folder, stdout=stream,
                stderr=subprocess.STDOUT, env=environment(PATH=path, **{MARK: self.mark}), timeout=seconds, check=False,
            )  # fmt: skip
        said = output.read_text()
        assert done.returncode == 0, said
        return said

    def events(self, run: str) -> list[str]:
        lines = (self.folder / "runs" / run / "progress.jsonl").read_text().splitlines()
        return [json.loads(line)["event"] for line in lines]

    def close(self) -> None:
        while found := marked(self.mark):
            for process in found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    made = Reader(tmp_path)
    yield made
    made.close()


def test_three_clients_on_one_machine(reader: Reader) -> None:
    said = reader.type(block("--init keys --clients 3\n"))
    assert said in [shown.text for shown in BLOCKS if shown.info == "text"]
    said = reader.type(block("--client-id 2 --share configs/federation.yaml"))
    assert "round 5 of 5: 3 clients" in said
    assert said.count("the federation is over after 5 rounds") == 3
    said = reader.type(block("ls runs/federation"))
    assert "summary.json" in said
    assert not marked(reader.mark)


def test_the_readme_s_federation(reader: Reader) -> None:
    said = reader.type(*(block.text for block in blocks_of(ROOT / "README.md") if block.info == "bash flower"))
    assert "round 5 of 5: 3 clients" in said
    assert said.count("the federation is over after 5 rounds") == 3
    assert reader.events("federation")[-1] == "finished"
    assert not marked(reader.mark)


def test_every_block_of_the_pages_is_typed_somewhere() -> None:
    machines = (ROOT / "tests" / "federation" / "test_machines.py").read_text()
    assert "test_the_commands_of_the_tutorial_federate_four_machines" in machines
    assert len(COMMANDS) == 9


def simulated() -> bool:
    return importlib.util.find_spec("ray") is not None


@pytest.mark.skipif(not simulated(), reason="Ray is not installed; the extra flower-simulation brings it")
def test_flower_s_own_way_simulated_on_ray(reader: Reader) -> None:
    reader.type(block("export FLWR_HOME"), block("runs/simulated"))
    assert reader.events("simulated")[-1] == "finished"
    assert reader.events("simulated").count("concluded") == 3


def test_flower_s_own_way_deployed(reader: Reader) -> None:
    reader.type(block("export FLWR_HOME"), block("runs/deployed"))
    assert reader.events("deployed")[-1] == "finished"
    eventually(lambda: not marked(reader.mark), 30, "the last line ends what the others started")
    reader.type("tinyproto report runs/deployed")
