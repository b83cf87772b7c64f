"""FedProto: clients are pulled towards the mean of everyone's class prototypes.

Yue Tan et al., "FedProto: Federated Prototype Learning across Heterogeneous Clients", AAAI 2022; section 3 of the
TinyProto paper.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated

import torch
from torch import Tensor, nn
from torch.nn import functional

from tinyproto.algorithms.base import (
    Algorithm,
    AlgorithmSpec,
    Client,
    ClientInfo,
    FederationSpec,
    PrototypeSource,
    Round,
    ServerSide,
    Update,
    Watched,
    client_task,
    not_negative,
)
from tinyproto.algorithms.streaming import Gathered
from tinyproto.algorithms.transform import Dense, SummingTransform, Transform, Upload
from tinyproto.core.aggregate import keep_last
from tinyproto.core.losses import REGULARISERS, Distance
from tinyproto.core.messages import Message, prototype_parameters
from tinyproto.core.prototypes import Prototypes
from tinyproto.core.streams import Streams
from tinyproto.core.task import Batch, BatchPlan, FitResult, Loss, State, Step, Task, Trainer


@dataclass(frozen=True)
class FedProtoHyper:
    """What a client of any prototype method can be told."""

    proto_weight: Annotated[float, "λ, the weight of the pull towards the global prototypes; 0 or more"] = 10.0
    distance: Annotated[
        Distance, "of the pull: `mse` per sample, mean over batch and d; `l2` Euclidean, batch class means, summed"
    ] = "mse"
    prototype_source: Annotated[
        PrototypeSource,
        "local prototypes from the trained network, from the features seen while training, or from the network before",
    ] = "fresh"

    def __post_init__(self) -> None:
        not_negative(proto_weight=self.proto_weight)


def prototype_loss(proto_weight: float, distance: Distance, observe: bool) -> Loss:
    """L̃ = L + λ·R, eq. (5): cross-entropy and the pull towards the global prototypes in the context."""
    regulariser = REGULARISERS[distance]

    def step(modules: nn.ModuleDict, batch: Batch, context: Mapping[str, Tensor]) -> Step:
        output = modules["model"](batch.inputs)
        cross_entropy = functional.cross_entropy(output.logits, batch.labels)
        pull = regulariser(output.features, batch.labels, stored_rows(context))
        return Step(
            loss=cross_entropy + proto_weight * pull,
            parts=torch.stack((cross_entropy.detach(), pull.detach())),
            observed=output.features.detach() if observe else None,
        )

    return step


class PrototypeClient:
    """The client of FedProto, FedTGP and, with another transform, of both TinyProtos."""

    def __init__(self, hyper: FedProtoHyper, federation: FederationSpec, transform: Transform) -> None:
        self.prototype_source: PrototypeSource = hyper.prototype_source
        self.transform = transform
        self.federation = federation
        self.loss = prototype_loss(hyper.proto_weight, hyper.distance, observe=hyper.prototype_source == "running")
        self.key = ("prototype", hyper.proto_weight, hyper.distance, hyper.prototype_source)

    def init(self, client: Client, streams: Streams) -> None:  # noqa: ARG002
        """No global prototypes yet: round 1 has the same loss over none present."""
        store_rows(client, self._none())

    def receive(self, client: Client, message: Message) -> Prototypes | None:
        """Reconstruct the global prototypes; they are the context of the loss and the candidates of inference."""
        received = self._none() if message.rows is None else self.transform.reconstruct(message.rows)
        store_rows(client, received)
        return received.to(client.device)

    def task(self, client: Client, plan: BatchPlan, seed: int) -> Task:
        """Cross-entropy plus λ times the distance to the global prototypes."""
        return client_task(
            client,
            plan,
            seed,
            key=self.key,
            loss=self.loss,
            part_names=("cross_entropy", "regulariser"),
            learning_rate=self.federation.learning_rate,
            context=client.state,
        )

    def update(self, client: Client, result: FitResult, round_: Round) -> Message:  # noqa: ARG002
        """The local prototypes of the classes trained on."""
        return Message(rows=self.transform.upload(client.local, client.class_counts))

    def _none(self) -> Prototypes:
        return Prototypes.absent(self.federation.num_classes, self.federation.proto_dim)


class AveragingServer:
    """Keeps one row per class: the merged uploads, whatever the transform needs of them."""

    def __init__(self, num_classes: int, transform: Transform) -> None:
        self.num_classes = num_classes
        self.transform = transform

    def init(self, streams: Streams) -> State:  # noqa: ARG002
        """No class present."""
        return Prototypes.absent(self.num_classes, self.transform.width)._asdict()

    def broadcast(self, state: State, client: ClientInfo) -> Message:  # noqa: ARG002
        """All global rows there are, the same for every client."""
        return broadcast_rows(state)

    def aggregate(
        self, state: State, updates: Sequence[Update], trainer: Trainer, round_: Round, streams: Streams  # noqa: ARG002
    ) -> State:  # fmt: skip
        """Merge the uploads; a class nobody sent keeps its last value."""
        uploads = received_rows(updates)
        return keep_last(self.transform.merge(uploads), stored_rows(state))._asdict() if uploads else state


class StreamingServer(AveragingServer):
    """The same for a transform that needs sums only: uploads are folded in as they arrive."""

    def __init__(self, num_classes: int, transform: SummingTransform) -> None:
        super().__init__(num_classes, transform)
        self.summing = transform

    def gather(self) -> Gathered:
        """Nothing gathered yet."""
        return Gathered(self.num_classes, self.transform.width)

    def conclude(self, state: State, gathered: Gathered) -> State:
        """Merge what was gathered; a class nobody sent keeps its last value."""
        if not gathered.uploads:
            return state
        return keep_last(self.summing.conclude(gathered), stored_rows(state))._asdict()


def stored_rows(state: Mapping[str, Tensor]) -> Prototypes:
    """The global rows in the state of a server or a client."""
    return Prototypes(state["values"], state["present"])


def store_rows(client: Client, rows: Prototypes) -> None:
    """Put what arrived into a client's state, which is the context of its loss."""
    client.state["values"], client.state["present"] = rows.to(client.device)


def broadcast_rows(state: State) -> Message:
    """The stored rows as a message, or nothing while no class has any."""
    rows = stored_rows(state)
    return Message(rows=rows) if bool(rows.present.any()) else Message()


def prototype_lengths(state: State) -> Watched:
    """Return the mean and the largest ‖P_j‖ over the classes that have a row, and the margin δ where there is one."""
    rows = stored_rows(state)
    lengths = torch.linalg.vector_norm(rows.values[rows.present].double(), dim=1)
    if not len(lengths):
        return {}
    margin = {"margin": float(state["margin"])} if "margin" in state else {}
    return {"prototype_length": float(lengths.mean()), "longest_prototype": float(lengths.max()), **margin}


def received_rows(updates: Sequence[Update]) -> list[Upload]:
    """The uploads that hold rows at all."""
    return [Upload(client, message.rows) for client, message in updates if message.rows is not None]


def build_fedproto(name: str, hyper: FedProtoHyper, federation: FederationSpec, transform: Transform) -> Algorithm:
    """FedProto over any transform; its server sees all uploads of a round at once."""
    server = AveragingServer(federation.num_classes, transform)
    return prototype_algorithm(name, hyper, federation, transform, server)


def prototype_algorithm(
    name: str, hyper: FedProtoHyper, federation: FederationSpec, transform: Transform, server: ServerSide
) -> Algorithm:
    """FedProto's client over a transform, with any server that answers it."""
    return Algorithm(
        name=name,
        client=PrototypeClient(hyper, federation, transform),
        server=server,
        classifies_by_rows=True,
        table2_parameters=partial(prototype_parameters, num_classes=federation.num_classes, width=transform.width),
        row_width=transform.width,
        masks=transform.masks,
        agreed=transform.agreed,
        watched=prototype_lengths,
    )


def build(hyper: FedProtoHyper, federation: FederationSpec) -> Algorithm:
    """FedProto as published: prototypes in full, unweighted mean."""
    transform = Dense(federation.proto_dim)
    server = StreamingServer(federation.num_classes, transform)
    return prototype_algorithm("fedproto", hyper, federation, transform, server)


SPEC = AlgorithmSpec("fedproto", "FedProto", FedProtoHyper, build)
