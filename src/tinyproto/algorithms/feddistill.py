"""FedDistill: clients are pulled towards the mean logits of each class, of all clients or of the others.

Eunjeong Jeong et al., "Communication-Efficient On-Device Machine Learning: Federated Distillation and Augmentation
under Non-IID Private Data", 2018.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal

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
    Round,
    Update,
    not_negative,
    prototype_parameters,
)
from tinyproto.algorithms.fedproto import (
    AveragingServer,
    StreamingServer,
    keep_last,
    received_rows,
    store_rows,
    stored_rows,
)
from tinyproto.core.prototypes import Message, Prototypes, simple_mean, stack_rows, sum_over_holders
from tinyproto.core.streams import Streams
from tinyproto.core.task import Batch, FitResult, Loss, State, Step, Trainer

Teachers = Literal["all", "others"]


@dataclass(frozen=True)
class FedDistillHyper:
    """The strength of the pull, and whose logits it leads to."""

    distill_weight: Annotated[float, "γ, the weight of the pull towards the global logits; 0 or more"] = 1.0
    teachers: Annotated[
        Teachers, "whose mean logits a client learns from: all clients', or the others', without its own"
    ] = "all"

    def __post_init__(self) -> None:
        not_negative(distill_weight=self.distill_weight)


def class_logit_loss(logits: Tensor, labels: Tensor, global_logits: Prototypes) -> Tensor:
    """Return FedDistill's cross-entropy to the softmax of the class's global mean logits, mean over the batch.

    A sample whose class has no global logits yet adds zero.
    """
    wanted = global_logits.present[labels].unsqueeze(1)
    targets = global_logits.values[labels].softmax(1)  # (B, K)
    return -(torch.where(wanted, targets, torch.zeros_like(targets)) * logits.log_softmax(1)).sum(1).mean()


def distillation_loss(distill_weight: float) -> Loss:
    """Return CE + γ·CE(softmax of the class's global logits); the logits observed here are what a client sends."""

    def step(modules: nn.ModuleDict, batch: Batch, context: Mapping[str, Tensor]) -> Step:
        logits = modules["model"](batch.inputs).logits
        cross_entropy = functional.cross_entropy(logits, batch.labels)
        pull = class_logit_loss(logits, batch.labels, stored_rows(context))
        parts = torch.stack((cross_entropy.detach(), pull.detach()))
        return Step(cross_entropy + distill_weight * pull, parts, observed=logits.detach())

    return step


class LogitClient(LossClient):
    """Sends, for each class it trained on, its mean logits while training."""

    def __init__(self, hyper: FedDistillHyper, federation: FederationSpec) -> None:
        key, loss = ("feddistill", hyper.distill_weight), distillation_loss(hyper.distill_weight)
        super().__init__(key, loss, ("cross_entropy", "distillation"), federation.learning_rate)
        self.federation = federation

    def init(self, client: Client, streams: Streams) -> None:  # noqa: ARG002
        """Store that there are no global logits yet: round 1 has the same loss with none present."""
        self.receive(client, Message())

    def receive(self, client: Client, message: Message) -> Prototypes | None:
        """Store the global logits, which only training uses."""
        classes = self.federation.num_classes
        store_rows(client, Prototypes.absent(classes, classes) if message.rows is None else message.rows)
        return None

    def update(self, client: Client, result: FitResult, round_: Round) -> Message:  # noqa: ARG002
        """Return the mean logits (K_i, K) of the last epoch."""
        return Message(rows=None if result.observed is None else result.observed.means())


class OthersServer(AveragingServer):
    """Sends each client the mean over the others that hold a class; a class that it alone sent has none.

    The server leaves a client's row out, because only it knows which uploads a mean holds: a client that was late,
    refused or not chosen is not in it. For that it keeps every row of the means, so its memory grows with the clients.
    """

    def init(self, streams: Streams) -> State:
        """Return rows of which none is present, and no senders."""
        classes, width = self.num_classes, self.width
        return {
            **super().init(streams),
            "sums": torch.zeros(classes, width, dtype=torch.float64),
            "holders": torch.zeros(classes, dtype=torch.int64),
            "sent": torch.zeros(0, width),  # the rows in the sums
            "sent_by": torch.zeros(0, dtype=torch.int64),
            "sent_class": torch.zeros(0, dtype=torch.int64),
        }

    def broadcast(self, state: State, client: ClientInfo) -> Message:
        """Return (Σ over holders − own) / (number of holders − 1) for the classes that this client sent."""
        own = state["sent_by"] == client.id
        classes, rows = state["sent_class"][own], stored_rows(state)
        others = state["holders"][classes] - 1
        means = (state["sums"][classes] - state["sent"][own]) / others.clamp_min(1).unsqueeze(1)
        values = rows.values.index_copy(0, classes, (means * (others > 0).unsqueeze(1)).float())
        present = rows.present.index_copy(0, classes, others > 0)
        return Message(rows=Prototypes(values, present)) if bool(present.any()) else Message()

    def aggregate(
        self, state: State, updates: Sequence[Update], trainer: Trainer, round_: Round, streams: Streams  # noqa: ARG002
    ) -> State:  # fmt: skip
        """Replace the sum of each class that was sent, and the rows in it; other classes keep theirs."""
        uploads = received_rows(updates)
        if not uploads:
            return state
        total = sum_over_holders([upload.rows for upload in uploads])
        renewed = total.counts > 0
        sent, classes = stack_rows(upload.rows for upload in uploads)
        senders = torch.tensor([upload.client.id for upload in uploads])
        sent_by = senders.repeat_interleave(torch.tensor([int(upload.rows.present.sum()) for upload in uploads]))
        kept = ~renewed[state["sent_class"]]
        return {
            **keep_last(simple_mean(total), stored_rows(state))._asdict(),
            "sums": torch.where(renewed.unsqueeze(1), total.sums, state["sums"]),
            "holders": torch.where(renewed, total.counts, state["holders"]),
            "sent": torch.cat([state["sent"][kept], sent]),
            "sent_by": torch.cat([state["sent_by"][kept], sent_by]),
            "sent_class": torch.cat([state["sent_class"][kept], classes]),
        }


def build(hyper: FedDistillHyper, federation: FederationSpec) -> Algorithm:
    """Return FedDistill; the server takes the unweighted mean over the clients that hold a class."""
    classes = federation.num_classes
    return Algorithm(
        name="feddistill",
        client=LogitClient(hyper, federation),
        server=(StreamingServer if hyper.teachers == "all" else OthersServer)(classes, classes),
        table2_parameters=partial(prototype_parameters, num_classes=classes, width=classes),
        row_width=classes,
    )


SPEC = AlgorithmSpec("feddistill", "FedDistill", FedDistillHyper, build)
