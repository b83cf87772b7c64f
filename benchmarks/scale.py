"""What a round costs as the number of clients grows: seconds per participant, peak memory, bytes to and from disk."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
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

PAPER = tuple(PUBLISHED)[:4]
COMPARED = (
    "seconds_per_participant", "client_seconds_per_participant", "processor_seconds_per_participant",
    "peak_memory_bytes",
)  # fmt: skip


@dataclass(frozen=True)
class ScaleSettings:
    """What is to be compared."""

    clients: tuple[int, ...] = (200, 2000)
    participation: float = 0.05
    participants: int | None = None  # the number that is the same at all sizes; None: the share of the smallest
    rounds: int = 3
    samples: int = 30
    algorithm: str = "tinyproto_ft"
    networks: tuple[str, ...] = PAPER
    image_size: int = 32
    memory: str = "200MB"
    closing: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.participation <= 1:
            raise ConfigError(f"--participation: a share above 0 and up to 1 is needed, not {self.participation}")
        if self.same > min(self.clients):
            raise ConfigError(
                f"--participants: {self.same} cannot take part, the smallest size has {min(self.clients)}"
            )
        client_budget(self.memory, torch.device("cpu"))  # refuses what is no amount

    @property
    def same(self) -> int:
        """How many take part where the number is the same at all sizes."""
        return self.share(min(self.clients)) if self.participants is None else self.participants

    def share(self, clients: int) -> int:
        """How many take part where the share is the same at all sizes."""
        return max(1, round(self.participation * clients))

    @property
    def cases(self) -> list[Case]:
        """Every size with the same number of participants, and with the same share of them; none twice."""
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
    """Measure every case in a process of its own, one after another; `told` hears of each as it is done."""
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
    """The largest size over the smallest, by the same number of participants and by the same share of them."""
    found = {(result["clients"], result["participants"]): result for result in results}
    small, large = min(settings.clients), max(settings.clients)
    pairs = {
        "same_participants": (found[large, settings.same], found[small, settings.same]),
        "same_share": (found[large, settings.share(large)], found[small, settings.share(small)]),
    }
    return {
        name: {key: over[key] / under[key] for key in COMPARED if key in over} for name, (over, under) in pairs.items()
    }


def _apart(case: Case) -> dict[str, Any]:
    """In a new process, so that no case inherits another's memory; what it leaves on disk goes however it ends."""
    with tempfile.TemporaryDirectory(prefix="tinyproto-bench-") as folder:
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.scale_case"],
            input=json.dumps({**asdict(case), "folder": folder}),
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or ["it said nothing"]
        raise TinyProtoError(f"measuring {case.clients} clients ended with status {done.returncode}: {last[0]}")
    result: dict[str, Any] = json.loads(done.stdout)
    if "error" in result:
        raise TinyProtoError(result["error"])
    return result


PHASES = {"train": "train", "prototypes": "proto", "evaluate": "eval", "clients": "shelf", "server": "server"}
"""Of a round, and what their columns are called."""


def sizes(text: str) -> tuple[int, ...]:
    """`200,2000`: numbers of clients, all different, from the smallest on."""
    pieces = [piece.strip() for piece in text.split(",")]
    if not all(piece.isdecimal() and int(piece) for piece in pieces):
        raise ConfigError(f"--clients: whole numbers from 1 on, with commas between, are needed, not {text!r}")
    return tuple(sorted({int(piece) for piece in pieces}))


def show_scale(settings: ScaleSettings, output: Output) -> None:
    """Measure, and say what was found."""
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
        "Seconds: medians over all rounds but the first. Shelf: building clients and taking them to and from disk. "
        "S each: without the server, per participant. Peak: memory of the process, images included; all: what all "
        "clients would take at once. Written, read: clients' states on disk, over all rounds."
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
