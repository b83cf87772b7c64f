"""FedDistill: clients are pulled towards all clients' mean logits of each class.

Eunjeong Jeong et al., "Communication-Efficient On-Device Machine Learning: Federated Distillation and Augmentation
under Non-IID Private Data", 2018.
"""

from __future__ import annotations

from collections.abc import Mapping
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
    FederationSpec,
    LossClient,
    Round,
    not_negative,
    prototype_parameters,
)
from tinyproto.algorithms.fedproto import StreamingServer, store_rows, stored_rows
from tinyproto.core.prototypes import Message, Prototypes
from tinyproto.core.streams import Streams
from tinyproto.core.task import Batch, FitResult, Loss, Step


@dataclass(frozen=True)
class FedDistillHyper:
    """The strength of the pull."""

    distill_weight: Annotated[float, "γ, the weight of the pull towards the global logits; 0 or more"] = 1.0

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


def build(hyper: FedDistillHyper, federation: FederationSpec) -> Algorithm:
    """Return FedDistill; the server takes the unweighted mean over the clients that hold a class."""
    classes = federation.num_classes
    return Algorithm(
        name="feddistill",
        client=LogitClient(hyper, federation),
        server=StreamingServer(classes, classes),
        table2_parameters=partial(prototype_parameters, num_classes=classes, width=classes),
        row_width=classes,
    )


SPEC = AlgorithmSpec("feddistill", "FedDistill", FedDistillHyper, build)
