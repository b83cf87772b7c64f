"""`tinyproto bench aggregate`: the measurement in words, or as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer

from tinyproto.bench.aggregate import AggregateSettings, measure
from tinyproto.cli.loading import LoadingBar
from tinyproto.cli.terminal import Output, facts_table, machine_facts
from tinyproto.report.words import number, percent, size, times


def show_aggregate(settings: AggregateSettings, output: Output) -> None:
    """Measure, and say what was found; exit status 1 where the sums are not what they have to be."""
    with LoadingBar(output.console) as progress:
        found = measure(settings, progress)
    if output.wants_json:
        output.result(found)
    else:
        output.console.print(facts_table(_lines(found)))
    if not sums_are_right(found):
        raise typer.Exit(1)


def sums_are_right(found: dict[str, Any]) -> bool:
    """Whether everyone was counted and every sum is within the stated bound."""
    return bool(found["sums"]["within_bound"] and found["sums"]["holders_are_right"])


def _lines(found: dict[str, Any]) -> Iterator[tuple[str, str]]:
    asked, readable, sums = found["settings"], found["readable_way"], found["sums"]
    rows = f"{asked['held']} of {asked['num_classes']} classes, {asked['cps_dim']} values each"
    yield (
        "uploads",
        f"{number(asked['uploads'])} of {rows}; {number(found['distinct_uploads'])} have values of their own",
    )
    yield "payload", f"{size(found['payload_bytes'])}, in frames of {size(found['wire_bytes'])}"
    yield "timed", found["timed"]
    speed, typical = found["gigabytes_per_second_per_core"], found["median_microseconds_per_upload"]
    yield (
        "rate per core",
        (
            f"{speed:.3f} GB/s of payload, {number(found['uploads_per_second'])} uploads/s, "
            f"{found['microseconds_per_upload']:.1f} µs each (median batch: {typical:.1f})"
        ),
    )
    yield "seconds", f"{found['cpu_seconds']:.2f} of processor time, {found['wall_seconds']:.2f} by the wall clock"
    yield "shares", ", ".join(f"{name} {percent(share)}" for name, share in found["shares"].items())
    yield (
        "readable way",
        (
            f"{readable['gigabytes_per_second_per_core']:.3f} GB/s, {readable['microseconds_per_upload']:.1f} µs each: "
            f"{times(readable['ratio'])} as long"
        ),
    )
    yield "peak memory", f"{size(found['peak_memory_bytes'])} above the imported package, frames included"
    if asked["shards"] > 1:
        yield "shards", f"{asked['shards']}, whose sums were merged in a tree"
    verdict = (
        f"within the bound: at most {sums['largest_share_of_bound']:.2g} of it" if sums_are_right(found) else "WRONG"
    )
    yield "sums", f"{verdict}; largest error {sums['largest_error']:.2g}, against exact sums"
    yield from machine_facts(found["environment"])
