"""The live page without a browser: who may read it, what it says, and when the command ends."""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support_cli import CONFIG, NETS, called
from support_report import Made
from tinyproto.cli.live import live_page
from tinyproto.cli.live.records import RunRecords
from tinyproto.cli.live.server import LiveServer
from tinyproto.cli.live.state import COLUMNS, LiveState
from tinyproto.cli.terminal import Output
from tinyproto.config import Config, parse_config
from tinyproto.errors import ConfigError, Interrupted


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LiveServer]:
    made = LiveServer("<p>the page</p>", lambda: {"done": 1})
    yield made
    made.shutdown()
    made.server_close()


def asked(server: LiveServer, path: str, *, method: str = "GET", host: str | None = None) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=10)
    connection.putrequest(method, path, skip_host=True)
    connection.putheader("Host", host or f"127.0.0.1:{server.server_port}")
    connection.endheaders()
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


# Who may read it


def test_the_page_and_the_state_are_behind_the_token(server: LiveServer) -> None:
    assert asked(server, f"/{server.token}/") == (200, "<p>the page</p>")
    status, content = asked(server, f"/{server.token}/state")
    assert (status, json.loads(content)["done"]) == (200, 1)
    assert server.address == f"http://127.0.0.1:{server.server_port}/{server.token}/"


@pytest.mark.parametrize(
    "path",
    ["/", "/favicon.ico", "/state", "//state", "/wrong/", "/{token}", "/{token}x/", "/{token}/../", "/{token}/a/b"],
)
def test_any_other_path_is_not_found(server: LiveServer, path: str) -> None:
    assert asked(server, path.format(token=server.token)) == (404, "")


@pytest.mark.parametrize("host", ["evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1:1", "0.0.0.0:{port}"])
def test_another_host_is_refused_even_with_the_token(server: LiveServer, host: str) -> None:
    assert asked(server, f"/{server.token}/", host=host.format(port=server.server_port)) == (403, "")


def test_localhost_is_this_machine_too(server: LiveServer) -> None:
    assert asked(server, f"/{server.token}/", host=f"localhost:{server.server_port}")[0] == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH", "HEAD"])
def test_nothing_but_reading_is_allowed(server: LiveServer, method: str) -> None:
    assert asked(server, f"/{server.token}/", method=method)[0] == 403


def test_only_this_machine_can_connect(server: LiveServer) -> None:
    assert server.server_address[0] == "127.0.0.1"
    other = socket.gethostbyname(socket.gethostname())
    if not other.startswith("127."):
        with pytest.raises(OSError, match="refused"):
            socket.create_connection((other, server.server_port), timeout=2)


def test_the_report_is_served_only_when_there_is_one(server: LiveServer, tmp_path: Path) -> None:
    assert asked(server, f"/{server.token}/report")[0] == 404
    (tmp_path / "report.html").write_text("all of it")
    server.end("done", tmp_path / "report.html")
    state = json.loads(asked(server, f"/{server.token}/state")[1])
    assert (state["ended"], state["report"], state["words"]) == (True, True, "done")
    assert not server.delivered.is_set()
    assert asked(server, f"/{server.token}/report") == (200, "all of it")
    assert server.delivered.wait(5)


def test_a_request_for_a_newer_state_waits_until_the_run_ends(server: LiveServer) -> None:
    seen = json.loads(asked(server, f"/{server.token}/state")[1])["version"]
    threading.Timer(0.7, lambda: server.end("over", None)).start()
    later = json.loads(asked(server, f"/{server.token}/state?seen={seen}")[1])
    assert later["words"] == "over"
    assert later["version"] != seen


# What it says


def config_of(made: Made) -> Config:
    values = made.resolved()
    return parse_config({**values, "data": {}, "models": ["small_cnn_a"]})


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def split(folder: Path, into: Path, name: str, lines: int) -> list[str]:
    """Move the records of a run folder away; write the first ones into a cell's folder and return the others."""
    found = (folder / "rounds.jsonl").read_text().splitlines(keepends=True)
    (folder / "rounds.jsonl").unlink()
    (into / "cells" / name).mkdir(parents=True)
    (into / "cells" / name / "rounds.jsonl").write_text("".join(found[:lines]))
    return found[lines:]


def test_it_follows_cells_in_progress_and_then_the_run(tmp_path: Path) -> None:
    made = Made(algorithms=("local", "fedproto"), rounds=3)
    folder = made.write(tmp_path / "run")
    rest = split(folder, folder, "001-local-0", 2)
    clock = Clock()
    state = LiveState(config_of(made), folder, new=False, clock=clock)
    first = state.read()
    assert (first["done"], first["of"], first["left"]) == (2, 6, None)
    assert dict(zip(COLUMNS, first["rows"][0], strict=True)) == {
        "algorithm": "Local", "rounds": "2 of 3", "head": "63.3", "global": "–", "local": "63.3", "payload": "0 B",
        "wire": "120 B",
    }  # fmt: skip
    assert first["here"] == ["Local, seed 0: round 2 of 3 with 3 clients"]
    assert "<svg" in first["figure"]
    for step, line in enumerate(rest, 1):
        clock.now = 10.0 * step
        with (folder / "rounds.jsonl").open("a") as file:
            file.write(line)
        latest = state.read()
    assert (latest["done"], latest["left"], latest["here"]) == (6, 0.0, [])
    assert latest["rows"][1][1:6] == ["3 of 3", "100.0", "100.0", "100.0", "1.5 kB"]


def test_clients_that_dropped_out_or_were_late_are_counted(tmp_path: Path) -> None:
    made = Made(algorithms=("local",), rounds=3)
    folder = made.write(tmp_path / "run")
    record = json.loads((folder / "rounds.jsonl").read_text().splitlines()[0])
    (folder / "rounds.jsonl").write_text(json.dumps({**record, "dropped": [1, 2], "late": [0]}) + "\n")
    state = LiveState(config_of(made), folder, new=False).read()
    assert state["here"] == ["Local, seed 0: round 1 of 3 with 3 clients, 2 dropped, 1 late"]


def test_the_time_left_comes_from_the_rounds_seen(tmp_path: Path) -> None:
    made = Made(algorithms=("local",), rounds=11)
    folder = made.write(tmp_path / "run")
    rest = split(folder, folder, "001-local-0", 1)
    clock = Clock()
    state = LiveState(config_of(made), folder, new=False, clock=clock)
    lefts = []
    for line in rest[:3]:
        lefts.append(state.read()["left"])
        clock.now += 5.0
        with (folder / "cells" / "001-local-0" / "rounds.jsonl").open("a") as file:
            file.write(line)
    assert lefts == [None, None, 5.0 * 8]


def test_half_a_line_waits_and_a_damaged_one_is_skipped(tmp_path: Path) -> None:
    folder = Made(algorithms=("local",), rounds=2).write(tmp_path / "run")
    content = (folder / "rounds.jsonl").read_bytes()
    first, second, _ = content.split(b"\n", 2)
    (folder / "rounds.jsonl").write_bytes(b"{}\nno json\n" + first + b"\n" + second[:20])
    records = RunRecords(folder, new=False)
    assert records.read()
    assert list(records.cells["local", 0]) == [1]
    with (folder / "rounds.jsonl").open("ab") as file:
        file.write(second[20:] + b"\n")
    assert records.read()
    assert list(records.cells["local", 0]) == [1, 2]
    assert not records.read()


def test_a_run_about_to_be_replaced_is_not_shown(tmp_path: Path) -> None:
    made = Made(algorithms=("local",), rounds=2)
    folder = made.write(tmp_path / "run")
    records = RunRecords(folder, new=True)
    assert not records.read()
    shutil.rmtree(folder)
    assert not records.read()
    made.write(folder)
    os.utime(folder / "config.yaml", (1, 1))
    assert records.read()


def test_a_run_that_was_cut_back_to_a_checkpoint_is_read_again(tmp_path: Path) -> None:
    folder = Made(algorithms=("local",), rounds=4).write(tmp_path / "run")
    records = RunRecords(folder, new=False)
    records.read()
    lines = (folder / "rounds.jsonl").read_bytes().splitlines(keepends=True)
    (folder / "rounds.jsonl").write_bytes(b"".join(lines[:2]))
    assert records.read()
    assert list(records.cells["local", 0]) == [1, 2]


# The command


def told(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().out


def test_the_address_is_told_and_the_server_ends_with_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = Made()
    with live_page(True, config_of(made), tmp_path / "run", Output(), new=True):
        pass
    address = re.search(r"http://127\.0\.0\.1:(\d+)/[\w-]{22}/", told(capsys))
    assert address is not None
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", int(address[1])), timeout=2)


def follow_to_the_end(address: str, heard: list[Any]) -> None:
    """Ask for newer states, as a page does, until the run has ended."""
    place, token = address.removeprefix("http://").strip("/").split("/")
    while not heard or not heard[-1]["ended"]:
        connection = http.client.HTTPConnection(place, timeout=10)
        connection.request("GET", f"/{token}/state?seen={heard[-1]['version'] if heard else ''}")
        heard.append(json.loads(connection.getresponse().read()))


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (Interrupted("resume with: x"), "The run was interrupted; resume with: x"),
        (KeyboardInterrupt(), "The run was interrupted"),
        (ConfigError("no disk"), "The run ended with an error: no disk"),
    ],
)
def test_a_page_learns_how_a_run_ended(
    error: BaseException, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    heard: list[Any] = []

    def run() -> None:
        (address,) = re.findall(r"http://\S+", told(capsys))
        threading.Thread(target=follow_to_the_end, args=(address, heard), daemon=True).start()
        while not heard:
            time.sleep(0.05)
        raise error

    with pytest.raises(type(error)), live_page(True, config_of(Made()), tmp_path, Output(), new=True):
        run()
    while not heard[-1]["ended"]:
        time.sleep(0.05)
    assert heard[-1]["words"] == words
    assert not heard[-1]["report"]


def test_quiet_would_hide_the_address(tmp_path: Path) -> None:
    (tmp_path / "trial.yaml").write_text(CONFIG)
    (tmp_path / "nets.py").write_text(NETS)
    done = called("run", "trial.yaml", "--live", "--quiet", cwd=tmp_path)
    assert done.returncode == 2
    assert "--live prints the address of its page, which --quiet hides" in done.stderr
    assert not (tmp_path / "runs").exists()


def test_a_run_and_its_resumption_can_be_followed(tmp_path: Path) -> None:
    (tmp_path / "trial.yaml").write_text(CONFIG)
    (tmp_path / "nets.py").write_text(NETS)
    for arguments in (("run", "trial.yaml"), ("resume", "runs/trial")):
        done = called(*arguments, "--live", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert "live page, for this machine only: http://127.0.0.1:" in done.stdout
