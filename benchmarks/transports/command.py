"""Run the measurements of transports, print one table, and write the record: `python -m benchmarks transports`."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from rich.table import Table

from benchmarks.studies import Parser
from benchmarks.transports import ROOT
from tinyproto.cli.terminal import Output, plain_table
from tinyproto.errors import ConfigError
from tinyproto.federation import require_transport
from tinyproto.report.words import size
from tinyproto.tracking.environment import environment

RECORD = ROOT / "benchmarks" / "records" / "transports.json"
PACKAGES = ("flwr", "paho-mqtt", "cryptography")
Figures = Mapping[str, Any]


class Row(NamedTuple):
    """One line of the table; a measured value above its limit fails."""

    what: str
    mqtt: str
    flower: str = ""
    limit: str = ""
    fails: bool = False


def main(arguments: Sequence[str]) -> int:
    """Run the parts asked for; return 1 if a measurement is above its limit."""
    parser = Parser("transports", "Compare the transports of a federation: bytes, seconds, memory, many clients.")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), help="parts to run")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of compare (default 5, at least 2)")
    parser.add_argument("--idle", type=float, default=60.0, help="seconds for which an idle client is watched")
    parser.add_argument("--clients", type=int, nargs="+", default=[20, 200, 1000], help="numbers of clients of members")
    parser.add_argument("--member-rounds", type=int, default=20, help="rounds of members (default 20, at least 2)")
    parser.add_argument("--memory-rounds", type=int, default=1000, help="rounds of memory (default 1000, at least 2)")
    parser.add_argument("--seed", type=int, default=0, help="seed of all that is random")
    parser.add_argument("--json", type=Path, default=RECORD, help="file for the figures; parts not run are kept")
    asked = parser.parse_args(arguments)
    if min(asked.rounds, asked.member_rounds, asked.memory_rounds) < 2:
        raise ConfigError("the first round is not measured, so 2 rounds are the least")
    for name in asked.only:
        for transport in PARTS[name].needs:
            require_transport(transport)
        if PARTS[name].needs:
            _mosquitto_version()
    output, rows, kept = Output(), list[Row](), _kept(asked.json)
    for name in asked.only:
        start = time.monotonic()
        figures = PARTS[name].measure(asked)
        seconds = round(time.monotonic() - start, 1)
        output.say(f"{name}: {figures.get('skipped', 'measured')} ({seconds:.0f} s)")
        kept[name] = {"seconds": seconds, "seed": asked.seed, **facts(PARTS[name]), **figures}
        rows += [] if "skipped" in figures else PARTS[name].rows(figures)
        asked.json.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    output.console.print(table(rows))
    return 1 if any(row.fails for row in rows) else 0


def _kept(file: Path) -> dict[str, Any]:
    """Return the parts that a record has."""
    return dict(json.loads(file.read_text(encoding="utf-8"))) if file.is_file() else {}


def facts(part: Part) -> dict[str, Any]:
    """Return hardware, versions, commit and load."""
    versions: dict[str, str | None] = {"mosquitto": _mosquitto_version()} if part.needs else {}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = None
    return {"environment": environment("cpu", workers=1), "versions": versions, "load": os.getloadavg()}


def _mosquitto_version() -> str:
    """Return the version of Mosquitto; raise FederationError if it is not installed."""
    from tinyproto.federation.mqtt.broker import mosquitto

    said = subprocess.run([mosquitto(), "-h"], capture_output=True, text=True, check=False).stdout
    return said.partition("\n")[0].rpartition(" ")[2]


def table(rows: Sequence[Row]) -> Table:
    """Return all measurements; those above their limit are marked."""
    shown = plain_table()
    for number, name in enumerate(("", "MQTT", "Flower", "limit")):
        shown.add_column(name, justify="right" if number else "left")
    for row in rows:
        shown.add_row(row.what, row.mqtt, row.flower, f"{row.limit}{' missed' if row.fails else ''}")
    return shown


def _compare_rows(found: Figures) -> Iterator[Row]:
    mqtt, flower, limits = found["mqtt"], found["flower"], found["limits"]

    def both(what: str, words: Callable[[Figures], str]) -> Row:
        return Row(what, words(mqtt), words(flower))

    def ways(key: str) -> Callable[[Figures], str]:
        return lambda one: f"{one[key]['up']:,.0f} / {one[key]['down']:,.0f}"

    yield both("a client's frames in a round, bytes up / down", ways("frame_bytes"))
    yield both("its socket in a round, bytes up / down", ways("socket_bytes"))
    beside, most = "bytes_beside_frames", limits["bytes_beside_frames"]
    yield both("socket without frames, bytes", lambda one: f"{one[beside]:,.0f}")._replace(
        limit=f"{most}", fails=mqtt[beside] > most
    )
    yield both("to join, bytes up / down", ways("bytes_to_join"))
    yield both("an idle minute, bytes up / down", ways("idle_bytes_per_minute"))
    day, most = "idle_bytes_per_day", limits["idle_bytes_per_day"]
    yield both("an idle day", lambda one: size(round(one[day])))._replace(limit=f"{size(most)}", fails=mqtt[day] > most)
    yield both("a round, s", lambda one: f"{one['seconds_per_round']:.2f}")
    simulated = found["simulation"]["seconds_per_round"]
    yield both(
        f"of that not in a simulation ({simulated:.2f} s), s", lambda one: f"{one['overhead_seconds_per_round']:.2f}"
    )
    yield both("a waiting client's memory", lambda one: size(one["waiting"]["client_bytes"]))
    for whose, what in (("client", "a client's memory in rounds"), ("coordinator", "the coordinator's memory")):
        yield both(f"{what}, largest", lambda one, key=f"{whose}_bytes": size(one["peaks"][key]))  # type: ignore[misc]
    yield both(
        "processes: client waiting / in rounds / coordinator",
        lambda one: (
            f"{one['waiting']['client_processes']} / {one['peaks']['client_processes']} / "
            f"{one['peaks']['coordinator_processes']}"
        ),
    )


def _members_rows(found: Figures) -> Iterator[Row]:
    for case in found["cases"]:
        limit, seconds = case["limit"], case["median_seconds"]
        fails = limit is not None and seconds > limit
        yield Row(
            f"a round of {case['clients']} clients that do not train, s", f"{seconds:.3f}",
            limit="" if limit is None else f"{limit:g}", fails=fails,
        )  # fmt: skip


def _memory_rows(found: Figures) -> Iterator[Row]:
    for number, resident in found["resident_bytes_after_round"].items():
        yield Row(f"the coordinator's memory after round {number}", size(resident))
    growth, most = found["growth_bytes"], found["limit_bytes"]
    what = f"its growth, {found['bytes_per_round'] / 1000:.1f} kB a round"
    yield Row(what, size(growth), limit=size(most), fails=growth > most)


def _packets_rows(found: Figures) -> Iterator[Row]:
    for way in ("up", "down"):
        for kind, words in (("frame", "frame alone"), ("mqtt", "with MQTT and TLS")):
            bytes_, packets = found[way][kind]["bytes"], found[way][kind]["packets"]
            limit = found["limit_packets"]
            yield Row(
                f"CIFAR-100, training frame {way}, {words}: lowest / median / highest packets (bytes)",
                " / ".join(f"{packets[one]:g} ({bytes_[one]:g})" for one in ("lowest", "median", "highest")),
                limit=f"{limit}", fails=packets["median"] > limit,
            )  # fmt: skip


class Part(NamedTuple):
    """A part: how to measure it, its lines of the table, and the transports it needs."""

    measure: Callable[[argparse.Namespace], Figures]
    rows: Callable[[Figures], Iterator[Row]]
    needs: tuple[Literal["flower", "mqtt"], ...] = ("mqtt",)


def _compare(asked: argparse.Namespace) -> Figures:
    from benchmarks.transports.compare import measure_comparison

    return measure_comparison(asked.rounds, asked.idle)


def _members(asked: argparse.Namespace) -> Figures:
    from benchmarks.transports.members import config, measure_members

    cases = measure_members(asked.clients, asked.member_rounds, asked.seed)
    return {"config": config(max(asked.clients), asked.member_rounds, asked.seed), "cases": cases}


def _memory(asked: argparse.Namespace) -> Figures:
    from benchmarks.transports.members import config, measure_memory

    figures = measure_memory(MEMORY_CLIENTS, asked.memory_rounds, asked.seed)
    return {"config": config(MEMORY_CLIENTS, asked.memory_rounds, asked.seed), **figures}


def _packets(_: argparse.Namespace) -> Figures:
    from benchmarks.transports.packets import measure_packets

    return measure_packets()


MEMORY_CLIENTS = 20
PARTS: Mapping[str, Part] = {
    "compare": Part(_compare, _compare_rows, ("flower", "mqtt")),
    "members": Part(_members, _members_rows),
    "memory": Part(_memory, _memory_rows),
    "packets": Part(_packets, _packets_rows, ()),
}
