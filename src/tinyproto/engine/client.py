"""The client side of a round: frames in, frames out.

One entry for any number of clients: the simulator hands over all participants at once, so that a trainer may stack
them; a real client hands over its own frame.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

import torch

from tinyproto.algorithms.base import Algorithm, Client, ClientInfo, Round
from tinyproto.core.messages import Message
from tinyproto.core.prototypes import class_means
from tinyproto.core.streams import Streams
from tinyproto.core.task import BatchPlan, LastBatch, Trainer, batch_plan
from tinyproto.engine.evaluate import score
from tinyproto.engine.last_good import LastGood
from tinyproto.engine.state_check import unsendable
from tinyproto.engine.stopwatch import Stopwatch
from tinyproto.errors import WireError
from tinyproto.wire.codec import Decoded, encode
from tinyproto.wire.frame import Header, Kind
from tinyproto.wire.validate import LONGEST_UPLOAD, Expectation, diverged, open_frame

PrototypeSamples = Literal["all", "seen"]
"""Local prototypes are means over all training samples, or over those in the last epoch's batches."""


@dataclass(frozen=True)
class LocalTraining:
    """How a client goes through its samples."""

    rounds: int
    local_epochs: int = 1
    batch_size: int = 32
    shuffle: bool = True
    last_batch: LastBatch = "join"
    prototype_samples: PrototypeSamples = "all"


class Clients(Protocol):
    """The clients that a runtime serves, by id; a client has been given what its algorithm has it remember."""

    def __contains__(self, client: object, /) -> bool: ...

    def __getitem__(self, client: int, /) -> Client: ...

    def info(self, client: int, /) -> ClientInfo:
        """What a client says of itself; asking for it does not ask for its network."""
        ...


@dataclass
class Steps:
    """Of SGD: taken, and computed, which is more where clients of unequal size run together."""

    done: int = 0
    paid: int = 0


class _Job(NamedTuple):
    """One client's share of a call."""

    client: Client
    asked: Header


class ClientRuntime:
    """Runs the client side of an algorithm for the clients it was given."""

    def __init__(
        self, clients: Clients, algorithm: Algorithm, trainer: Trainer, training: LocalTraining,
        streams: Streams, expectation: Expectation, stopwatch: Stopwatch,
    ) -> None:  # fmt: skip
        self.clients = clients
        self.side = algorithm.client
        self.trainer = trainer
        self.training = training
        self.streams = streams
        self.expectation = expectation
        self.stopwatch = stopwatch
        self.steps = Steps()
        self.last_good = LastGood()

    def handle(
        self, frames: Mapping[int, bytes], left_out: MutableMapping[int, WireError] | None = None
    ) -> dict[int, bytes]:
        """Answer every frame: decode, take in, evaluate what arrived, train, encode.

        With `left_out`, a client whose training diverged goes back to what it was before and answers with its scores
        alone; the reason is put there.
        """
        opened = [self._open(client, frame) for client, frame in sorted(frames.items())]
        greeted = [decoded.header for decoded in opened if decoded.header.kind is Kind.HELLO]
        replies = {header.client: self._answer(header, self._introduction(header.client)) for header in greeted}
        asked = [decoded for decoded in opened if decoded.header.kind is not Kind.HELLO]
        if left_out is not None:
            self.last_good.keep(
                [self.clients[frame.header.client] for frame in asked if frame.header.kind is Kind.TRAIN]
            )
        jobs = [self._take_in(decoded) for decoded in asked]  # only once all frames are found good
        if self.side.prototype_source == "received":
            evaluated = [job for job in jobs if job.asked.evaluate]
            self._refresh_prototypes(evaluated, [self._plan(job) for job in evaluated])
        with self.stopwatch.phase("evaluate"):
            metrics = self._evaluate([job for job in jobs if job.asked.evaluate])
        trained = [job for job in jobs if job.asked.kind is Kind.TRAIN]
        updates = self._train(trained)
        if left_out is not None:
            left_out.update(self._put_back_diverged(trained, updates))
        for job in jobs:
            client = job.client.id
            message = updates.get(client, Message()).with_metrics(metrics.get(client, {}))
            replies[client] = self._answer(job.asked, message)
        return replies

    def _answer(self, asked: Header, message: Message) -> bytes:
        header = Header(asked.kind.answer, asked.round_number, asked.client, self.expectation.digest)

        def draws() -> torch.Generator:
            return self.streams.generator("rounding", client=asked.client, round_number=asked.round_number)

        return encode(header, message, self.expectation.coding(header.kind, draws))

    def _open(self, client: int, frame: bytes) -> Decoded:
        kinds = (Kind.HELLO, Kind.TRAIN, Kind.EVALUATE)
        decoded = open_frame(frame, self.expectation, client=client, round_number=None, kinds=kinds)
        if client not in self.clients:
            raise WireError(f"frame of client {client}, refused: client: no such client is here")
        last = {Kind.HELLO: 0, Kind.TRAIN: self.training.rounds}.get(decoded.header.kind, self.training.rounds + 1)
        if not min(last, 1) <= decoded.header.round_number <= last:
            raise WireError(
                f"frame of client {client}, refused: round: {decoded.header.round_number} is not in 1 … {last}"
            )
        return decoded

    def _take_in(self, decoded: Decoded) -> _Job:
        client = self.clients[decoded.header.client]
        client.received = self.side.receive(client, decoded.message)
        return _Job(client, decoded.header)

    def _introduction(self, client: int) -> Message:
        """The hello: sizes, as the scaling counts them; never the sizes of classes."""
        info = self.clients.info(client)
        return Message(
            metrics={
                "train_samples": float(info.train_samples),
                "counted_samples": float(info.counted_samples),
                "counted_classes": float(info.counted_classes),
            }
        )

    def _evaluate(self, jobs: Sequence[_Job]) -> dict[int, dict[str, float]]:
        clients = [job.client for job in jobs if len(job.client.test)]
        features = self.trainer.features([client.model for client in clients], [client.test for client in clients])
        scores = {job.client.id: {"test_samples": 0.0} for job in jobs}
        for client, rows in zip(clients, features, strict=True):
            scores[client.id] = score(client.model.head, rows, client.test.labels, client.received, client.local)
        return scores

    def _train(self, jobs: Sequence[_Job]) -> dict[int, Message]:
        plans = [self._plan(job) for job in jobs]
        tasks = [
            self.side.task(job.client, plan, self._dropout_seed(job)) for job, plan in zip(jobs, plans, strict=True)
        ]
        source = self.side.prototype_source
        if source == "stale":
            self._refresh_prototypes(jobs, plans)
        with self.stopwatch.phase("train"):
            results = self.trainer.fit(tasks)
        for result in results:
            self.steps.done += result.steps
            self.steps.paid += result.steps_computed
        if source == "fresh":
            self._refresh_prototypes(jobs, plans)
        updates = {}
        for job, result in zip(jobs, results, strict=True):
            if source == "running" and result.observed is not None:
                job.client.local = result.observed.means()
            round_ = Round(job.asked.round_number, self.training.rounds)
            message = self.side.update(job.client, result, round_)
            updates[job.client.id] = message.with_metrics(result.last_epoch())
        return updates

    def _put_back_diverged(self, jobs: Sequence[_Job], updates: dict[int, Message]) -> dict[int, WireError]:
        """Undo the round for clients with an upload that the server refuses, or with weights that are no numbers."""
        found: dict[int, WireError] = {}
        with self.stopwatch.phase("train"):
            broken = self.last_good.diverged([job.client for job in jobs])
        for job in jobs:
            client = job.client.id
            problem = unsendable(updates[client], self.expectation.up, LONGEST_UPLOAD)
            if problem is None and client in broken:
                problem = "NaN or infinity in the weights"
            if problem is not None:
                self.last_good.put_back(job.client)
                updates[client] = Message()
                found[client] = diverged(client, job.asked.round_number, problem, self.expectation.remedies)
        return found

    def _plan(self, job: _Job) -> BatchPlan:
        client, training = job.client, self.training
        shuffle = self.streams.generator("batches", client=client.id, round_number=job.asked.round_number)
        return batch_plan(
            len(client.train),
            training.batch_size,
            training.local_epochs,
            last=training.last_batch,
            shuffle=shuffle if training.shuffle else None,
        )

    def _dropout_seed(self, job: _Job) -> int:
        return self.streams.derive("dropout", client=job.client.id, round_number=job.asked.round_number)

    def _refresh_prototypes(self, jobs: Sequence[_Job], plans: Sequence[BatchPlan]) -> None:
        """Eq. (3) for every client, with its network as it is now."""
        with self.stopwatch.phase("prototypes"):
            clients = [job.client for job in jobs]
            data = [client.train for client in clients]
            if self.training.prototype_samples == "seen":
                data = [samples.subset(plan.order[-1]) for samples, plan in zip(data, plans, strict=True)]
            features = self.trainer.features([client.model for client in clients], data)
            for client, samples, rows in zip(clients, data, features, strict=True):
                client.local = class_means(rows, samples.labels, client.num_classes)
