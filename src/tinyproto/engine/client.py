"""The client side of a round: frames in, frames out.

`ClientRuntime.handle` serves any number of clients: the simulator passes the frames of all participants at once, so
that a trainer may stack them; a real client passes its own frame. A client whose training diverged is put back to its
last good state (`LastGood`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, zip_longest
from typing import Literal, NamedTuple, Protocol, cast

import torch
from torch import Tensor

from tinyproto.algorithms.base import Algorithm, Client, ClientInfo, Round
from tinyproto.core.prototypes import Message, Prototypes, class_means, on_host
from tinyproto.core.streams import Streams
from tinyproto.core.task import BatchPlan, LastBatch, State, Trainer, batch_plan
from tinyproto.engine.checks import hello, unsendable
from tinyproto.engine.measure import Scored, Stopwatch, scores
from tinyproto.errors import WireError
from tinyproto.wire.codec import Decoded, encode
from tinyproto.wire.frame import Frames, Header, Kind
from tinyproto.wire.validate import LONGEST_UPLOAD, Expectation, diverged, open_frame

PrototypeSamples = Literal["all", "seen"]
"""Local prototypes are means over all training samples, or over those in the last epoch's batches."""


@dataclass(frozen=True)
class LocalTraining:
    """A client's passes over its samples in a run."""

    rounds: int
    local_epochs: int = 1
    batch_size: int = 32
    shuffle: bool = True
    last_batch: LastBatch = "join"
    prototype_samples: PrototypeSamples = "all"


class Clients(Protocol):
    """The clients that a runtime serves, by id, each initialised by its algorithm."""

    def __contains__(self, client: object, /) -> bool: ...

    def __getitem__(self, client: int, /) -> Client: ...

    def info(self, client: int, /) -> ClientInfo:
        """Return what a client reports about itself, without loading its network."""
        ...


@dataclass
class Steps:
    """Steps of SGD taken, and computed: these are more if clients of unequal size run together."""

    done: int = 0
    paid: int = 0


class _Job(NamedTuple):
    """One client, and the header of its frame."""

    client: Client
    asked: Header


class ClientRuntime:
    """Runs the client side of an algorithm."""

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
    ) -> Mapping[int, bytes]:
        """Answer each frame: decode, apply, evaluate what was received, train. An answer is encoded when it is read.

        With `left_out`, a client whose training diverged is put back to its state before the round and answers with
        its scores only; the reason is added to `left_out`.
        """
        opened: list[Decoded] = []
        for client, frame in sorted(frames.items()):
            opened.append(self._open(client, frame, opened[-1] if opened else None))
        greeted = [decoded.header for decoded in opened if decoded.header.kind is Kind.HELLO]
        answers = {header.client: (header, hello(self.clients.info(header.client))) for header in greeted}
        asked = [decoded for decoded in opened if decoded.header.kind is not Kind.HELLO]
        if left_out is not None:
            self.last_good.keep(
                [self.clients[frame.header.client] for frame in asked if frame.header.kind is Kind.TRAIN]
            )
        jobs = [self._receive(decoded) for decoded in asked]  # only once all frames are valid
        del opened, asked  # messages and their copies on the device, which are not needed while clients train
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
            answers[client] = job.asked, message
        return Frames(answers, lambda client: self._answer(*answers[client]))

    def _answer(self, asked: Header, message: Message) -> bytes:
        header = Header(asked.kind.answer, asked.round_number, asked.client, self.expectation.digest)
        draws = partial(self.streams.generator, "rounding", client=asked.client, round_number=asked.round_number)
        return encode(header, message, self.expectation.coding(header.kind, draws))

    def _open(self, client: int, frame: bytes, before: Decoded | None) -> Decoded:
        """Open a client's frame; clients that are sent the same share the message of the first."""
        kinds = (Kind.HELLO, Kind.TRAIN, Kind.EVALUATE)
        decoded = open_frame(frame, self.expectation, client=client, round_number=None, kinds=kinds, last=before)
        if client not in self.clients:
            raise WireError(f"frame of client {client}, refused: client: it is unknown on this side")
        last = {Kind.HELLO: 0, Kind.TRAIN: self.training.rounds}.get(decoded.header.kind, self.training.rounds + 1)
        if not min(last, 1) <= decoded.header.round_number <= last:
            raise WireError(
                f"frame of client {client}, refused: round: {decoded.header.round_number} is not in 1 … {last}"
            )
        return decoded

    def _receive(self, decoded: Decoded) -> _Job:
        client = self.clients[decoded.header.client]
        message = decoded.message
        if message.rows is not None:  # one copy on the device for all clients
            message = replace(message, rows=message.on(client.device).rows)
        client.received = self.side.receive(client, message)
        return _Job(client, decoded.header)

    def _evaluate(self, jobs: Sequence[_Job]) -> dict[int, dict[str, float]]:
        clients = [job.client for job in jobs if len(job.client.test)]
        features = self.trainer.features([client.model for client in clients], [client.test for client in clients])
        found = scores(
            [
                Scored(client.model.head, rows, client.test.labels, client.received, client.local)
                for client, rows in zip(clients, features, strict=True)
            ]
        )
        nothing = {job.client.id: {"test_samples": 0.0} for job in jobs}
        return nothing | {client.id: metrics for client, metrics in zip(clients, found, strict=True)}

    def _train(self, jobs: Sequence[_Job]) -> dict[int, Message]:
        plans = [self._plan(job) for job in jobs]
        tasks = []
        for (client, asked), plan in zip(jobs, plans, strict=True):
            seed = self.streams.derive("dropout", client=client.id, round_number=asked.round_number)
            tasks.append(self.side.task(client, plan, seed))
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
        messages = []
        for job, result in zip(jobs, results, strict=True):
            if source == "running" and result.observed is not None:
                job.client.local = result.observed.means()
            round_ = Round(job.asked.round_number, self.training.rounds)
            messages.append(self.side.update(job.client, result, round_).with_metrics(result.last_epoch()))
        return {job.client.id: message for job, message in zip(jobs, on_host(messages), strict=True)}

    def _put_back_diverged(self, jobs: Sequence[_Job], updates: dict[int, Message]) -> dict[int, WireError]:
        """Undo the round for clients whose upload the server would refuse, or whose weights are not finite."""
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

    def _refresh_prototypes(self, jobs: Sequence[_Job], plans: Sequence[BatchPlan]) -> None:
        """Compute local prototypes, eq. (3), of each client with its current network, if it has samples."""
        with self.stopwatch.phase("prototypes"):
            data = [job.client.train for job in jobs]
            if self.training.prototype_samples == "seen":
                data = [samples.subset(plan.order[-1]) for samples, plan in zip(data, plans, strict=True)]
            used = [(job.client, samples) for job, samples in zip(jobs, data, strict=True) if len(samples)]
            features = self.trainer.features([client.model for client, _ in used], [samples for _, samples in used])
            for (client, samples), rows in zip(used, features, strict=True):
                client.local = class_means(rows, samples.labels, client.num_classes)


_Place = tuple[MutableMapping[str, Tensor | None], str]
"""The parameters or buffers of a module, and a name in them."""


class _Weights:
    """A client's parameters and buffers, and a copy of them: first floats, then counters."""

    def __init__(self, client: Client) -> None:
        self.model = client.model  # whose weights they are
        # Places rather than tensors, since a network may replace a buffer; walking it costs more than copying it.
        self._places: tuple[list[_Place], list[_Place]] = ([], [])
        self._empty: list[_Place] = []  # buffers without a value, which training may fill
        for root in (client.model, client.modules):
            for module in root.modules():
                for owner in (module._parameters, module._buffers):
                    place = cast(MutableMapping[str, Tensor | None], owner)
                    for name, tensor in owner.items():  # of a TorchScript module these are no dicts
                        fitting = self._empty if tensor is None else self._places[not tensor.is_floating_point()]
                        fitting.append((place, name))
        self.copies = tuple([torch.empty_like(tensor) for tensor in kind] for kind in self.tensors())
        self._shapes = [copy.shape for copy in chain(*self.copies)]

    def tensors(self) -> tuple[list[Tensor], list[Tensor]]:
        """Return the current tensors of the places that had one."""
        floats, counters = ([cast(Tensor, owner[name]) for owner, name in places] for places in self._places)
        return floats, counters

    def floats(self) -> Iterator[tuple[Tensor, Tensor | None]]:
        """Yield all current floats, also those at empty places, and the copies of the others."""
        for (owner, name), kept in zip_longest((*self._places[0], *self._empty), self.copies[0]):
            tensor = owner[name]
            if tensor is not None and tensor.is_floating_point():
                yield tensor, kept

    @property
    def covers_all(self) -> bool:
        """Return True if the same places have a tensor, of the same shape, as when this was made."""
        if any(owner[name] is not None for owner, name in self._empty):
            return False
        held = (owner[name] for owner, name in chain(*self._places))
        return [None if tensor is None else tensor.shape for tensor in held] == self._shapes

    def restore_places(self) -> None:
        """Let the same places have such tensors as when this was made; the values of new ones mean nothing."""
        for owner, name in self._empty:
            owner[name] = None
        for (owner, name), kept in zip(chain(*self._places), chain(*self.copies), strict=True):
            tensor = owner[name]
            if tensor is None or tensor.shape != kept.shape:
                owner[name] = torch.empty_like(kept)


_Rest = tuple[State, Prototypes, Prototypes | None]
"""The rest of a client's memory: `state`, `local`, `received`. What is replaced rather than changed needs no copy."""


class LastGood:
    """Keeps clients as they were before training, and finds those whose weights are not finite.

    The memory for copies stays from round to round. A copy of the tensors of 20 networks of the paper takes about 2 ms
    on an H200; cloning each tensor would take 55 ms.
    """

    def __init__(self) -> None:
        self._weights: dict[int, _Weights] = {}
        self._rest: dict[int, _Rest] = {}

    @torch.no_grad()
    def keep(self, clients: Sequence[Client]) -> None:
        """Keep these clients as they are now."""
        if not clients:
            return
        weights = [self._of(client) for client in clients]
        self._weights |= {client.id: one for client, one in zip(clients, weights, strict=True)}
        _copy_all([one.tensors() for one in weights], [one.copies for one in weights])
        self._rest = {
            client.id: ({name: tensor.clone() for name, tensor in client.state.items()}, client.local, client.received)
            for client in clients
        }

    @torch.no_grad()
    def put_back(self, client: Client) -> None:
        """Put a client back to the state kept last."""
        weights = self._weights[client.id]
        client.model = weights.model
        weights.restore_places()
        _copy_all([weights.copies], [weights.tensors()])
        state, client.local, client.received = self._rest[client.id]
        client.state = dict(state)

    @torch.no_grad()
    def diverged(self, clients: Sequence[Client]) -> set[int]:
        """Return the clients with a weight that is NaN or infinite and was not before, as in a mask of -∞.

        Only tensors whose norm is not finite are looked at, as one of large weights may be, too. The host waits for the
        device once.
        """
        floats = [(client.id, *pair) for client in clients for pair in self._floats(client)]
        tensors = [tensor for _, tensor, _ in floats]
        if not floats or _surely_finite(tensors):
            return set()
        norms = torch.stack(torch._foreach_norm(tensors)).isfinite().tolist()
        suspects = [one for one, finite in zip(floats, norms, strict=True) if not finite]
        return {client for client, tensor, kept in suspects if _is_broken(tensor, kept)}

    def _floats(self, client: Client) -> Iterable[tuple[Tensor, Tensor | None]]:
        known = self._weights.get(client.id)
        if known is not None and known.model is client.model:
            return known.floats()
        return [(tensor, None) for tensor, _ in _Weights(client).floats()]

    def forget(self) -> None:
        """Free the memory."""
        self._weights.clear()
        self._rest.clear()

    def _of(self, client: Client) -> _Weights:
        known = self._weights.get(client.id)
        return known if known is not None and known.model is client.model and known.covers_all else _Weights(client)


def _copy_all(given: Sequence[Sequence[list[Tensor]]], held: Sequence[Sequence[list[Tensor]]]) -> None:
    """Copy the tensors of clients into others, kind by kind: mixed types in one call would be copied one by one."""
    for kind in (0, 1):
        sources = [tensor for client in given for tensor in client[kind]]
        if sources:
            torch._foreach_copy_([tensor for client in held for tensor in client[kind]], sources)


def _is_broken(tensor: Tensor, before: Tensor | None) -> bool:
    broken = ~tensor.isfinite()
    if before is not None and before.shape == tensor.shape:
        broken &= before.isfinite()
    return bool(broken.any())


_UNSCALED = (torch.float16, torch.float32, torch.float64)
"""The types that the check of gradient scalers knows on a GPU."""


def _surely_finite(tensors: Sequence[Tensor]) -> bool:
    """Return True if a GPU finds no NaN and no infinity; False decides nothing.

    Norms are thousands of small tensors, which the host has to make. The check that gradient scalers use has one
    result. It multiplies the weights by 1, which changes no bit, but writes, which an expanded tensor does not allow.
    """
    if not all(tensor.is_cuda and tensor.is_contiguous() and tensor.dtype in _UNSCALED for tensor in tensors):
        return False
    return _finite_by_scaling(tensors)


def _finite_by_scaling(tensors: Sequence[Tensor]) -> bool:
    """Return True if no value is NaN or infinite."""
    found, one = tensors[0].new_zeros(1, dtype=torch.float32), tensors[0].new_ones(1, dtype=torch.float32)
    for dtype in {tensor.dtype for tensor in tensors}:
        torch._amp_foreach_non_finite_check_and_unscale_([each for each in tensors if each.dtype == dtype], found, one)
    return not found.item()
