"""Flower and MQTT with one config: what a client's socket, memory and processes cost, and the seconds of a round.

Each client reaches the coordinator through a proxy of its own, which counts the bytes of TCP's payload. (Flower's
clients also count at their relay; these counts are not used, so that both are counted alike.) Client 0 comes first and
waits alone, which is the measurement of an idle client. The others come later: their bytes from the start to the first
round are those of joining. Bytes of a round are means over all rounds but the first and the closing exchange.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import mean, median
from typing import Any
from unittest import mock

from benchmarks.transports import ROOT
from benchmarks.transports.processes import (
    Command,
    Deployment,
    lines_of,
    proportional_bytes,
    round_seconds,
    time_of,
)
from benchmarks.transports.proxy import CountingProxy
from tinyproto.config import load_config
from tinyproto.engine.measure import WAYS
from tinyproto.federation.key_making import make_keys
from tinyproto.federation.mqtt import connection
from tinyproto.federation.mqtt.listener import LINGER_SECONDS
from tinyproto.federation.mqtt.tls import Broker
from tinyproto.federation.processes import free_port

CONFIG = ROOT / "configs" / "federation.yaml"
TRANSPORTS = ("mqtt", "flower")
DAY = 24 * 3600
MOST_BESIDE_FRAMES = 130
"""Bytes at the socket beside the frames, both ways together, per client and round over MQTT."""

MOST_IDLE = 50_000
"""Bytes of an idle day over MQTT, both ways together."""

SAMPLE_SECONDS = 0.25
PINGS = 4


def measure_comparison(rounds: int, idle_seconds: float) -> dict[str, Any]:
    """Return the figures of both transports, and of a simulation with the same config."""
    found: dict[str, Any] = {
        "config": load_config(CONFIG, [f"train.rounds={rounds}"]).resolved(),
        "idle_seconds": idle_seconds,
    }
    found["simulation"] = {"seconds_per_round": _simulated(rounds)}
    for transport in TRANSPORTS:
        with tempfile.TemporaryDirectory(prefix="tinyproto-transports-") as folder:
            found[transport] = _Measurement(Path(folder), transport, rounds, idle_seconds).run()
        overhead = found[transport]["seconds_per_round"] - found["simulation"]["seconds_per_round"]
        found[transport]["overhead_seconds_per_round"] = overhead
    found["limits"] = {"bytes_beside_frames": MOST_BESIDE_FRAMES, "idle_bytes_per_day": MOST_IDLE}
    return found


def _simulated(rounds: int) -> float:
    """Return the median seconds of a round of a simulation in one process."""
    with tempfile.TemporaryDirectory(prefix="tinyproto-transports-") as folder:
        options = (f"train.rounds={rounds}", "train.workers=1")
        Command(Path(folder), "run", "tinyproto", "run", str(CONFIG), *options).finish(600)
        return median(round_seconds(Path(folder) / "runs" / "federation"))


class _Measurement:
    """One federation over one transport."""

    def __init__(self, folder: Path, transport: str, rounds: int, idle_seconds: float) -> None:
        model = load_config(CONFIG, []).model
        assert model.partition.num_clients is not None
        self.networks = [str(network) for network in model.models]
        self.clients = range(model.partition.num_clients)
        self.transport = transport
        self.rounds = rounds
        self.idle_seconds = idle_seconds
        self.folder = folder
        self.port = free_port()
        make_keys(folder / "keys", len(self.clients), [])

    def run(self) -> dict[str, Any]:
        """Run the federation to its end and return its figures."""
        with _proxies(len(self.clients), self.port) as proxies, Deployment(
            self.folder, self.port, "federation"
        ) as deployed:  # fmt: skip
            serve = deployed.serve(str(CONFIG), self.transport, f"train.rounds={self.rounds}")
            deployed.wait_for("waiting", 120)
            ping = _bytes_of_a_ping(self.folder, self.port) if self.transport == "mqtt" else None
            joins = {0: self._join(deployed, 0, proxies)}
            waiting = self._idle(deployed, joins[0], proxies[0])
            began = time.time()
            joins |= {client: self._join(deployed, client, proxies) for client in self.clients[1:]}
            first = time_of(deployed.wait_for("round", 300, round=1))
            with _Peaks({"coordinator": serve, "client": joins[0]}) as peaks:
                serve.finish(120.0 * self.rounds)
            for join in joins.values():
                join.finish(120)
            figures = {
                **self._bytes_of_rounds(deployed, proxies),
                "seconds_per_round": median(deployed.seconds_of_rounds()),
                "bytes_to_join": _mean_bytes([proxies[client].count(began, first) for client in self.clients[1:]]),
                "seconds_to_join": first - began,
            }
        return {**figures, **self._per_day(waiting.pop("bytes"), ping), "waiting": waiting, "peaks": peaks.found}

    def _join(self, deployed: Deployment, client: int, proxies: Sequence[CountingProxy]) -> Command:
        network = self.networks[client % len(self.networks)]
        return deployed.join(client, self.transport, proxies[client].port, str(CONFIG), network)

    def _idle(self, deployed: Deployment, join: Command, proxy: CountingProxy) -> dict[str, Any]:
        """Let the only client wait; return the bytes at its socket meanwhile, its memory and processes."""
        deployed.wait_for("joined", 120, client=0)
        time.sleep(LINGER_SECONDS + 5)  # then its training process has ended
        begin = time.time()
        time.sleep(self.idle_seconds)
        family = join.family()
        return {
            "bytes": proxy.count(begin, time.time()), "client_bytes": proportional_bytes(family),
            "client_processes": len(family),
        }  # fmt: skip

    def _bytes_of_rounds(self, deployed: Deployment, proxies: Sequence[CountingProxy]) -> dict[str, Any]:
        """Return the mean bytes of a client and round: our frames, all at the socket, and the rest of it."""
        starts = [time_of(event) for event in deployed.events() if event["event"] == "round"]
        begin, end, rounds = starts[1], starts[-1], len(starts) - 2
        socket = _mean_bytes([proxy.count(begin, end) for proxy in proxies], rounds)
        records = lines_of(deployed.run_folder / "rounds.jsonl")[1:-1]
        sizes = [size for record in records for size in _frames(record)]
        frames = {way: mean(size[way] for size in sizes) for way in WAYS}
        beside = sum(socket[way] - frames[way] for way in WAYS)
        return {"frame_bytes": frames, "socket_bytes": socket, "bytes_beside_frames": beside}

    def _per_day(self, idle: Mapping[str, int], ping: float | None) -> dict[str, Any]:
        """Return the bytes of an idle client; over MQTT a day is its pings, of which none may fall into the minute."""
        minute = {way: 60 * idle[way] / self.idle_seconds for way in WAYS}
        if ping is None:
            return {"idle_bytes_per_minute": minute, "idle_bytes_per_day": sum(minute.values()) * DAY / 60}
        pings = DAY / connection.KEEP_ALIVE_SECONDS
        return {"idle_bytes_per_minute": minute, "bytes_of_a_ping": ping, "idle_bytes_per_day": ping * pings}


def _frames(record: Mapping[str, Any]) -> Iterator[Mapping[str, int]]:
    """Yield the bytes of frames of each client of a round, up and down."""
    columns = record["clients"]
    for up, down in zip(columns["wire_bytes"]["up"], columns["wire_bytes"]["down"], strict=True):
        yield {"up": up, "down": down}


def _mean_bytes(counts: Sequence[Mapping[str, int]], rounds: int = 1) -> dict[str, float]:
    return {way: mean(count[way] for count in counts) / rounds for way in WAYS}


@contextmanager
def _proxies(number: int, port: int) -> Iterator[list[CountingProxy]]:
    made = [CountingProxy(port) for _ in range(number)]
    try:
        yield made
    finally:
        for proxy in made:
            proxy.close()


def _bytes_of_a_ping(folder: Path, port: int) -> float:
    """Return the bytes of a ping and its answer: those of a connection with a ping every second."""
    proxy, keys = CountingProxy(port), folder / "keys" / "client-1"
    broker = Broker("localhost", proxy.port, keys / "ca.crt", keys / "client.crt", keys / "tls.key")
    with mock.patch.object(connection, "KEEP_ALIVE_SECONDS", 1):
        link = connection.Connection(broker, "client-1", ["d1", "a"])
    give_up = time.monotonic() + 30
    while not link.is_open and time.monotonic() < give_up:
        link.step(0.1)
    begin = time.time()
    sent = 0
    while sent < PINGS and time.monotonic() < give_up:
        link.step(0.1)
        sent = sum(piece.way == "down" and piece.when > begin for piece in list(proxy.pieces))
    count = proxy.count(begin, time.time())
    link.close(keep_session=False)
    proxy.close()
    return sum(count.values()) / sent


class _Peaks:
    """Samples the memory and the processes of commands until the end of a `with` block, and keeps the largest."""

    def __init__(self, commands: Mapping[str, Command]) -> None:
        self.found = {f"{name}_{what}": 0 for name in commands for what in ("bytes", "processes")}
        self._commands = commands
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample)

    def __enter__(self) -> _Peaks:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._stop.wait(SAMPLE_SECONDS):
            for name, command in self._commands.items():
                family = command.family()
                now = {f"{name}_bytes": proportional_bytes(family), f"{name}_processes": len(family)}
                self.found |= {key: max(self.found[key], value) for key, value in now.items()}
