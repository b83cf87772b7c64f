"""The simulation of one cell: a server here, clients behind a channel, one round after another."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from tinyproto.algorithms.base import Round
from tinyproto.builder import Setup
from tinyproto.config.schema import EvaluateSection, TrainSection
from tinyproto.core.streams import one_thread
from tinyproto.core.task import Trainer
from tinyproto.data.dataset import CountedSamples, FederatedData
from tinyproto.engine.client import ClientRuntime, Steps
from tinyproto.engine.eager import EagerTrainer
from tinyproto.engine.measure import Clock, Meter, Stopwatch
from tinyproto.engine.participation import Trace, plan_round, with_absences
from tinyproto.engine.round import RoundRecord, play_round
from tinyproto.engine.server import Channel, Reply, RoundPlan, ServerRuntime
from tinyproto.errors import LeftOutError, WireError
from tinyproto.memory import PeakMemory
from tinyproto.simulation.client_store import UNBOUNDED, ClientBuilder, ClientStore
from tinyproto.storage.client_files import ClientFiles, Stored, snapshot_clients
from tinyproto.tracking.recorder import StoredClients
from tinyproto.tracking.summary import RoundResult

NAMED = 5
"""The number of left-out clients that an error names."""

EAGER_FRAME_BYTES = 2**22
"""Frames that the eager trainer's clients are given together on a CPU: the next ones use the same memory again."""


@dataclass
class HostReport:
    """A host's account of the work since the last report."""

    seconds: Mapping[str, float]  # per phase on the clients' side
    notes: Sequence[str] = ()  # what a user should know of how clients are trained
    steps: Steps | None = None  # of SGD; None if they are not counted
    other_memory: int = 0  # peak bytes of the other processes that hold clients


class ClientHost(Channel, StoredClients, Protocol):
    """A channel to simulated clients, which are in this process or in workers."""

    def snapshot(self, clients: Sequence[int], parts: Collection[str]) -> Mapping[str, Tensor]:
        """Return copies of some parts of some clients, by name."""
        ...

    def take_report(self) -> HostReport:
        """Return what happened since the last call."""
        ...


@dataclass
class Simulation:
    """One algorithm, one seed, one federation."""

    server: ServerRuntime
    host: ClientHost
    num_clients: int
    train: TrainSection
    evaluate: EvaluateSection
    dropout: float | Trace
    memory: PeakMemory  # of this process
    other_memory: int = 0  # peak bytes of the other processes that hold clients

    @property
    def peak_memory(self) -> int:
        """Return the peak bytes of all processes so far."""
        return self.memory.read() + self.other_memory

    def rounds(self, first: int = 1) -> Iterator[RoundResult]:
        """Run all rounds from `first` on, then the closing exchange; the hello comes before round 1."""
        total, stopwatch, meter = self.train.rounds, self.server.stopwatch, Meter()
        if first == 1:
            for reason in self.server.greet(self.host, range(self.num_clients), meter).values():
                raise reason
        for number in range(first, total + 2):
            start = stopwatch.now()
            with one_thread():
                plan = self._plan(Round(number, total))
                record = play_round(self.server, self.host, plan, meter)
            check_left_out(record, plan.participants, self.train.max_left_out)
            report = self.host.take_report()
            self.other_memory = report.other_memory
            seconds = {**report.seconds, **stopwatch.take()}
            notes = (*report.notes, *self.server.trainer.notes)
            self.server.trainer.notes.clear()
            yield RoundResult(record, {"total": stopwatch.now() - start, **seconds}, notes, report.steps)
            meter = Meter()

    def _plan(self, round_: Round) -> RoundPlan:
        streams = self.server.streams
        plan = plan_round(
            range(self.num_clients), round_, self.train.participation, self.evaluate.every, self.evaluate.clients,
            streams,
        )  # fmt: skip
        return with_absences(plan, self.dropout, self.train.late, streams)


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


@dataclass
class Loopback:
    """Clients in this process; as many as fit into memory are handled together, so that a trainer may stack them."""

    clients: ClientRuntime
    store: ClientStore
    most_bytes: float = math.inf  # of frames at a time

    def exchange(self, round_number: int, frames: Mapping[int, bytes]) -> Iterable[Reply]:  # noqa: ARG002
        """Deliver the frames and yield the replies; a client whose training diverged has been restored."""
        for portion in self.store.portions(frames):
            for batch in batches(portion, frames, self.most_bytes):
                left_out: dict[int, WireError] = {}
                with self.store.holding(list(batch)):
                    replies = self.clients.handle(batch, left_out)
                if len(batch) < len(frames) or not self.store.holds_all:
                    self.clients.last_good.forget()
                for client, frame in replies.items():
                    yield Reply(client, frame, left_out.get(client))
                del replies  # uploads would stay while the next clients train

    def save(self) -> Mapping[int, Stored]:
        """Write all that changed; return the places of the clients that ever changed."""
        return self.store.save()

    def restore(self, stored: Mapping[int, Stored]) -> None:
        """Set the clients to the state they had when they were saved."""
        self.store.restore(stored)

    def snapshot(self, clients: Sequence[int], parts: Collection[str]) -> Mapping[str, Tensor]:
        """Return copies of some parts of some clients, by name."""
        return dict(snapshot_clients((self.store[client] for client in clients), parts))

    def take_report(self) -> HostReport:
        """Return seconds, the trainer's notes, and the steps taken and computed since the last call."""
        report = HostReport(self.clients.stopwatch.take(), list(self.clients.trainer.notes), self.clients.steps)
        self.clients.trainer.notes.clear()
        self.clients.steps = Steps()
        return report


def batches(clients: Iterable[int], frames: Mapping[int, bytes], most_bytes: float) -> Iterator[dict[int, bytes]]:
    """Yield the frames of these clients in batches of limited size."""
    batch: dict[int, bytes] = {}
    held = 0
    for client in clients:
        batch[client] = frames[client]
        held += len(batch[client])
        if held >= most_bytes:
            yield batch
            batch, held = {}, 0
    if batch:
        yield batch


def make_loopback(
    setup: Setup, data: FederatedData, trainer: Trainer, device: torch.device,
    counted_samples: CountedSamples = "train", only: Collection[int] | None = None,
    files: ClientFiles | None = None, memory: float = UNBOUNDED,
    clock: Clock = time.perf_counter,
) -> Loopback:  # fmt: skip
    """Build the clients of a simulation in this process: all clients, or `only` some.

    Clients beyond `memory` bytes go to the files.
    """
    stopwatch = make_stopwatch(clock, device)
    ids = range(data.num_clients) if only is None else only
    builder = ClientBuilder(setup, data, counted_samples, device)
    store = ClientStore(ids, builder, files or ClientFiles(), memory, stopwatch)
    most_bytes = EAGER_FRAME_BYTES if isinstance(trainer, EagerTrainer) and device.type == "cpu" else math.inf
    return Loopback(setup.clients(store, trainer, stopwatch), store, most_bytes)


def make_stopwatch(clock: Clock, device: torch.device) -> Stopwatch:
    """Return a stopwatch that waits for the device before it reads the clock."""
    return Stopwatch(clock, partial(torch.cuda.synchronize, device) if device.type == "cuda" else None)
