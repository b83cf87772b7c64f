"""What a coordinator shows of its events, and what the verbs say where Flower is missing."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from support_cli import called
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
    {"event": "dropped", "connections": 744, "last_from": "192.0.2.7"},
    {"event": "left", "client": 1, "reason": "it is offline"},
    {"event": "concluded", "round": 3, "participants": [0], "accuracy": ACCURACY, "seconds": 61.23,
     "refused": {"1": "no answer"}},
    {"event": "derived", "round": 3, "values": {"global_scale": 0.01}},
    {"event": "concluded", "round": 6, "closing": True, "participants": [], "seconds": 2.0,
     "accuracy": {**ACCURACY, "global": 0.75}},
]  # fmt: skip


def shown(events: list[dict[str, Any]], capsys: pytest.CaptureFixture[str], **output: bool) -> list[str]:
    with FederationProgress(Output(**output), "global") as progress:
        for event in events:
            progress.tell(event)
    return capsys.readouterr().out.splitlines()


def test_a_live_page_is_told_who_is_here() -> None:
    with FederationProgress(Output(quiet=True), "global") as progress:
        assert progress.here([0, 1]) == ["not connected: 0, 1"]
        for event in EVENTS[:5]:
            progress.tell(event)
        assert progress.here(range(3)) == ["2 clients connected: 0, 1", "not connected: 2", "round 3: 2 asked"]


def test_each_event_that_matters_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(EVENTS, capsys) == [
        "resuming after round 2 of 5",
        "1 client ready, 2 needed; missing: 1, 2",
        "client 1 joined",
        "node 9 refused: its client id is none of the federation's",
        "client 1 is silent in round 3: no answer within 60 s",
        "round 3: 1 good answer of 2; it is asked again",
        "dropped 744 connections that did not complete TLS, the last from 192.0.2.7",
        "client 1 left: it is offline",
        "round 3 of 5: 1 client, without client 1, 61.2 s, head 50.0 %",
        "derived μ = 0.01 (round 3)",
        "closing: 2.0 s, global 75.0 %",
    ]


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"present": [], "missing": [0, 1, 2], "needed": 2, "seconds": 120},
         "0 clients ready; waiting for: 0, 1, 2, or for any 2 after 120 s"),
        ({"present": [], "missing": [0, 1], "needed": 2, "seconds": 120}, "0 clients ready; waiting for: 0, 1"),
        ({"present": [0, 1], "missing": [2], "needed": 2, "seconds": 87},
         "2 clients ready, which is enough; waiting 87 s more for: 2"),
        ({"present": [0], "missing": [1, 2], "needed": 2}, "1 client ready, 2 needed; missing: 1, 2"),
    ],
)  # fmt: skip
def test_it_says_whom_it_waits_for_and_how_long(
    facts: dict[str, Any], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert shown([EVENTS[0], {"event": "waiting", **facts}], capsys)[1:] == [words]


def on_a_terminal(events: list[dict[str, Any]]) -> tuple[str, list[str]]:
    """What is written above the bar, and how the bar reads after each event."""
    output = Output()
    output.console = Console(file=StringIO(), force_terminal=True, width=160, highlight=False, color_system=None)
    states = []
    with FederationProgress(output, "global") as progress:
        assert output.has_bars
        for event in events:
            progress.tell(event)
            states.append(progress.bars.tasks[0].fields["state"])
    assert isinstance(output.console.file, StringIO)
    return output.console.file.getvalue(), states


def test_in_a_terminal_each_round_is_a_line_too(capsys: pytest.CaptureFixture[str]) -> None:
    written, _ = on_a_terminal(EVENTS)
    for line in shown(EVENTS, capsys):
        assert f"{line}\n" in written.replace("\r", "\n"), line


def test_the_bar_says_who_is_here_what_is_done_and_what_was_reached_last() -> None:
    joined = [{"event": "joined", "client": client, "node": client} for client in (1, 2)]
    played = {"event": "concluded", "round": 3, "participants": [0, 1, 2], "accuracy": ACCURACY, "seconds": 7.2}
    events = [
        *EVENTS[:2], *joined,
        {"event": "round", "round": 3, "of": 5, "participants": [0, 1, 2], "evaluated": []}, played,
        {"event": "round", "round": 4, "of": 5, "participants": [0, 1, 2], "evaluated": []},
        {"event": "left", "client": 1, "reason": "it is offline"},
        {"event": "refused", "client": 2, "node": 8, "reason": "another node has its client id"},
        {"event": "refused", "client": 2, "round": 4, "reason": "its reply has no frame"},
        {"event": "refused", "client": 2, "node": 2, "reason": "it did not tell its sizes"},
        {"event": "waiting", "present": [], "missing": [0, 1, 2], "needed": 2},
    ]  # fmt: skip
    assert on_a_terminal(events)[1] == [
        "0 present, waiting for clients",
        "1 present, waiting for clients",
        "2 present, waiting for clients",
        "3 present, waiting for clients",
        "3 present, round 3: 3 asked",
        "3 present, round 3: 3 asked, head 50.0 %",
        "3 present, round 4: 3 asked, head 50.0 %",
        *["2 present, round 4: 3 asked, head 50.0 %"] * 3,
        "1 present, round 4: 3 asked, head 50.0 %",
        "0 present, waiting for clients, head 50.0 %",
    ]


def test_verbose_shows_every_event(capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown(EVENTS, capsys, verbose=True)
    assert "answered: client 0, round 3, kind update, bytes 400" in lines


def test_the_end_and_a_failure_are_kept() -> None:
    progress = FederationProgress(Output(quiet=True), "global")
    progress.tell({"event": "failed", "reason": "the disk is full"})
    assert (progress.over, progress.failure) == (False, "the disk is full")
    progress.tell({"event": "finished", "rounds": 5})
    assert progress.over


FLOWER = (
    "serve and join need Flower; in an environment of its own, in the folder of the clone: "
    'pip install --constraint constraints.txt --editable ".[flower]"'
)
MQTT = (
    "serve and join with --transport mqtt need paho-mqtt; in the folder of the clone: "
    'pip install --constraint constraints.txt --editable ".[mqtt]"'
)
KEYS = MQTT.replace("serve and join with --transport mqtt need paho-mqtt", "serve needs the package cryptography")
JOIN = ["join", "--server", "h:1", "--client-id", "0", "--model", "m", "--data", "."]


@pytest.mark.parametrize(
    ("arguments", "missing", "words"),
    [
        (["serve", "c.yaml"], ("flwr", "paho"), FLOWER),
        (JOIN, ("flwr", "paho"), FLOWER),
        (JOIN, ("flwr",), f"{FLOWER}; or use --transport mqtt"),
        ([*JOIN, "--transport", "mqtt"], ("paho",), MQTT),
        (["serve", "c.yaml", "--broker", "h:1"], ("paho",), MQTT),
        (["serve", "--init", "keys", "--clients", "2"], ("cryptography",), KEYS),
    ],
)
def test_without_the_extra_the_verbs_say_what_to_install(
    arguments: list[str], missing: tuple[str, ...], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def find_spec(name: str, package: str | None = None) -> object:
        return None if name in missing else object() if name == "paho" else found(name, package)

    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", find_spec)
    done = called(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr == f"tinyproto: error: {words}\n"


def test_help_loads_neither_flower_nor_torch() -> None:
    code = (
        "import sys\nfrom tinyproto.cli.main import app\n"
        "try:\n    app(['serve', '--help'])\nexcept SystemExit:\n    pass\n"
        "print(sorted({'flwr', 'torch', 'cryptography', 'uvicorn'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
