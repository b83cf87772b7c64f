"""What a coordinator shows of its events, and what the verbs say where Flower is missing."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support_cli import command
from tinyproto.cli.federation_progress import FederationProgress
from tinyproto.cli.terminal import Output

ACCURACY = {"head": 0.5, "global": None, "local": None}
EVENTS: list[dict[str, Any]] = [
    {"event": "started", "algorithm": "tinyproto_ft", "clients": 3, "rounds": 5, "done": 2},
    {"event": "waiting", "present": [0], "missing": [1, 2], "needed": 2},
    {"event": "joined", "client": 1, "node": 7},
    {"event": "refused", "node": 9, "reason": "its client id is none of the federation's"},
    {"event": "round", "round": 3, "of": 5, "participants": [0, 1], "evaluated": [0, 1]},
    {"event": "answered", "client": 0, "round": 3, "kind": "update", "bytes": 400},
    {"event": "silent", "client": 1, "round": 3, "reason": "no answer within 60 s"},
    {"event": "again", "round": 3, "reason": "round 3: 1 good answer of 2; it is asked again"},
    {"event": "left", "client": 1, "reason": "its node is offline"},
    {"event": "concluded", "round": 3, "participants": [0], "accuracy": ACCURACY, "seconds": 61.23,
     "refused": {"1": "no answer"}},
    {"event": "concluded", "round": 6, "closing": True, "participants": [], "seconds": 2.0,
     "accuracy": {**ACCURACY, "global": 0.75}},
]  # fmt: skip


def shown(events: list[dict[str, Any]], capsys: pytest.CaptureFixture[str], **output: bool) -> list[str]:
    with FederationProgress(Output(**output), "global") as progress:
        for event in events:
            progress.tell(event)
    return capsys.readouterr().out.splitlines()


def test_each_event_that_matters_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(EVENTS, capsys) == [
        "going on after round 2 of 5",
        "1 client here, 2 needed; missing: 1, 2",
        "client 1 is here",
        "node 9 refused: its client id is none of the federation's",
        "client 1 is silent in round 3: no answer within 60 s",
        "round 3: 1 good answer of 2; it is asked again",
        "client 1 left: its node is offline",
        "round 3 of 5: 1 client, without 1, 61.2 s, head 50.0 %",
        "closing: 2.0 s, global 75.0 %",
    ]


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"present": [], "missing": [0, 1, 2], "needed": 2, "seconds": 120},
         "0 clients here; waiting for: 0, 1, 2, or for any 2 after 120 s"),
        ({"present": [], "missing": [0, 1], "needed": 2, "seconds": 120}, "0 clients here; waiting for: 0, 1"),
        ({"present": [0, 1], "missing": [2], "needed": 2, "seconds": 87},
         "2 clients here, which is enough; waiting 87 s more for: 2"),
        ({"present": [0], "missing": [1, 2], "needed": 2}, "1 client here, 2 needed; missing: 1, 2"),
    ],
)  # fmt: skip
def test_it_says_whom_it_waits_for_and_how_long(
    facts: dict[str, Any], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert shown([EVENTS[0], {"event": "waiting", **facts}], capsys)[1:] == [words]


def test_verbose_shows_every_event(capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown(EVENTS, capsys, verbose=True)
    assert "answered: client 0, round 3, kind update, bytes 400" in lines


def test_the_end_and_a_failure_are_kept() -> None:
    progress = FederationProgress(Output(quiet=True), "global")
    progress.tell({"event": "failed", "reason": "the disk is full"})
    assert (progress.over, progress.failure) == (False, "the disk is full")
    progress.tell({"event": "finished", "rounds": 5})
    assert progress.over


@pytest.mark.skipif(importlib.util.find_spec("flwr") is not None, reason="Flower is installed")
@pytest.mark.parametrize(
    "arguments",
    [["serve", "c.yaml"], ["serve", "--init", "keys", "--clients", "2"],
     ["join", "--server", "h:1", "--client-id", "0", "--model", "m", "--data", "."]],
)  # fmt: skip
def test_without_the_extra_the_verbs_say_what_to_install(arguments: list[str], tmp_path: Path) -> None:
    done = command(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr == (
        "tinyproto: error: serve and join need Flower; install it with: pip install 'tinyproto[flower]'\n"
    )


def test_help_loads_neither_flower_nor_torch() -> None:
    code = (
        "import sys\nfrom tinyproto.cli.main import app\n"
        "try:\n    app(['serve', '--help'])\nexcept SystemExit:\n    pass\n"
        "print(sorted({'flwr', 'torch', 'cryptography', 'uvicorn'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
