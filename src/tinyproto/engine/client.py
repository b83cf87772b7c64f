"""The client side of a round: frames in, frames out.

One entry for any number of clients: the simulator hands over all participants at once, so that a trainer may stack
them; a real client hands over its own frame.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from tinyproto.algorithms.base import Algorithm, Client, Round
from tinyproto.core.batching import LastBatch, batch_plan
from tinyproto.core.messages import Message
from tinyproto.core.prototypes import Prototypes, class_means
from tinyproto.core.streams import Streams
from tinyproto.core.task import BatchPlan, Trainer
from tinyproto.engine.evaluate import score
from tinyproto.engine.stopwatch import Stopwatch
from tinyproto.wire.codec import encode
from tinyproto.wire.frame import Header, Kind
from tinyproto.wire.validate import Expectation, open_frame

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


class _Job(NamedTuple):
    """One client's share of a call: what it was asked, and with which global prototypes it classifies."""

    client: Client
    asked: Header
    global_: Prototypes | None


class ClientRuntime:
    """Runs the client side of an algorithm for the clients it was given."""

    def __init__(
        self, clients: Mapping[int, Client], algorithm: Algorithm, trainer: Trainer, training: LocalTraining,
        streams: Streams, expectation: Expectation, stopwatch: Stopwatch,
    ) -> None:  # fmt: skip
        self.clients = clients
        self.side = algorithm.client
        self.trainer = trainer
        self.training = training
        self.streams = streams
        self.expectation = expectation
        self.stopwatch = stopwatch
        for client in clients.values():
            self.side.init(client, streams)

    def handle(self, frames: Mapping[int, bytes]) -> dict[int, bytes]:
        """Answer every frame: decode, take in, evaluate what arrived, train, encode."""
        jobs = [self._open(client, frame) for client, frame in sorted(frames.items())]
        with self.stopwatch.phase("evaluate"):
            metrics = self._evaluate([job for job in jobs if job.asked.evaluate])
        updates = self._train([job for job in jobs if job.asked.kind is Kind.TRAIN])
        replies = {}
        for job in jobs:
            client = job.client.id
            message = updates.get(client, Message()).with_metrics(metrics.get(client, {}))
            if job.asked.kind is Kind.HELLO:
                message = Message(metrics=self._introduction(job.client))
            header = Header(job.asked.kind.answer, job.asked.round_number, client, self.expectation.digest)
            replies[client] = encode(header, message)
        return replies

    def _open(self, client_id: int, frame: bytes) -> _Job:
        kinds = (Kind.HELLO, Kind.TRAIN, Kind.EVALUATE)
        decoded = open_frame(frame, self.expectation, client=client_id, round_number=None, kinds=kinds)
        client = self.clients[client_id]
        if decoded.header.kind is Kind.HELLO:
            return _Job(client, decoded.header, None)
        return _Job(client, decoded.header, self.side.receive(client, decoded.message))

    def _introduction(self, client: Client) -> dict[str, float]:
        """The hello: sizes, as the scaling counts them; never the sizes of classes."""
        return {
            "train_samples": float(len(client.train)),
            "counted_samples": float(client.class_counts.sum()),
            "counted_classes": float((client.class_counts > 0).sum()),
        }

    def _evaluate(self, jobs: Sequence[_Job]) -> dict[int, dict[str, float]]:
        clients = [job.client for job in jobs]
        features = self.trainer.features([client.model for client in clients], [client.test for client in clients])
        return {
            job.client.id: score(job.client.model.head, rows, job.client.test.labels, job.global_, job.client.local)
            for job, rows in zip(jobs, features, strict=True)
        }

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
