"""The rounds of one cell: evaluate, train and gather, client by client, then the server, with files in between."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.naive.client import Batches, NaiveClient
from benchmarks.naive.files import read_message, read_network, write_message, write_network
from benchmarks.naive.prototypes import Rows
from benchmarks.naive.server import Trainable, fit, largest_gap, merge, scaled
from tinyproto.builder import Cell
from tinyproto.core import cps
from tinyproto.core.streams import Streams, global_randomness
from tinyproto.core.task import BatchPlan, batch_plan
from tinyproto.engine.measure import Stopwatch
from tinyproto.errors import ConfigError
from tinyproto.experiment import Experiment
from tinyproto.simulation.client_store import ClientBuilder

ALGORITHMS = ("fedproto", "fedtgp", "tinyproto_fp", "tinyproto_ft")


class NaiveFederation:
    """One algorithm and seed, with the networks, samples, batches and draws of the experiment's cell."""

    def __init__(self, experiment: Experiment, cell: Cell) -> None:
        check(experiment, cell)
        self.hyper = cell.entry.hyper
        self.trains_on_server = cell.entry.spec.name in ("fedtgp", "tinyproto_ft")
        setup = experiment.setup(cell)
        self.training = setup.training
        self.streams = Streams(cell.seed)
        self.device = torch.device(experiment.device)
        masks = setup.algorithm.masks
        self.masks = None if masks is None else masks.to(self.device)
        self.folder = tempfile.TemporaryDirectory()
        self.place = Path(self.folder.name)
        self.stopwatch = Stopwatch(time.perf_counter, torch.cuda.synchronize if self.device.type == "cuda" else None)
        federation = setup.spec
        self.num_classes, self.dim = federation.num_classes, federation.proto_dim
        counted = experiment.config.model.prototypes.counted_samples
        builder = ClientBuilder(setup, experiment.data, counted, self.device)
        self.clients = [
            NaiveClient(
                builder.build(client),
                self.place,
                self.training.batch_size,
                federation.learning_rate,
                self.hyper.proto_weight,
            )
            for client in range(experiment.data.num_clients)
        ]
        with global_randomness(self.streams.derive("trainable prototypes")):
            self.network = Trainable(self.num_classes, self.dim).to(self.device)
        self.network_file = self.place / "server_network.pt"
        write_network(self.network_file, self.network)
        all_offered = getattr(self.hyper, "offered_classes", "uploaded") == "all"
        self.offered = torch.full((self.num_classes,), all_offered, device=self.device)
        self.round = 0
        self.loss: dict[str, float] = {}
        self.accuracy: dict[str, float | None] = {}

    def play(self) -> dict[str, float]:
        """Run one round; return its seconds and those of its phases."""
        self.round += 1
        start = self.stopwatch.now()
        correct, losses = {}, {}
        for client in self.clients:
            with self.stopwatch.phase("evaluate"):
                correct[client.id] = client.evaluate(self._received())
        for client in self.clients:
            plan = self._plan(client)
            with self.stopwatch.phase("train"), global_randomness(self._seed("dropout", client)):
                losses[client.id] = client.train(_batches(plan), self._received())
            with self.stopwatch.phase("prototypes"):
                client.collect(_batches(plan)[-1] if self.training.prototype_samples == "seen" else None)
            write_message(self.place / f"client{client.id}.pt", self._outgoing(client))
        with self.stopwatch.phase("server"):
            self._aggregate()
        self._record(correct, losses)
        return {"total": self.stopwatch.now() - start, **self.stopwatch.take()}

    def close(self) -> None:
        """Remove the files."""
        self.folder.cleanup()

    def _plan(self, client: NaiveClient) -> BatchPlan:
        training = self.training
        shuffle = self.streams.generator("batches", client=client.id, round_number=self.round)
        return batch_plan(
            client.train_samples, training.batch_size, training.local_epochs, last=training.last_batch,
            shuffle=shuffle if training.shuffle else None,
        )  # fmt: skip

    def _seed(self, purpose: str, client: NaiveClient) -> int:
        return self.streams.derive(purpose, client=client.id, round_number=self.round)

    def _received(self) -> Rows:
        """Read what the server sent, again for each client; reconstruct prototypes from compressed rows."""
        rows = read_message(self.place / "server.pt", self.device)
        return {label: self._whole(label, row) for label, row in rows.items()}

    def _outgoing(self, client: NaiveClient) -> Rows:
        """Return a client's rows: scaled by its count if the method scales, and cut to the class's dimensions."""
        rows = {}
        for label, prototype in client.prototypes.items():
            row = prototype * client.class_counts[label] if self._scales else prototype
            rows[label] = row if self.masks is None else row[self.masks[label]].clone()
        return rows

    def _whole(self, label: int, row: Tensor) -> Tensor:
        if self.masks is None:
            return row
        whole = torch.zeros(self.dim, device=self.device)
        whole[self.masks[label]] = row
        return whole

    @property
    def _scales(self) -> bool:
        return getattr(self.hyper, "scaling", "none") == "count"

    def _aggregate(self) -> None:
        uploads = [read_message(self.place / f"client{client.id}.pt", self.device) for client in self.clients]
        rows = self._trained(uploads) if self.trains_on_server else self._merged(uploads)
        write_message(self.place / "server.pt", rows)

    def _merged(self, uploads: Sequence[Rows]) -> Rows:
        weighed = self._scales and self.hyper.aggregation == "weighed"
        summed = self._scales and self.hyper.aggregation == "sum"
        rows = merge(uploads, summed)
        last = read_message(self.place / "server.pt", self.device)
        if weighed:
            rows = self._weighed(uploads, rows)
        elif self._scales:
            classes, samples = self._sizes()
            derived = (
                cps.derived_sum_scale(self.num_classes, samples) if summed else cps.derived_mean_scale(classes, samples)
            )
            rows = scaled(rows, self._given_or(derived))
        return {**last, **rows}

    def _weighed(self, uploads: Sequence[Rows], means: Rows) -> Rows:
        """Divide a class's mean row by the mean length of the rows, times the median client's mean prototype length."""
        typical = statistics.median(
            sum(float(row.norm()) for row in upload.values()) / sum(client.class_counts)
            for upload, client in zip(uploads, self.clients, strict=True)
        )
        lengths = {
            label: statistics.fmean(float(upload[label].norm()) for upload in uploads if label in upload)
            for label in means
        }
        return {label: row * (typical / lengths[label] if lengths[label] else 0.0) for label, row in means.items()}

    def _trained(self, uploads: Sequence[Rows]) -> Rows:
        if self._scales:
            factor = self._given_or(cps.derived_trainable_scale(*self._sizes()))
            uploads = [self._short(scaled(upload, factor)) for upload in uploads]
        uploads = [{label: self._whole(label, row) for label, row in upload.items()} for upload in uploads]
        for upload in uploads:
            for label in upload:
                self.offered[label] = True
        plan = batch_plan(
            sum(len(upload) for upload in uploads), self.hyper.server_batch_size, self.hyper.server_epochs, last="keep",
            shuffle=self.streams.generator("server batches", round_number=self.round),
        )  # fmt: skip
        margin = largest_gap(uploads, self.hyper.margin_cap)
        read_network(self.network_file, self.network)
        fit(self.network, uploads, _batches(plan), margin, self.hyper.server_learning_rate, self.offered)
        write_network(self.network_file, self.network)
        with torch.no_grad():
            learned = self.network(list(range(self.num_classes)))
        rows = {label: learned[label].clone() for label in range(self.num_classes) if self.offered[label]}
        return self._short(
            {label: row if self.masks is None else row[self.masks[label]].clone() for label, row in rows.items()}
        )

    def _short(self, rows: Rows) -> Rows:
        """Shorten rows to the length that TinyProto-FT allows."""
        if not self._scales or self.hyper.max_length is None:
            return rows
        most = self.hyper.max_length
        if most == "auto":
            width = self.dim if self.masks is None else int(self.masks[0].sum())
            most = cps.longest_prototype(self.dim, width, self.hyper.proto_weight)
        lengths = {label: float(row.double().norm()) for label, row in rows.items()}
        return {
            label: (row.double() * (most / lengths[label])).float() if lengths[label] > most else row
            for label, row in rows.items()
        }

    def _sizes(self) -> tuple[int, int]:
        counts = [count for client in self.clients for count in client.class_counts]
        return sum(count > 0 for count in counts), sum(counts)

    def _given_or(self, derived: float) -> float:
        return derived if self.hyper.global_scale == "auto" else float(self.hyper.global_scale)

    def _record(self, correct: dict[int, dict[str, int]], losses: dict[int, dict[str, float]]) -> None:
        tested = sum(client.test_samples for client in self.clients)
        rules = {rule for scores in correct.values() for rule in scores}
        self.accuracy = {
            rule: sum(scores.get(rule, 0) for scores in correct.values()) / tested if rule in rules else None
            for rule in ("head", "global", "local")
        }
        trained = sum(client.train_samples for client in self.clients)
        self.loss = {
            name: sum(losses[client.id][name] * client.train_samples for client in self.clients) / trained
            for name in ("cross_entropy", "regulariser")
        }


def check(experiment: Experiment, cell: Cell) -> None:
    """Raise ConfigError for settings that the baseline does not support, so that ratios compare equal work."""
    model, hyper, name = experiment.config.model, cell.entry.hyper, cell.entry.spec.name
    wanted = {
        f"algorithm {name}": name in ALGORITHMS,
        "a distance other than mse": getattr(hyper, "distance", "mse") == "mse",
        "prototypes other than fresh ones": getattr(hyper, "prototype_source", "fresh") == "fresh",
        "partial participation": model.train.participation == 1.0,
        "evaluation every few rounds": model.evaluate.every == 1,
        "clients with a batch of one sample": not _has_single(experiment),
    }
    for what, fine in wanted.items():
        if not fine:
            raise ConfigError(f"the naive baseline does not support {what}")


def _has_single(experiment: Experiment) -> bool:
    training = experiment.config.model.train
    return any(
        1 in batch_plan(len(share.train), training.batch_size, 1, last=training.last_batch, shuffle=None).sizes
        for share in experiment.data.shares
    )


def _batches(plan: BatchPlan) -> list[Batches]:
    """Return the plan as lists of indices, by epoch."""
    return [[piece.tolist() for piece in epoch.split(plan.sizes)] for epoch in plan.order]
