"""`tinyproto bench scale`: the same federation with more and more clients, as a table or as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from tinyproto.bench.scale import ScaleSettings, measure_scale
from tinyproto.cli.terminal import Output, plain_table
from tinyproto.errors import ConfigError
from tinyproto.report.words import counted, number, size

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
