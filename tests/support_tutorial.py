"""A reader who types the blocks of a page into a shell, in the folder of a clone."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from uuid import uuid4

from support_cli import environment
from support_docs import ROOT
from support_federation import MARK, marked


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

    def assert_three_clients_did_five_rounds(self, said: str, run: str = "federation") -> None:
        assert "round 5 of 5: 3 clients" in said
        assert said.count("the federation is over after 5 rounds") == 3
        assert self.events(run)[-1] == "finished"
        assert not marked(self.mark)

    def close(self) -> None:
        while found := marked(self.mark):
            for process in found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
