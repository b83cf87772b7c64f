"""InputMeans: clients exchange means of small groups of their samples, once, and train on each other's means.

These are prototypes before the network instead of after it, so networks may differ in everything but their input. A
client splits the samples of a class into groups of g and sends the mean of each, in its first round only. The server
passes on what is new to a client, once. From then on each epoch mixes received means into the client's own samples,
with the label of their class. Features are pulled towards the rows of `anchors`; `proto_weight: 0` leaves that out.

A mean of g samples says more about them than a prototype does: docs/explain/what_communication_buys.md measures it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import torch
from torch import Tensor

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

MOST_MEANS = 10_000
"""The most means of a class in one frame."""

KNOWN = "means_known"
"""The metric by which the server tells a client how many of its means it has."""


@dataclass(frozen=True)
class InputMeansHyper(FixedLengthHyper):
    """The hyper-parameters of anchors, and of the means that are exchanged."""

    group_size: Annotated[int, "g, samples per mean; a class with fewer samples sends none"] = 3
    means_per_class: Annotated[int, "the most means that a client sends of a class"] = 5
    mix: Annotated[float, "received means in an epoch per sample of the client's own; 0 or more"] = 1.0
    classes: Annotated[
        Literal["held", "all"], "received means to train on: of classes the client holds, as often as these; or of all"
    ] = "held"
    noise: Annotated[float, "standard deviation of Gaussian noise on each value sent, in the data's units"] = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        positive(group_size=self.group_size, means_per_class=self.means_per_class)
        not_negative(mix=self.mix, noise=self.noise)


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
            samples = data.subset(places).inputs.flatten(1).float().cpu()
            means = samples.view(groups, hyper.group_size, -1).mean(1)
            found[str(label)] = means + hyper.noise * torch.randn(means.shape, generator=draws)
    return found


class InputMeansClient(AnchorsClient):
    """Sends its means until the server has them, and mixes those of others into its batches."""

    hyper: InputMeansHyper

    def init(self, client: Client, streams: Streams) -> None:
        """Draw the groups once, so that no later message tells more about them."""
        super().init(client, streams)
        draws = streams.generator("input means", client=client.id)
        means = group_means(client.train, client.num_classes, self.hyper, draws)
        client.state |= {f"mean {label}": values for label, values in means.items()}
        width = math.prod(client.train.pool.shape[1:])
        client.state |= {"others": torch.zeros(0, width), "labels": torch.zeros(0, dtype=torch.int64)}
        client.state["known"] = torch.zeros(1)

    def receive(self, client: Client, message: Message) -> Prototypes:
        """Keep the means received; return the anchors."""
        for label, values in sorted(message.tensors.items()):
            client.state["others"] = torch.cat([client.state["others"], values.to(client.state["others"].device)])
            labels = torch.full((len(values),), int(label)).to(client.state["labels"].device)
            client.state["labels"] = torch.cat([client.state["labels"], labels])
        client.state["known"] = torch.tensor([message.metrics.get(KNOWN, 0.0)])
        return super().receive(client, message)

    def update(self, client: Client, result: FitResult, round_: Round) -> Message:  # noqa: ARG002
        """Return the client's means, or nothing if the server has them."""
        if float(client.state["known"]):
            return Message()
        names = [name for name in client.state if name.startswith("mean ")]
        return Message(tensors={name.removeprefix("mean "): client.state[name].cpu() for name in names})

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
        if not own.pool.is_floating_point():
            others = others.round().clamp(0, torch.iinfo(own.pool.dtype).max)
        pool = torch.cat([own.inputs, others.view(-1, *own.pool.shape[1:]).to(own.pool.dtype)])
        labels = torch.cat([own.labels, client.state["labels"].to(client.device)])
        return TensorData(pool, labels, own.scale, own.shift)


class InputMeansServer:
    """Keeps all means with their senders, and remembers how many of them each client has received."""

    def __init__(self, width: int) -> None:
        self.width = width

    def init(self, streams: Streams) -> State:  # noqa: ARG002
        """Return a pool without means."""
        none = torch.zeros(0, dtype=torch.int64)
        return {
            "means": torch.zeros(0, self.width), "labels": none, "senders": none, "receivers": none, "received": none,
        }  # fmt: skip

    def broadcast(self, state: State, client: ClientInfo) -> Message:
        """Return the means of others that this client has not received, and how many of its own are here."""
        seen = int(state["received"][state["receivers"] == client.id].sum())
        new = torch.arange(len(state["labels"])) >= seen
        new &= state["senders"] != client.id
        labels, means = state["labels"][new], state["means"][new]
        tensors = {str(label): means[labels == label] for label in sorted(set(labels.tolist()))}
        return Message(tensors=tensors, metrics={KNOWN: float((state["senders"] == client.id).sum())})

    def aggregate(
        self, state: State, updates: Sequence[Update], trainer: Trainer, round_: Round, streams: Streams  # noqa: ARG002
    ) -> State:  # fmt: skip
        """Add the means of new senders; a client that answered has received all that was there before."""
        here = len(state["labels"])
        answered = torch.tensor([client.id for client, _ in updates], dtype=torch.int64)
        others = ~torch.isin(state["receivers"], answered)
        state = {
            **state,
            "receivers": torch.cat([state["receivers"][others], answered]),
            "received": torch.cat([state["received"][others], torch.full_like(answered, here)]),
        }
        for client, message in updates:
            if bool((state["senders"] == client.id).any()):
                continue
            for label, values in sorted(message.tensors.items()):
                known = torch.full((len(values),), 1)
                state["means"] = torch.cat([state["means"], values])
                state["labels"] = torch.cat([state["labels"], known * int(label)])
                state["senders"] = torch.cat([state["senders"], known * client.id])
        return state


def build(hyper: InputMeansHyper, federation: FederationSpec) -> Algorithm:
    """Return InputMeans: anchors, and means that travel once."""
    width = math.prod(federation.input_shape)
    base = anchored("input_means", hyper, federation, InputMeansClient)
    shapes = {str(label): (AtMost(MOST_MEANS), width) for label in range(federation.num_classes)}
    return replace(base, server=InputMeansServer(width), tensor_shapes=shapes, table2_parameters=lambda _held: None)


SPEC = AlgorithmSpec("input_means", "InputMeans", InputMeansHyper, build)
