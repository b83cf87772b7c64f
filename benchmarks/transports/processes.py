"""Run `tinyproto` in processes of its own, watch what they start, and read what a coordinator writes."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, Self

import psutil

import tinyproto
from benchmarks.transports import ROOT
from tinyproto.errors import FederationError
from tinyproto.federation.journal import Follower

END_SECONDS = 30.0


class Command:
    """A Python module with arguments in a process of its own; what it says goes to a file."""

    def __init__(self, folder: Path, name: str, module: str, *arguments: str, given: str | None = None) -> None:
        self.name = name
        self.out = folder / f"{name}.out"
        same = os.pathsep.join((str(Path(tinyproto.__file__).parents[1]), str(ROOT)))
        with self.out.open("w") as stream:
            self.process = subprocess.Popen(
                [sys.executable, "-m", module, *arguments], cwd=folder, env={**os.environ, "PYTHONPATH": same},
                stdin=subprocess.DEVNULL if given is None else subprocess.PIPE, stdout=stream,
                stderr=subprocess.STDOUT, text=True, start_new_session=True,
            )  # fmt: skip
        if self.process.stdin is not None and given is not None:
            self.process.stdin.write(given + "\n")
            self.process.stdin.flush()

    def family(self) -> list[psutil.Process]:
        """Return its process and all that it started."""
        with contextlib.suppress(psutil.NoSuchProcess):
            first = psutil.Process(self.process.pid)
            return [first, *first.children(recursive=True)]
        return []

    def child(self, word: str) -> psutil.Process:
        """Return the process that it started with this word in the command line, without the leash it runs on."""
        for process in self.family():
            with contextlib.suppress(psutil.NoSuchProcess):
                line = process.cmdline()
                if any(word in part for part in line) and not any("leash" in part for part in line):
                    return process
        raise FederationError(f"{self.name} has started no {word}; it said: {self.said()}")

    def said(self) -> str:
        """Return the end of what it wrote."""
        return self.out.read_text(encoding="utf-8", errors="replace").strip()[-500:]

    def check(self) -> None:
        """Raise FederationError if it has failed."""
        if self.process.poll():
            raise FederationError(f"{self.name} ended with status {self.process.returncode}; it said: {self.said()}")

    def finish(self, seconds: float) -> None:
        """Wait for its end; raise FederationError if it fails or takes longer."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(seconds)
        self.check()
        if self.process.returncode is None:
            raise FederationError(f"{self.name} still runs after {seconds:.0f} s; it said: {self.said()}")

    def stop(self) -> None:
        """End it with all that it started."""
        family = self.family()
        if self.process.poll() is None:
            self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(END_SECONDS)
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.wait()


class Deployment:
    """The processes of one federation in a folder; all end with the `with` block."""

    def __init__(self, folder: Path, port: int, run: str) -> None:
        self.folder = folder
        self.port = port
        self.run_folder = folder / "runs" / run
        self.commands: list[Command] = []
        self._events: list[dict[str, Any]] = []
        self._follower = Follower(self.run_folder / "progress.jsonl")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for command in reversed(self.commands):
            command.stop()

    def start(self, name: str, module: str, *arguments: str, given: str | None = None) -> Command:
        """Start a module."""
        self.commands.append(Command(self.folder, name, module, *arguments, given=given))
        return self.commands[-1]

    def serve(self, config: str, transport: str, *overrides: str) -> Command:
        """Start the coordinator, with the keys in this folder."""
        place = f"127.0.0.1:{self.port}"
        options = ("--listen", place, "--keys", "keys", "--transport", transport)
        return self.start("serve", "tinyproto", "serve", config, *overrides, *options)

    def join(self, client: int, transport: str, port: int, share: str, model: str) -> Command:
        """Start a client that reaches the coordinator at this port."""
        return self.start(
            f"join-{client}", "tinyproto", "join", "--server", f"localhost:{port}", "--transport", transport,
            "--client-id", str(client), "--keys", f"keys/client-{client}", "--share", share, "--model", model,
        )  # fmt: skip

    def events(self) -> list[dict[str, Any]]:
        """Return the coordinator's events so far."""
        self._events += self._follower.new()
        return self._events

    def wait_for(self, event: str, seconds: float, **facts: Any) -> dict[str, Any]:
        """Wait for an event and return it; raise FederationError if a process fails or it takes longer."""

        def found() -> Iterator[dict[str, Any]]:
            return (said for said in self.events() if said["event"] == event and facts.items() <= said.items())

        self.wait_until(lambda: any(True for _ in found()), seconds, f"{event} {facts or ''}")
        return next(found())

    def wait_until(self, happened: Callable[[], bool], seconds: float, what: str) -> None:
        """Wait until something has happened; raise FederationError if a process fails or it takes longer."""
        give_up = time.monotonic() + seconds
        while not happened():
            for command in self.commands:
                command.check()
            if time.monotonic() > give_up:
                raise FederationError(f"not within {seconds:.0f} s: {what}; `serve` said: {self.commands[0].said()}")
            time.sleep(0.1)

    def seconds_of_rounds(self) -> list[float]:
        """Return the seconds of each round but the first, without the closing exchange."""
        return round_seconds(self.run_folder)


def round_seconds(run: Path) -> list[float]:
    """Return the seconds of each round of a run but the first, without the closing exchange."""
    return [line["seconds"]["total"] for line in lines_of(run / "timings.jsonl")[1:-1]]


def lines_of(file: Path) -> list[dict[str, Any]]:
    """Return the complete lines of a file of JSON objects; none if it is missing."""
    if not file.is_file():
        return []
    complete = file.read_text(encoding="utf-8").rpartition("\n")[0]
    return [json.loads(line) for line in complete.splitlines() if line]


def time_of(event: dict[str, Any]) -> float:
    """Return when an event was written, in seconds since the epoch."""
    return datetime.fromisoformat(event["time"]).timestamp()


def proportional_bytes(processes: list[psutil.Process]) -> int:
    """Return the memory of processes together, where pages that several share count once (PSS)."""
    total = 0
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            total += process.memory_full_info().pss
    return total
