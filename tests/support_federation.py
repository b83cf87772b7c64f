"""A federation of real processes: `tinyproto serve` and `tinyproto join`, watched and mistreated."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

from support import same_tensors
from support_cli import environment, jsonl
from tinyproto.config import load_config
from tinyproto.experiment import Experiment
from tinyproto.storage.checkpoint import load_newest
from tinyproto.tracking.run_folder import record_values

MARK = "TINYPROTO_TEST_MARK"
CONFIG = """\
name: trial
data: {{name: digits}}
partition: {{kind: dirichlet, alpha: 0.5, num_clients: 3, seed: 1, min_samples: 20}}
models: [small_cnn_a, small_cnn_b, small_cnn_c]
prototypes: {{dim: 20, cps_dim: 4}}
train: {{rounds: {rounds}, batch_size: 32, device: cpu}}
federation: {{quorum: {quorum}, deadline: {deadline}}}
algorithms: [{{name: tinyproto_ft, server_epochs: 5}}]
"""
NETWORKS = ("small_cnn_a", "small_cnn_b", "small_cnn_c")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def marked(mark: str) -> list[int]:
    """Return every running process with this mark in its environment, which descendants inherit."""
    wanted, found = f"{MARK}={mark}".encode(), []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
            if state != "Z" and wanted in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
    return found


def commands(processes: list[int]) -> list[str]:
    said = []
    for process in processes:
        with contextlib.suppress(OSError):
            said.append(Path(f"/proc/{process}/cmdline").read_bytes().replace(b"\0", b" ").decode())
    return said


def eventually(happened: Callable[[], Any], seconds: float, what: str) -> Any:
    give_up = time.monotonic() + seconds
    while time.monotonic() < give_up:
        if found := happened():
            return found
        time.sleep(0.1)
    raise AssertionError(f"not within {seconds:g} s: {what}")


class Running:
    """A verb of ours in a process, with everything that it starts."""

    def __init__(
        self, folder: Path, name: str, *arguments: str, inside: Sequence[str] = (),
        prepare: Callable[[], None] | None = None,
    ) -> None:  # fmt: skip
        self.mark = uuid4().hex
        self.out = folder / f"{name}-{self.mark[:6]}.out"
        with self.out.open("w") as stream:
            self.process = subprocess.Popen(
                [*inside, sys.executable, "-m", "tinyproto.cli.main", *arguments], cwd=folder, stdout=stream,
                stderr=subprocess.STDOUT, env=environment(**{MARK: self.mark}), start_new_session=True,
                preexec_fn=prepare,
            )  # fmt: skip

    @property
    def said(self) -> str:
        return self.out.read_text()

    def all(self) -> list[int]:
        return marked(self.mark)

    def find(self, program: str) -> list[int]:
        """Return its processes with this in their command line."""
        return [process for process in self.all() if any(program in command for command in commands([process]))]

    def has(self, program: str) -> bool:
        return bool(self.find(program))

    def signal_all(self, number: int) -> None:
        """Signal all its processes at once, like a power cut."""
        for process in self.all():
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, number)

    def kill_all(self) -> None:
        while self.all():
            self.signal_all(signal.SIGKILL)
        self.process.wait(10)

    def wait(self, seconds: float) -> int:
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it still runs after {seconds:g} s; it said:\n{self.said}") from None

    def assert_nothing_left(self, seconds: float = 30) -> None:
        eventually(lambda: not self.all(), seconds, f"nothing is left of {self.out.name}: {commands(self.all())}")


class Federation:
    """A folder with keys and a config; a coordinator; clients."""

    def __init__(self, folder: Path, *, rounds: int, quorum: float, deadline: float, clients: int = 3) -> None:
        self.folder = folder
        self.port = free_port()
        self.config = folder / "trial.yaml"
        self.config.write_text(CONFIG.format(rounds=rounds, quorum=quorum, deadline=deadline))
        self.run_folder = folder / "runs" / "trial"
        self.started: list[Running] = []
        self.make_keys(clients)

    def make_keys(self, clients: int) -> None:
        made = Running(self.folder, "init", "serve", "--init", "keys", "--clients", str(clients))
        assert made.wait(60) == 0, made.said

    @property
    def server(self) -> str:
        return f"localhost:{self.port}"

    def serve(self, *arguments: str) -> Running:
        listen = f"127.0.0.1:{self.port}"
        target = self.run_folder if "--resume" in arguments else self.config
        return self._start("serve", "serve", str(target), "--listen", listen, *arguments)

    def join(
        self, client: int, *arguments: str, server: str | None = None, prepare: Callable[[], None] | None = None
    ) -> Running:
        return self._start(
            f"join{client}", "join", "--server", server or self.server, "--client-id", str(client),
            "--model", NETWORKS[client], "--share", str(self.config), *arguments, prepare=prepare,
        )  # fmt: skip

    def _start(self, name: str, *arguments: str, prepare: Callable[[], None] | None = None) -> Running:
        started = Running(self.folder, name, *arguments, prepare=prepare)
        self.started.append(started)
        return started

    def client_folder(self, client: int) -> Path:
        return self.folder / "clients" / f"client-{client}"

    def events(self, event: str, **facts: Any) -> list[Mapping[str, Any]]:
        """Return the coordinator's events so far."""
        file = self.run_folder / "progress.jsonl"
        lines = jsonl(file) if file.exists() else []
        return [line for line in lines if line["event"] == event and facts.items() <= line.items()]

    def wait_for(self, event: str, seconds: float, **facts: Any) -> None:
        eventually(lambda: self.events(event, **facts), seconds, f"{event} {facts}\n{self.tail()}")

    def tail(self) -> str:
        return "\n".join(f"--- {running.out.name}\n{running.said[-2000:]}" for running in self.started)

    def records(self) -> list[dict[str, Any]]:
        return jsonl(self.run_folder / "rounds.jsonl")

    def result(self) -> dict[str, Any]:
        (found,) = json.loads((self.run_folder / "summary.json").read_text())["results"]
        return dict(found)

    def clean_up(self) -> None:
        for running in self.started:
            running.kill_all()


def assert_equal_to_the_simulation(federation: Federation) -> None:
    """Bit for bit: the server's state, and every round's accuracies, losses and bytes."""
    experiment = Experiment(load_config(federation.config, ["robust.defence=guard"]))  # `auto` of a federation
    (cell,) = experiment.cells
    simulation = experiment.simulation(cell, experiment.loopback(cell))
    played = [{**cell.identity, **record_values(round_.record)} for round_ in simulation.rounds()]
    assert [less_hellos(record) for record in federation.records()] == [less_hellos(record) for record in played]
    checkpoint = load_newest(federation.run_folder / "checkpoint", federation.run_folder / "clients")
    assert checkpoint is not None
    assert checkpoint.position.next_round == experiment.config.model.train.rounds + 1
    assert same_tensors(simulation.server.state, dict(checkpoint.server))


def less_hellos(record: dict[str, Any]) -> dict[str, Any]:
    """Remove hello traffic: a client that comes back is greeted again."""
    return {**record, "traffic": {purpose: ways for purpose, ways in record["traffic"].items() if purpose != "hello"}}
