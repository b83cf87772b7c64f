"""`python -m benchmarks scale`: the cost of a round as the number of clients grows.

Measure seconds per participant, peak memory, and bytes to and from disk.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.table import Table

from benchmarks.scale_case import Case
from tinyproto.cli.terminal import Output, plain_table
from tinyproto.errors import ConfigError, TinyProtoError
from tinyproto.memory import client_budget
from tinyproto.models.build import PUBLISHED
from tinyproto.report.words import counted, number, size
from tinyproto.tracking.environment import environment

ROOT = Path(__file__).parents[1]
PAPER = tuple(PUBLISHED)[:4]
COMPARED = (
    "seconds_per_participant", "client_seconds_per_participant", "processor_seconds_per_participant",
    "peak_memory_bytes",
)  # fmt: skip


@dataclass(frozen=True)
class ScaleSettings:
    """The sizes to compare."""

    clients: tuple[int, ...] = (200, 2000)
    participation: float = 0.05
    participants: int | None = None  # the same at all sizes; None: the share of the smallest
    rounds: int = 3
    samples: int = 30
    algorithm: str = "tinyproto_ft"
    networks: tuple[str, ...] = PAPER
    image_size: int = 32
    memory: str = "200MB"
    closing: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.participation <= 1:
            raise ConfigError(f"--participation: expected a share above 0 and up to 1, not {self.participation}")
        if self.same > min(self.clients):
            raise ConfigError(
                f"--participants: {self.same} is more than the {min(self.clients)} clients of the smallest size"
            )
        try:
            client_budget(self.memory, torch.device("cpu"))
        except ValueError as error:
            raise ConfigError(f"--memory: {error}") from error

    @property
    def same(self) -> int:
        """Return the number of participants for the cases with the same number at all sizes."""
        return self.share(min(self.clients)) if self.participants is None else self.participants

    def share(self, clients: int) -> int:
        """Return the number of participants for the cases with the same share at all sizes."""
        return max(1, round(self.participation * clients))

    @property
    def cases(self) -> list[Case]:
        """Return the cases: each size with the same number of participants and with the same share of them."""
        wanted = [(clients, self.same) for clients in self.clients]
        wanted += [(clients, self.share(clients)) for clients in self.clients]
        return [self._case(clients, participants) for clients, participants in dict.fromkeys(wanted)]

    def _case(self, clients: int, participants: int) -> Case:
        return Case(
            clients=clients,
            participants=participants,
            rounds=self.rounds,
            samples=self.samples,
            pool=max(self.clients) * self.samples,
            algorithm=self.algorithm,
            networks=self.networks,
            image_size=self.image_size,
            memory=self.memory,
            closing=self.closing,
        )


def measure_scale(settings: ScaleSettings, told: Callable[[Mapping[str, Any]], None]) -> dict[str, Any]:
    """Measure each case in a process of its own, in sequence; call `told` with each result."""
    results = []
    for case in settings.cases:
        results.append({"clients": case.clients, "participants": case.participants, **_apart(case)})
        told(results[-1])
    return {
        "settings": asdict(settings),
        "environment": environment("cpu", workers=1),
        "cases": results,
        "ratios": ratios(settings, results),
    }


def ratios(settings: ScaleSettings, results: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Divide the largest size by the smallest, for the same number of participants and for the same share."""
    found = {(result["clients"], result["participants"]): result for result in results}
    small, large = min(settings.clients), max(settings.clients)
    compared = {
        "same_participants": (found[large, settings.same], found[small, settings.same]),
        "same_share": (found[large, settings.share(large)], found[small, settings.share(small)]),
    }
    return {
        name: {key: over[key] / under[key] for key in COMPARED if key in over}
        for name, (over, under) in compared.items()
    }


def _apart(case: Case) -> dict[str, Any]:
    """Measure a case in a new process, so that cases do not share memory; remove the files it leaves."""
    with tempfile.TemporaryDirectory(prefix="tinyproto-benchmark-") as folder:
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.scale_case"],
            cwd=ROOT,
            input=json.dumps({**asdict(case), "folder": folder}),
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or ["no error message"]
        raise TinyProtoError(f"measuring {case.clients} clients failed with status {done.returncode}: {last[0]}")
    result: dict[str, Any] = json.loads(done.stdout)
    if "error" in result:
        raise TinyProtoError(result["error"])
    return result


PHASES = {"train": "train", "prototypes": "proto", "evaluate": "eval", "clients": "store", "server": "server"}
"""The phases of a round, and the names of their columns."""


def sizes(text: str) -> tuple[int, ...]:
    """Parse numbers of clients, such as `200,2000`; return them sorted, each once."""
    pieces = [piece.strip() for piece in text.split(",")]
    if not all(piece.isdecimal() and int(piece) for piece in pieces):
        raise ConfigError(f"--clients: expected whole numbers from 1, separated by commas, not {text!r}")
    return tuple(sorted({int(piece) for piece in pieces}))


def show_scale(settings: ScaleSettings, output: Output) -> None:
    """Measure and print."""
    output.say(
        f"{settings.algorithm} on {', '.join(settings.networks)}; about {settings.samples} samples a client, "
        f"{counted(settings.rounds, 'round')}, {settings.memory} for clients"
    )
    measured = measure_scale(settings, lambda result: output.say(_line(result)))
    output.console.print(_table(measured["cases"]))
    for sentence in _conclusions(settings, measured["ratios"]):
        output.say(f"• {sentence}")
    output.result(measured)


def _line(result: Mapping[str, Any]) -> str:
    closing = result.get("closing")
    end = f"; closing exchange {closing['seconds']:.0f} s" if closing else ""
    return (
        f"{number(result['clients'])} clients, {result['participants']} a round: "
        f"{result['seconds_per_round']['total']:.2f} s a round{end}"
    )


def _table(cases: Sequence[Mapping[str, Any]]) -> Table:
    table = plain_table()
    names = ("clients", "in a round", "s/round", *PHASES.values(), "s each", "peak", "all", "written", "read")
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    for case in cases:
        seconds = case["seconds_per_round"]
        table.add_row(
            number(case["clients"]),
            str(case["participants"]),
            f"{seconds['total']:.2f}",
            *(f"{seconds[phase]:.2f}" for phase in PHASES),
            f"{case['client_seconds_per_participant']:.2f}",
            size(case["peak_memory_bytes"]),
            size(case["all_clients_bytes"]),
            size(case["bytes_written"]),
            size(case["bytes_read_back"]),
        )
    table.caption = (
        "Seconds: medians over all rounds but the first. Store: building clients, writing and reading their states. "
        "S each: per participant, without the server. Peak: memory of the process, images included; all: memory of "
        "all clients at once. Written, read: bytes of clients' states on disk, over all rounds."
    )
    return table


def _conclusions(settings: ScaleSettings, ratios: Mapping[str, Mapping[str, float]]) -> list[str]:
    small, large = (number(bound(settings.clients)) for bound in (min, max))
    kinds = {
        "same_participants": f"with {counted(settings.same, 'participant')} a round in both",
        "same_share": f"with {100 * settings.participation:g} % of the clients in both",
    }
    return [
        f"{large} clients instead of {small}, {words}: "
        f"{ratios[kind]['client_seconds_per_participant']:.2f} times the seconds per participant, "
        f"{ratios[kind]['seconds_per_participant']:.2f} times with the server's; "
        f"{ratios[kind]['peak_memory_bytes']:.2f} times the memory."
        for kind, words in kinds.items()
    ]
