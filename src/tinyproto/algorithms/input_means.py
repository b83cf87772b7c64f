"""InputMeans: clients exchange means of small groups of their samples, once, and train on each other's means.

These are prototypes before the network instead of after it, so networks may differ in everything but their input. A
client splits the samples of a class into groups of g and sends the mean of each until the server has them, as a rule in
its first round only. The server passes on what a client does not have, in pages. Each epoch mixes received means into
the client's own samples, with the label of their class; the mixed batches are as large as the client's first one.
Features are pulled towards the rows of `anchors`; `proto_weight: 0` leaves that out.

A mean of g samples says more about them than a prototype does: docs/explain/what_communication_buys.md measures it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import torch
from torch import Tensor
from torch.nn import functional

from tinyproto.algorithms.anchors import AnchorsClient, anchored
from tinyproto.algorithms.base import (
    Algorithm,
    AlgorithmSpec,
    Client,
    ClientInfo,
    FederationSpec,
    Round,
    Update,
    not_negative,
    positive,
)
from tinyproto.algorithms.tinyproto_hyper import FixedLengthHyper
from tinyproto.core.prototypes import AtMost, Message, Prototypes
from tinyproto.core.streams import Streams
from tinyproto.core.task import BatchPlan, FitResult, State, Task, TensorData, Trainer, batch_sizes

MOST_MEANS = 50
"""The most means of a class in one frame; more go with the next rounds."""

LONGEST_MEAN = 1e6
"""The largest norm of a mean that the server passes on."""

KNOWN, BEFORE, HELD = "means_known", "means_before", "means_held"
"""Metrics: how many of a client's means the server has; how many of others the client had before this frame, as far as
the server knows; how many it has, as the client says. A frame that comes twice is therefore stored once."""


@dataclass(frozen=True)
class InputMeansHyper(FixedLengthHyper):
    """The hyper-parameters of anchors, and of the means that are exchanged."""

    group_size: Annotated[int, "g, samples per mean; a class with fewer samples sends none"] = 3
    means_per_class: Annotated[int, "the most means that a client sends of a class"] = 5
    mix: Annotated[float, "received means in an epoch per sample of the client's own; 0 or more"] = 1.0
    classes: Annotated[
        Literal["held", "all"], "received means to train on: of classes the client holds, as often as these; or of all"
    ] = "held"

    def __post_init__(self) -> None:
        super().__post_init__()
        positive(group_size=self.group_size, means_per_class=self.means_per_class)
        not_negative(mix=self.mix)
        if self.means_per_class > MOST_MEANS:
            raise ValueError(f"means_per_class must be at most {MOST_MEANS}, not {self.means_per_class}")


def group_means(
    data: TensorData, num_classes: int, hyper: InputMeansHyper, draws: torch.Generator
) -> dict[str, Tensor]:
    """Return means of disjoint groups of g samples by class, (m, F) for each class that has a whole group."""
    found = {}
    for label in range(num_classes):
        places = (data.labels == label).nonzero()[:, 0].cpu()
        groups = min(len(places) // hyper.group_size, hyper.means_per_class)
        if groups:
            places = places[torch.randperm(len(places), generator=draws)[: groups * hyper.group_size]]
            samples = _values(data.subset(places)).flatten(1).float().cpu()
            found[str(label)] = samples.view(groups, hyper.group_size, -1).mean(1)
    return found


def _values(data: TensorData) -> Tensor:
    """Return images as stored, and other inputs as networks see them, where columns of all units count alike."""
    return data.batch(slice(None)).inputs if data.pool.is_floating_point() else data.inputs


class InputMeansClient(AnchorsClient):
    """Sends its means until the server has them, and mixes those of others into its batches."""

    hyper: InputMeansHyper

    def init(self, client: Client, streams: Streams) -> None:
        """Draw the groups once, so that no later message tells more about them."""
        draws = streams.generator("input means", client=client.id)
        means = group_means(client.train, client.num_classes, self.hyper, draws)
        client.state |= {f"mean {label}": values for label, values in means.items()}
        width = math.prod(client.train.pool.shape[1:])
        client.state |= {"others": torch.zeros(0, width), "labels": torch.zeros(0, dtype=torch.int64)}
        super().init(client, streams)

    def receive(self, client: Client, message: Message) -> Prototypes:
        """Keep the means received, in place of those that the server does not know to be here; return the anchors."""
        before = int(message.metrics.get(BEFORE, 0))
        if before <= len(client.state["labels"]):  # else the client has lost its state, and will say so
            sent = sorted(message.tensors.items())
            device = client.state["labels"].device
            labels = [torch.full((len(values),), int(label)).to(device) for label, values in sent]
            others = [values.to(device) for _, values in sent]
            client.state["others"] = torch.cat([client.state["others"][:before], *others])
            client.state["labels"] = torch.cat([client.state["labels"][:before], *labels])
        client.state["known"] = torch.tensor([message.metrics.get(KNOWN, 0.0)])
        return super().receive(client, message)

    def update(self, client: Client, result: FitResult, round_: Round) -> Message:  # noqa: ARG002
        """Return the client's means unless the server has them, and how many of others the client has."""
        names = [name for name in client.state if name.startswith("mean ") and not float(client.state["known"])]
        return Message(
            tensors={name.removeprefix("mean "): client.state[name].cpu() for name in names},
            metrics={HELD: float(len(client.state["labels"]))},
        )

    def task(self, client: Client, plan: BatchPlan, seed: int) -> Task:
        """Return the client's epochs with received means among its samples."""
        task = super().task(client, plan, seed)
        rows = {name: client.state[name] for name in ("values", "present")}
        weights = self._weights(client)
        count = round(self.hyper.mix * len(client.train))
        if not count or not bool(weights.any()):
            return replace(task, context=rows)
        draws = torch.Generator().manual_seed(seed)
        picked = torch.multinomial(weights, plan.epochs * count, replacement=True, generator=draws)
        order = torch.cat([plan.order, len(client.train) + picked.view(plan.epochs, count)], 1)
        shuffled = [row[torch.randperm(len(row), generator=draws)] for row in order]
        sizes = batch_sizes(order.shape[1], plan.sizes[0], last="join")
        return replace(
            task, context=rows, data=self._mixed(client), plan=BatchPlan(torch.stack(shuffled), sizes)
        )  # fmt: skip

    def _weights(self, client: Client) -> Tensor:
        """Return how often each received mean is drawn, (N,): classes as the client holds them, or all alike."""
        labels = client.state["labels"].cpu()
        means = torch.bincount(labels, minlength=client.num_classes).clamp_min(1)
        held = client.class_counts.cpu() if self.hyper.classes == "held" else torch.ones_like(means)
        return (held / means)[labels]

    @staticmethod
    def _mixed(client: Client) -> TensorData:
        own, others = client.train, client.state["others"].to(client.device)
        labels = torch.cat([own.labels, client.state["labels"].to(client.device)])
        others = others.view(-1, *own.pool.shape[1:])
        if own.pool.is_floating_point():
            return TensorData(torch.cat([_values(own), others]), labels)
        others = others.round().clamp(0, torch.iinfo(own.pool.dtype).max)
        return TensorData(torch.cat([own.inputs, others.to(own.pool.dtype)]), labels, own.scale, own.shift)


class InputMeansServer:
    """Keeps all means with their senders, and remembers how many of others' means each client has."""

    def __init__(self, num_classes: int, width: int, means_per_class: int) -> None:
        self.num_classes = num_classes
        self.width = width
        self.means_per_class = means_per_class

    def init(self, streams: Streams) -> State:  # noqa: ARG002
        """Return a pool without means."""
        none = torch.zeros(0, dtype=torch.int64)
        return {"means": torch.zeros(0, self.width), "labels": none, "senders": none, "clients": none, "held": none}

    def broadcast(self, state: State, client: ClientInfo) -> Message:
        """Return the first of others' means that this client does not have, at most `MOST_MEANS` of a class."""
        own = state["senders"] == client.id
        held = int(state["held"][state["clients"] == client.id].sum())
        labels, means = state["labels"][~own][held:], state["means"][~own][held:]
        of_class = functional.one_hot(labels, self.num_classes).cumsum(0)  # (n, K): means so far
        page = int((of_class <= MOST_MEANS).all(1).sum())
        labels, means = labels[:page], means[:page]
        tensors = {str(label): means[labels == label] for label in sorted(set(labels.tolist()))}
        return Message(tensors=tensors, metrics={KNOWN: float(own.sum()), BEFORE: float(held)})

    def aggregate(
        self, state: State, updates: Sequence[Update], trainer: Trainer, round_: Round, streams: Streams  # noqa: ARG002
    ) -> State:  # fmt: skip
        """Note what clients have, and add the means of new senders."""
        state = dict(state)
        for client, message in updates:
            own = state["senders"] == client.id
            held = min(max(int(message.metrics.get(HELD, 0)), 0), int((~own).sum()))
            others = state["clients"] != client.id
            state["clients"] = torch.cat([state["clients"][others], torch.tensor([client.id])])
            state["held"] = torch.cat([state["held"][others], torch.tensor([held])])
            for label, values in sorted(message.tensors.items()) if not bool(own.any()) else ():
                usable = values[: self.means_per_class]
                usable = usable[torch.linalg.vector_norm(usable.double(), dim=1) <= LONGEST_MEAN]
                state["means"] = torch.cat([state["means"], usable])
                state["labels"] = torch.cat([state["labels"], torch.full((len(usable),), int(label))])
                state["senders"] = torch.cat([state["senders"], torch.full((len(usable),), client.id)])
        return state


def build(hyper: InputMeansHyper, federation: FederationSpec) -> Algorithm:
    """Return InputMeans: anchors, and means that travel once."""
    if federation.vocabulary is not None:
        raise ValueError("token ids have no mean; choose a method that exchanges prototypes, such as tinyproto_ft")
    width = math.prod(federation.input_shape)
    base = anchored("input_means", hyper, federation, InputMeansClient)
    shapes = {str(label): (AtMost(MOST_MEANS), width) for label in range(federation.num_classes)}
    return replace(
        base,
        server=InputMeansServer(federation.num_classes, width, hyper.means_per_class),
        tensor_shapes=shapes,
        table2_parameters=lambda _held: None,
        reported=frozenset((HELD,)),
    )


SPEC = AlgorithmSpec("input_means", "InputMeans", InputMeansHyper, build)
