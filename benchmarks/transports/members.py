"""A federation over MQTT without training: the real coordinator and broker, and clients that answer at once.

Frames are those of the paper's CIFAR-100 federation at s = 10 and int4. The seconds of a round are what the transport
and the server need: training would come on top. `memory` runs many rounds and watches the coordinator's memory.
"""

from __future__ import annotations

import contextlib
import json
import math
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import psutil
import torch
import yaml

from benchmarks.transports.processes import Deployment
from tinyproto.algorithms.base import ClientInfo
from tinyproto.core.prototypes import Message, Prototypes
from tinyproto.engine.checks import hello
from tinyproto.federation.key_making import make_keys
from tinyproto.federation.processes import free_port
from tinyproto.wire.codec import encode
from tinyproto.wire.frame import HEADER_BYTES, Header, Kind
from tinyproto.wire.values import INT4, Coding

CLASSES, HELD, PROTO_DIM, CPS_DIM = 100, 46, 500, 10
IN_A_PROCESS = 500
"""Light clients of one process."""

LIMITS = {20: 0.2, 1000: 5.0}
"""Longest seconds of a round, by number of clients."""

MOST_GROWTH = 2_000_000
"""Bytes by which the coordinator may grow from the first to the last of `LOOKS`."""

LOOKS = (0.1, 0.25, 0.5, 0.75, 1.0)
"""Shares of all rounds after which memory is read."""

SCORES = {"test_samples": 563.0, "correct_head": 300.0, "correct_global": 250.0, "correct_local": 280.0}


def bodies(seed: int) -> dict[str, str]:
    """Return the body of each kind of answer, in hexadecimal."""
    draws = torch.Generator().manual_seed(seed)
    present = torch.zeros(CLASSES, dtype=torch.bool)
    present[torch.randperm(CLASSES, generator=draws)[:HELD]] = True
    values = torch.rand(CLASSES, CPS_DIM, generator=draws) * 40 * present[:, None]  # n_ij = 40 samples of each
    losses = {"cross_entropy": 1.25, "regulariser": 0.125}
    messages = {
        Kind.HELLO: hello(ClientInfo(0, 40 * HELD, 40 * HELD, HELD)),
        Kind.UPDATE: Message(Prototypes(values, present), metrics={**losses, **SCORES}),
        Kind.EVALUATION: Message(metrics=SCORES),
    }
    coding = Coding(INT4)
    return {
        kind.name: encode(Header(kind, 0, 0, b""), message, coding)[HEADER_BYTES:].hex()
        for kind, message in messages.items()
    }


def config(clients: int, rounds: int, seed: int) -> dict[str, Any]:
    """Return the config of a federation whose clients have CIFAR-100's classes."""
    return {
        "name": "light",
        "federation": {
            "clients": clients, "num_classes": CLASSES, "input_shape": [3, 32, 32], "quorum": 1.0, "deadline": 120,
        },
        "prototypes": {"dim": PROTO_DIM, "cps_dim": CPS_DIM},
        "wire": {"up": INT4.name, "down": INT4.name},
        "train": {"rounds": rounds, "device": "cpu"},
        "algorithms": ["tinyproto_fp"],
        "seeds": [seed],
    }  # fmt: skip


class Resident:
    """The memory of a process, as it was when it could last be read: the process may end at any moment."""

    def __init__(self, process: psutil.Process) -> None:
        self.bytes = 0
        self._process = process
        self.look()

    def look(self) -> None:
        """Read it."""
        with contextlib.suppress(psutil.NoSuchProcess):
            self.bytes = self._process.memory_info().rss or self.bytes  # a zombie has none


class LightFederation(Deployment):
    """A coordinator and light clients in a folder of their own."""

    def __init__(self, folder: Path, clients: int, rounds: int, seed: int) -> None:
        super().__init__(folder, free_port(), "light")
        self.clients = clients
        self.rounds = rounds
        self.seed = seed
        start = time.monotonic()
        make_keys(folder / "keys", clients, [])
        self.key_seconds = time.monotonic() - start
        (folder / "light.yaml").write_text(yaml.safe_dump(config(clients, rounds, seed)))

    def begin(self) -> float:
        """Start all processes and wait for the first round; return the seconds that takes."""
        start = time.monotonic()
        self.serve("light.yaml", "mqtt")
        self.wait_for("waiting", 60)
        self.memory = Resident(self.commands[0].child("mqtt.coordinate"))
        said = {"port": self.port, "keys": str(self.folder / "keys"), "bodies": bodies(self.seed)}
        for first in range(0, self.clients, IN_A_PROCESS):
            some = list(range(first, min(first + IN_A_PROCESS, self.clients)))
            given = json.dumps({**said, "clients": some})
            self.start(f"light-{first}", "benchmarks.transports.light_member", given=given)
        self.wait_for("round", 300)
        return time.monotonic() - start

    def bytes_after(self, number: int) -> int:
        """Wait until a round is over, and return the coordinator's memory."""

        def is_over() -> bool:
            self.memory.look()
            return any(event["event"] == "concluded" and event["round"] == number for event in self.events())

        self.wait_until(is_over, 600, f"round {number}")
        return self.memory.bytes

    def end(self, seconds: float) -> None:
        """Wait until all rounds are over."""
        for command in self.commands:
            command.finish(seconds)


def measure_members(numbers: Sequence[int], rounds: int, seed: int) -> list[dict[str, Any]]:
    """Return the seconds of a round for each number of clients."""
    found = []
    for clients in numbers:
        with tempfile.TemporaryDirectory(prefix="tinyproto-transports-") as folder:
            with LightFederation(Path(folder), clients, rounds, seed) as federation:
                joined = federation.begin()
                federation.end(60.0 * rounds)
            seconds = federation.seconds_of_rounds()
        found.append({
            "clients": clients, "rounds": len(seconds), "median_seconds": median(seconds), "lowest": min(seconds),
            "highest": max(seconds), "seconds_to_join": joined, "seconds_for_keys": federation.key_seconds,
            "limit": LIMITS.get(clients),
        })  # fmt: skip
    return found


def measure_memory(clients: int, rounds: int, seed: int) -> dict[str, Any]:
    """Return the memory of the coordinator's process after some of the rounds, and its growth per round."""
    looks, sizes = [math.ceil(share * rounds) for share in LOOKS], dict[int, int]()
    with tempfile.TemporaryDirectory(prefix="tinyproto-transports-") as folder:
        with LightFederation(Path(folder), clients, rounds, seed) as federation:
            federation.begin()
            for number in looks:
                sizes[number] = federation.bytes_after(number)
            federation.end(60)
        seconds = federation.seconds_of_rounds()
    first, last = looks[0], looks[-1]
    growth = sizes[last] - sizes[first]
    return {
        "clients": clients, "rounds": rounds, "resident_bytes_after_round": sizes, "growth_bytes": growth,
        "bytes_per_round": growth / (last - first), "limit_bytes": MOST_GROWTH, "median_seconds": median(seconds),
    }  # fmt: skip
