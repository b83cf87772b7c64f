"""The simulation: builds the clients, plays the rounds, yields their records."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch

from tinyproto.algorithms.base import Algorithm, Client, Round
from tinyproto.core.prototypes import Prototypes
from tinyproto.core.streams import Streams
from tinyproto.data.federation import CountedSamples, FederatedData
from tinyproto.engine.agreement import expected_frames
from tinyproto.engine.client import ClientRuntime, LocalTraining
from tinyproto.engine.round import RoundPlan, RoundRecord, play_round
from tinyproto.engine.server import ServerRuntime
from tinyproto.engine.stopwatch import Clock, Stopwatch
from tinyproto.engine.training import TrainerName, make_trainer
from tinyproto.models import ModelEntry, ModelShape, build_model, entry_name
from tinyproto.simulation.loopback import Loopback
from tinyproto.simulation.memory import PeakMemory
from tinyproto.simulation.participation import draw_participants
from tinyproto.wire.meter import Meter

EvaluatedClients = Literal["auto", "all", "participants"]


@dataclass(frozen=True)
class SimulationSettings:
    """Everything about a run that is neither data, network nor algorithm."""

    training: LocalTraining
    proto_dim: int
    participation: float = 1.0
    evaluate_every: int = 1
    evaluate_clients: EvaluatedClients = "auto"
    counted_samples: CountedSamples = "train"
    trainer: TrainerName = "auto"
    device: str = "cpu"


@dataclass(frozen=True)
class PlayedRound:
    """A round's record, and what the clock said about it."""

    record: RoundRecord
    seconds: dict[str, float]  # total, train, prototypes, server, evaluate


class Simulation:
    """One algorithm, one seed, one federation."""

    def __init__(
        self, data: FederatedData, models: Sequence[ModelEntry], algorithm: Algorithm, settings: SimulationSettings,
        seed: int, clock: Clock = time.perf_counter,
    ) -> None:  # fmt: skip
        self.data = data
        self.algorithm = algorithm
        self.settings = settings
        self.streams = Streams(seed)
        device = torch.device(settings.device)
        self.stopwatch = Stopwatch(clock, partial(torch.cuda.synchronize, device) if device.type == "cuda" else None)
        self.peak_memory = PeakMemory(device)
        trainer = make_trainer(settings.trainer, device)
        expectation = expected_frames(algorithm, data.images.num_classes, settings.proto_dim)
        self.clients = self._build_clients(models, device)
        runtime = ClientRuntime(
            self.clients, algorithm, trainer, settings.training, self.streams, expectation, self.stopwatch
        )
        self.channel = Loopback(runtime)
        self.server = ServerRuntime(algorithm, trainer, self.streams, expectation, self.stopwatch)

    def rounds(self, first: int = 1) -> Iterator[PlayedRound]:
        """Play all rounds from `first` on, and the closing exchange; the hello comes before round 1."""
        total = self.settings.training.rounds
        meter = Meter()
        if first == 1:
            self.server.greet(self.channel, list(self.clients), meter)
        for number in range(first, total + 2):
            start = self.stopwatch.now()
            with one_thread():
                record = play_round(self.server, self.channel, self._plan(Round(number, total)), meter)
            yield PlayedRound(record, {"total": self.stopwatch.now() - start, **self.stopwatch.take()})
            meter = Meter()

    def _plan(self, round_: Round) -> RoundPlan:
        everyone = list(self.clients)
        if round_.number > round_.total:
            return RoundPlan(round_, participants=(), evaluated=frozenset(everyone), closing=True)
        settings = self.settings
        participants = draw_participants(len(everyone), settings.participation, self.streams, round_.number)
        due = (round_.number - 1) % settings.evaluate_every == 0
        choice = settings.evaluate_clients
        if choice == "auto":
            choice = "all" if len(participants) == len(everyone) else "participants"
        evaluated = (everyone if choice == "all" else participants) if due else []
        return RoundPlan(round_, participants, frozenset(evaluated))

    def _build_clients(self, models: Sequence[ModelEntry], device: torch.device) -> dict[int, Client]:
        shape = ModelShape(self.data.images.input_shape, self.settings.proto_dim, self.data.images.num_classes)
        counts = self.data.counted(self.settings.counted_samples)
        clients = {}
        for client in range(self.data.num_clients):
            index = client % len(models)
            entry = models[index]
            model = build_model(entry, shape, self.streams.derive("model", client=client))
            clients[client] = Client(
                id=client,
                architecture=entry if isinstance(entry, str) else (index, entry_name(entry)),
                model=model.to(device),
                train=self.data.train(client).to(device),
                test=self.data.test(client).to(device),
                class_counts=counts[client].to(device),
                local=Prototypes.absent(shape.num_classes, shape.proto_dim, device),
            )
        return clients


@contextmanager
def one_thread() -> Iterator[None]:
    """Sums split over threads depend on how many there are; one thread gives the same bits everywhere."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
