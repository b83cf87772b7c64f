"""FedProto: clients are pulled towards the mean of all clients' class prototypes.

Yue Tan et al., "FedProto: Federated Prototype Learning across Heterogeneous Clients", AAAI 2022; section 3 of the
TinyProto paper.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from tinyproto.algorithms.base import (
    Algorithm,
    AlgorithmSpec,
    Client,
    ClientInfo,
    FederationSpec,
    LossClient,
    PrototypeSource,
    Round,
    ServerSide,
    Update,
    not_negative,
    prototype_parameters,
)
from tinyproto.algorithms.streaming import Gathered
from tinyproto.core.prototypes import REGULARISERS, Distance, Message, Prototypes, simple_mean, sum_over_holders
from tinyproto.core.streams import Streams
from tinyproto.core.task import Batch, FitResult, Loss, State, Step, Trainer

Regulariser = Callable[[Tensor, Tensor, Prototypes], Tensor]
"""R: from features (B, d), labels (B,) and global prototypes (K, d) to one number."""


@dataclass(frozen=True)
class FedProtoHyper:
    """Hyper-parameters of the client of each prototype method."""

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


def prototype_loss(proto_weight: float, regulariser: Regulariser, observe: bool) -> Loss:
    """Return L̃ = L + λ·R, eq. (5): cross-entropy and the pull towards the global prototypes in the context."""

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


class PrototypeClient(LossClient):
    """The client of FedProto and FedTGP; other methods override what it uploads and how it reads what it receives."""

    def __init__(self, hyper: FedProtoHyper, federation: FederationSpec) -> None:
        observe = hyper.prototype_source == "running"
        loss = prototype_loss(hyper.proto_weight, REGULARISERS[hyper.distance], observe)
        key = ("prototype", hyper.proto_weight, hyper.distance, hyper.prototype_source)
        super().__init__(key, loss, ("cross_entropy", "regulariser"), federation.learning_rate)
        self.prototype_source = hyper.prototype_source
        self.federation = federation

    def init(self, client: Client, streams: Streams) -> None:  # noqa: ARG002
        """Store that there are no global prototypes yet: round 1 has the same loss with none present."""
        self.receive(client, Message())

    def receive(self, client: Client, message: Message) -> Prototypes | None:
        """Store the global prototypes, which the loss uses, and return them to classify with."""
        received = Prototypes.absent(self.federation.num_classes, self.federation.proto_dim)
        if message.rows is not None:
            received = self.reconstruct(message.rows)
        store_rows(client, received)
        return received.to(client.device)

    def reconstruct(self, rows: Prototypes) -> Prototypes:
        """Return the global prototypes (K, d) from the rows received."""
        return rows

    def update(self, client: Client, result: FitResult, round_: Round) -> Message:  # noqa: ARG002
        """Return the rows of the classes trained on."""
        return Message(rows=self.upload(client.local, client.class_counts))

    def upload(self, prototypes: Prototypes, class_counts: Tensor) -> Prototypes:  # noqa: ARG002
        """Return the rows to send, given the local prototypes (K, d) and n_ij (K,)."""
        return prototypes


class Upload(NamedTuple):
    """A client's rows, with what the server knows about that client."""

    client: ClientInfo
    rows: Prototypes  # (K, w)


class AveragingServer:
    """Keeps one global row per class; `merge` makes them from all uploads of a round at once."""

    def __init__(self, num_classes: int, width: int) -> None:
        self.num_classes = num_classes
        self.width = width

    def init(self, streams: Streams) -> State:  # noqa: ARG002
        """Return rows of which none is present."""
        return Prototypes.absent(self.num_classes, self.width)._asdict()

    def broadcast(self, state: State, client: ClientInfo) -> Message:  # noqa: ARG002
        """Return all global rows, the same for each client, or nothing while no class has a row."""
        rows = stored_rows(state)
        return Message(rows=rows) if bool(rows.present.any()) else Message()

    def aggregate(
        self, state: State, updates: Sequence[Update], trainer: Trainer, round_: Round, streams: Streams  # noqa: ARG002
    ) -> State:  # fmt: skip
        """Merge the uploads; a class that no client sent keeps its last row."""
        uploads = received_rows(updates)
        return keep_last(self.merge(uploads), stored_rows(state))._asdict() if uploads else state

    def merge(self, uploads: Sequence[Upload]) -> Prototypes:
        """Return the mean over the clients that hold a class, eq. (9)."""
        return simple_mean(sum_over_holders([upload.rows for upload in uploads]))


class StreamingServer(AveragingServer):
    """An averaging server that needs only sums: uploads are folded in as they arrive."""

    def gather(self) -> Gathered:
        """Return an empty accumulator for the uploads of a round."""
        return Gathered(self.num_classes, self.width)

    def aggregate(
        self, state: State, updates: Sequence[Update], trainer: Trainer, round_: Round, streams: Streams  # noqa: ARG002
    ) -> State:  # fmt: skip
        """Gather the uploads and conclude the round."""
        gathered = self.gather()
        for upload in received_rows(updates):
            gathered.add(*upload)
        return self.conclude(state, gathered)

    def conclude(self, state: State, gathered: Gathered) -> State:
        """Merge everything gathered; a class that no client sent keeps its last row."""
        if not gathered.uploads:
            return state
        return keep_last(self.merge_sums(gathered), stored_rows(state))._asdict()

    def merge_sums(self, gathered: Gathered) -> Prototypes:
        """Return the mean over the clients that hold a class, eq. (9)."""
        return simple_mean(gathered.sums.totals)


def keep_last(new: Prototypes, last: Prototypes) -> Prototypes:
    """Return the new rows, and the last row of each class that has no new one."""
    values = torch.where(new.present.unsqueeze(1), new.values, last.values)
    return Prototypes(values, new.present | last.present)


def stored_rows(state: Mapping[str, Tensor]) -> Prototypes:
    """Return the global rows in the state of a server or a client."""
    return Prototypes(state["values"], state["present"])


def store_rows(client: Client, rows: Prototypes) -> None:
    """Put received rows into a client's state, which is the context of its loss."""
    client.state["values"], client.state["present"] = rows.to(client.device)


def received_rows(updates: Sequence[Update]) -> list[Upload]:
    """Return the uploads that hold rows."""
    return [Upload(client, message.rows) for client, message in updates if message.rows is not None]


def prototype_lengths(state: State) -> dict[str, float]:
    """Return the mean and the largest ‖P_j‖ over the classes that have a row, and the margin δ if there is one."""
    rows = stored_rows(state)
    lengths = torch.linalg.vector_norm(rows.values[rows.present].double(), dim=1)
    if not len(lengths):
        return {}
    margin = {"margin": float(state["margin"])} if "margin" in state else {}
    return {"prototype_length": float(lengths.mean()), "longest_prototype": float(lengths.max()), **margin}


def prototype_algorithm(
    name: str, client: PrototypeClient, server: ServerSide, *, width: int, masks: Tensor | None = None,
    scaling: str = "none",
) -> Algorithm:  # fmt: skip
    """Return the algorithm of a prototype client and a server for it, with rows of `width` values."""
    return Algorithm(
        name=name,
        client=client,
        server=server,
        classifies_by_rows=True,
        table2_parameters=partial(prototype_parameters, num_classes=client.federation.num_classes, width=width),
        row_width=width,
        masks=masks,
        agreed={"scaling": scaling},
        watched=prototype_lengths,
    )


def build(hyper: FedProtoHyper, federation: FederationSpec) -> Algorithm:
    """Return FedProto as published: prototypes in full, unweighted mean."""
    server = StreamingServer(federation.num_classes, federation.proto_dim)
    return prototype_algorithm("fedproto", PrototypeClient(hyper, federation), server, width=federation.proto_dim)


SPEC = AlgorithmSpec("fedproto", "FedProto", FedProtoHyper, build)
