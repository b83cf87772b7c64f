"""One federation of many clients, measured in a process of its own: `python -m benchmarks.scale_case`.

It reads a case as JSON from standard input and writes the measurements to standard output.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from tinyproto.config import parse_config
from tinyproto.data.dataset import Dataset
from tinyproto.data.inputs import MINUS_ONE_TO_ONE
from tinyproto.errors import TinyProtoError
from tinyproto.experiment import Experiment
from tinyproto.simulation.loop import Loopback, Simulation
from tinyproto.tracking.summary import PHASES, RoundResult

NUM_CLASSES, PROTO_DIM, CPS_DIM = 100, 500, 50
"""The paper's values on CIFAR-100."""


@dataclass(frozen=True)
class Case:
    """One federation and its training."""

    clients: int
    participants: int
    rounds: int
    samples: int  # per client, on average
    pool: int  # images in memory, the same for all cases of a measurement
    algorithm: str
    networks: Sequence[str]
    image_size: int
    memory: str
    closing: bool = False
    folder: str | None = None  # for clients' states; None: a temporary one


def measure_case(case: Case) -> dict[str, Any]:
    """Run a case; return its seconds, memory and bytes."""
    start = time.perf_counter()
    images = _images(case)
    experiment = Experiment(parse_config(_config(case), "the benchmark's config", images=images), images)
    (cell,) = experiment.cells
    host = experiment.loopback(cell, folder=None if case.folder is None else Path(case.folder))
    simulation = experiment.simulation(cell, host)
    before = simulation.peak_memory
    begun = time.perf_counter()
    rounds = simulation.rounds()
    played = [next(rounds)]
    hello = time.perf_counter() - begun - played[0].seconds["total"]
    marks = [time.process_time()]
    for _ in range(case.rounds - 1):
        played.append(next(rounds))
        marks.append(time.process_time())
    measured = _measured(case, simulation, host, played)
    if case.rounds > 1:  # less affected by other processes than wall time
        used = [end - begin for begin, end in pairwise(marks)]
        measured["processor_seconds_per_participant"] = statistics.median(used) / case.participants
    if case.closing:
        closing = next(rounds).seconds["total"]
        measured["closing"] = {
            "seconds": closing,
            "seconds_per_client": closing / case.clients,
            "peak_memory_bytes": simulation.peak_memory,
        }
    return {"setup_seconds": begun - start, "hello_seconds": hello, "memory_before_bytes": before, **measured}


def _images(case: Case) -> Dataset:
    """Make noise of the right shape, enough for the largest case, so that all cases hold the same pixels."""
    generator = torch.Generator().manual_seed(0)
    shape = (case.pool, 3, case.image_size, case.image_size)
    pixels = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)
    used = case.clients * case.samples
    labels = torch.arange(used) % NUM_CLASSES
    scale, shift = MINUS_ONE_TO_ONE["scale"], MINUS_ONE_TO_ONE["shift"]
    return Dataset("noise", pixels[:used], labels, NUM_CLASSES, scale, shift)


def _config(case: Case) -> dict[str, Any]:
    return {
        "models": list(case.networks),
        "partition": {"kind": "dirichlet", "num_clients": case.clients, "alpha": 0.1},
        "prototypes": {"dim": PROTO_DIM, "cps_dim": CPS_DIM},
        "train": {
            "rounds": case.rounds,
            "participation": case.participants / case.clients,
            "client_memory": case.memory,
        },
        "algorithms": [case.algorithm],
    }


def _measured(case: Case, simulation: Simulation, host: Loopback, played: Sequence[RoundResult]) -> dict[str, Any]:
    """Return medians over all rounds but the first, which is a warm-up; a single round counts."""
    seconds = [round_.seconds for round_ in (played[1:] or played)]
    medians = {phase: statistics.median(each.get(phase, 0.0) for each in seconds) for phase in PHASES}
    store = host.store
    return {
        "seconds_per_round": medians,
        "seconds_per_participant": medians["total"] / case.participants,
        "client_seconds_per_participant": (medians["total"] - medians["server"]) / case.participants,
        "peak_memory_bytes": simulation.peak_memory,
        "all_clients_bytes": store.total_size(),
        "clients_built": store.counts.built,
        "clients_written": store.counts.written,
        "clients_read_back": store.counts.read_back,
        "bytes_written": store.files.bytes_written,
        "bytes_read_back": store.files.bytes_read,
    }


def main() -> None:
    """Read a case, run it, and print its result or its error."""
    try:
        result = measure_case(Case(**json.load(sys.stdin)))
    except TinyProtoError as error:
        result = {"error": str(error)}
    print(json.dumps(result))


if __name__ == "__main__":
    main()
