"""`tinyproto bench codec` and `bench device`: values on the wire, and what they cost a client, as tables or as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import typer
from rich.table import Table

from tinyproto.bench.codec import BULK, FRAMES, CodecSettings, measure_codec
from tinyproto.bench.device import DeviceSettings, measure_device
from tinyproto.cli.loading import LoadingBar
from tinyproto.cli.terminal import Output, facts_table, machine_facts, plain_table
from tinyproto.report.words import size


def show_codec(settings: CodecSettings, output: Output) -> None:
    """Measure, and say what was found."""
    with LoadingBar(output.console) as progress:
        found = measure_codec(settings, progress)
    if output.wants_json:
        output.result(found)
        return
    output.console.print(_codec_table(found))
    output.console.print(facts_table([("timed", found["timed"]), *machine_facts(found["environment"])]))


def show_device(settings: DeviceSettings, output: Output) -> None:
    """Measure, and say what was found; exit status 1 where the exchange takes more of a round than it may."""
    with LoadingBar(output.console) as progress:
        found = measure_device(settings, progress)
    if output.wants_json:
        output.result(found)
    else:
        output.console.print(_training_table(found))
        output.console.print(_exchange_table(found))
        facts = [
            ("largest share", f"{share(found['largest_share_of_a_round'])} of a round of {found['quickest_network']}"),
            ("timed", found["timed"]),
            *machine_facts(found["environment"]),
        ]
        output.console.print(facts_table(facts))
    if not found["within_limit"]:
        raise typer.Exit(1)


def share(fraction: float) -> str:
    """Of a round, which is small."""
    return f"{100 * fraction:.3f} %"


def _codec_table(found: Mapping[str, Any]) -> Table:
    table = plain_table()
    frames = [f"{rows} x {width}" for rows, width in FRAMES]
    for name in ("type", "rounding", "bytes/row"):
        table.add_column(name)
    for name in (*(f"{amount} GB/s" for amount in BULK), *(f"{frame} µs" for frame in frames)):
        table.add_column(name, justify="right")
    for one in found["types"]:
        rates = (one["bulk"][amount] for amount in BULK)
        times = (one["frames"][frame] for frame in frames)
        table.add_row(
            one["type"],
            one["rounding"],
            ", ".join(f"{count:g}" for count in one["bytes_per_row"].values()),
            *(f"{rate['encode_gigabytes_per_second']:.2f} / {_back(rate)}" for rate in rates),
            *(f"{t['encode_microseconds']:.0f} / {t['open_microseconds']:.0f}" for t in times),
        )
    table.caption = "bytes of a row of 50 and of 500 values; encode / decode"
    return table


def _back(rate: Mapping[str, float | None]) -> str:
    decoded = rate["decode_gigabytes_per_second"]
    return "a view" if decoded is None else f"{decoded:.2f}"


def _training_table(found: Mapping[str, Any]) -> Table:
    table = plain_table()
    for name in ("network", "ms/step", "s/round", "parameters and gradients"):
        table.add_column(name, justify="left" if name == "network" else "right")
    for one in found["training"]:
        table.add_row(
            one["network"],
            f"{1e3 * one['seconds_per_step']:.1f}",
            f"{one['seconds_per_round']:.2f}",
            size(one["memory_bytes"]),
        )
    table.caption = f"a round is {found['steps_per_round']} steps"
    return table


def _exchange_table(found: Mapping[str, Any]) -> Table:
    table = plain_table()
    stages = ("scale_and_compress", "round_and_encode", "open_and_reconstruct")
    for name in ("type", *(f"{stage.replace('_', ' ')} µs" for stage in stages), "share of a round", "memory", "bytes"):
        table.add_column(name, justify="left" if name == "type" else "right")
    for one in found["exchange"]:
        table.add_row(
            one["type"],
            *(f"{one['microseconds'][stage]:.0f}" for stage in stages),
            share(one["share_of_quickest_round"]),
            size(one["memory_bytes"]),
            f"{one['wire_bytes']['up']} + {one['wire_bytes']['down']}",
        )
    table.caption = f"of one upload and one download; a round is one of {found['quickest_network']}, the quickest"
    return table
