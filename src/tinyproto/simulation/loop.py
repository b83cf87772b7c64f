"""The simulation: plays the rounds of one cell and yields their records."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch

from tinyproto.algorithms.base import Algorithm, Round, expected_frames
from tinyproto.algorithms.defence import Defence
from tinyproto.core.streams import Streams, one_thread
from tinyproto.data.images import CountedSamples, FederatedData
from tinyproto.engine.client import ClientRuntime, LocalTraining, Steps
from tinyproto.engine.measure import Clock, Direction, Meter, Stopwatch
from tinyproto.engine.round import RoundPlan, RoundRecord, play_round
from tinyproto.engine.server import NO_DEFENCE, ServerRuntime
from tinyproto.engine.training import Known, Precision, make_trainer
from tinyproto.errors import LeftOutError
from tinyproto.models import ModelEntry, ModelShape
from tinyproto.simulation.client_store import UNBOUNDED, ClientShelf
from tinyproto.simulation.clients import ClientBuilder
from tinyproto.simulation.loopback import ClientHost, Loopback
from tinyproto.simulation.memory import PeakMemory
from tinyproto.simulation.participation import EvaluatedClients, Trace, plan_round, with_absences
from tinyproto.storage.client_files import ClientFiles
from tinyproto.wire.values import EXACT, WireSettings

NAMED = 5
"""So many clients that were left out are named where a run ends for them."""


@dataclass(frozen=True)
class SimulationSettings:
    """Everything about a run that is neither data, network nor algorithm."""

    training: LocalTraining
    proto_dim: int
    head_dropout: float = 0.0
    participation: float = 1.0
    dropout: float | Trace = 0.0
    late: float = 0.0
    max_left_out: float = 0.5  # share of a round's participants; where more are left out, the run ends
    evaluate_every: int = 1
    evaluate_clients: EvaluatedClients = "auto"
    counted_samples: CountedSamples = "train"
    trainer: Known = "eager"
    precision: Precision = "float32"
    device: str = "cpu"
    wire: WireSettings = EXACT
    defence: Defence = NO_DEFENCE
    client_memory: float = UNBOUNDED  # bytes that clients may take before some of them go to disk


@dataclass(frozen=True)
class PlayedRound:
    """A round's record, and what the clock said about it."""

    record: RoundRecord
    seconds: dict[str, float]  # total, train, prototypes, server, evaluate, clients
    notes: tuple[str, ...] = ()  # on how it was executed
    steps: Steps | None = None  # of the clients, where their host knows
    sockets: Mapping[int, Mapping[Direction, int]] | None = None  # bytes on the network by client, where there is one

    def for_summary(self) -> PlayedRound:
        """Return what a summary reads of it; without the clients, a run of many rounds keeps far less in memory."""
        record = replace(self.record, clients={}, loss={}, server={})
        return PlayedRound(record, self.seconds, sockets=self.sockets)


def make_loopback(
    data: FederatedData, models: Sequence[ModelEntry], algorithm: Algorithm, settings: SimulationSettings, seed: int,
    clock: Clock = time.perf_counter, only: Collection[int] | None = None, files: ClientFiles | None = None,
) -> Loopback:  # fmt: skip
    """The client side of a simulation in this process: all clients, or `only` some."""
    device, streams = torch.device(settings.device), Streams(seed)
    images = data.images
    shape = ModelShape(images.input_shape, settings.proto_dim, images.num_classes, settings.head_dropout)
    builder = ClientBuilder(data, models, shape, settings.counted_samples, algorithm.client, streams, device)
    stopwatch = _stopwatch(clock, device)
    ids = range(data.num_clients) if only is None else only
    shelf = ClientShelf(ids, builder, files or ClientFiles(), settings.client_memory, stopwatch)
    trainer = make_trainer(settings.trainer, device, settings.precision)
    expectation = expected_frames(algorithm, images.num_classes, settings.proto_dim, settings.wire)
    return Loopback(ClientRuntime(shelf, algorithm, trainer, settings.training, streams, expectation, stopwatch), shelf)


def _stopwatch(clock: Clock, device: torch.device) -> Stopwatch:
    return Stopwatch(clock, partial(torch.cuda.synchronize, device) if device.type == "cuda" else None)


def check_left_out(record: RoundRecord, participants: Sequence[int], most: float) -> None:
    """Raise a LeftOutError if more than this share of a round's participants were left out, or all of them."""
    out = [client for client in participants if client in record.refused]
    if not out or (len(out) < len(participants) and len(out) <= most * len(participants)):
        return
    which = "all" if len(out) == len(participants) else f"{len(out)} of {len(participants)}"
    allowed = "" if which == "all" else f", more than train.max_left_out ({most:g}) allows"
    others = ", ".join(map(str, out[1:NAMED])) + (" …" if len(out) > NAMED else "")
    also = f"; also left out: client{'s' if len(out) > 2 else ''} {others}" if others else ""
    raise LeftOutError(f"round {record.round} left out {which} clients{allowed}: {record.refused[out[0]]}{also}")


class Simulation:
    """One algorithm, one seed, one federation; the server is here, the clients are wherever their host has them."""

    def __init__(
        self, data: FederatedData, algorithm: Algorithm, settings: SimulationSettings, seed: int, host: ClientHost,
        clock: Clock = time.perf_counter,
    ) -> None:  # fmt: skip
        self.num_clients = data.num_clients
        self.algorithm = algorithm
        self.settings = settings
        self.streams = Streams(seed)
        self.host = host
        device = torch.device(settings.device)
        self.stopwatch = _stopwatch(clock, device)
        self.peak_memory = PeakMemory(device)
        expectation = expected_frames(algorithm, data.images.num_classes, settings.proto_dim, settings.wire)
        trainer = make_trainer(settings.trainer, device, settings.precision)
        self.server = ServerRuntime(algorithm, trainer, self.streams, expectation, self.stopwatch, settings.defence)

    def rounds(self, first: int = 1) -> Iterator[PlayedRound]:
        """Play all rounds from `first` on, and the closing exchange; the hello comes before round 1."""
        total = self.settings.training.rounds
        meter = Meter()
        if first == 1:
            self.server.greet(self.host, range(self.num_clients), meter)
        for number in range(first, total + 2):
            start = self.stopwatch.now()
            with one_thread():
                plan = self._plan(Round(number, total))
                record = play_round(self.server, self.host, plan, meter, tolerant=True)
            check_left_out(record, plan.participants, self.settings.max_left_out)
            seconds = {**self.host.take_seconds(), **self.stopwatch.take()}
            total_seconds = {"total": self.stopwatch.now() - start, **seconds}
            yield PlayedRound(record, total_seconds, tuple(self.host.take_notes()), self.host.take_steps())
            meter = Meter()

    def _plan(self, round_: Round) -> RoundPlan:
        settings = self.settings
        plan = plan_round(
            range(self.num_clients), round_, settings.participation, settings.evaluate_every, settings.evaluate_clients,
            self.streams,
        )  # fmt: skip
        return with_absences(plan, settings.dropout, settings.late, self.streams)
