"""FedDistill: clients are pulled towards everyone's mean logits of each class.

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
    PrototypeSource,
    Round,
    client_task,
    not_negative,
)
from tinyproto.algorithms.fedproto import StreamingServer, store_rows, stored_rows
from tinyproto.algorithms.transform import Dense
from tinyproto.core.losses import class_logit_loss
from tinyproto.core.messages import Message, prototype_parameters
from tinyproto.core.prototypes import Prototypes
from tinyproto.core.streams import Streams
from tinyproto.core.task import Batch, BatchPlan, FitResult, Loss, Step, Task


@dataclass(frozen=True)
class FedDistillHyper:
    """How strong the pull is."""

    distill_weight: Annotated[float, "γ, the weight of the pull towards the global logits; 0 or more"] = 1.0

    def __post_init__(self) -> None:
        not_negative(distill_weight=self.distill_weight)


def distillation_loss(distill_weight: float) -> Loss:
    """CE + γ·CE(softmax of the class's global logits); the logits seen on the way are what a client will send."""

    def step(modules: nn.ModuleDict, batch: Batch, context: Mapping[str, Tensor]) -> Step:
        logits = modules["model"](batch.inputs).logits
        cross_entropy = functional.cross_entropy(logits, batch.labels)
        pull = class_logit_loss(logits, batch.labels, stored_rows(context))
        parts = torch.stack((cross_entropy.detach(), pull.detach()))
        return Step(cross_entropy + distill_weight * pull, parts, observed=logits.detach())

    return step


class LogitClient:
    """Sends, for every class it trained on, the mean of the logits it gave while training."""

    prototype_source: PrototypeSource = "fresh"

    def __init__(self, hyper: FedDistillHyper, federation: FederationSpec) -> None:
        self.federation = federation
        self.loss = distillation_loss(hyper.distill_weight)
        self.key = ("feddistill", hyper.distill_weight)

    def init(self, client: Client, streams: Streams) -> None:  # noqa: ARG002
        """No global logits yet: round 1 has the same loss over none present."""
        self._remember(client, None)

    def receive(self, client: Client, message: Message) -> Prototypes | None:
        """The global logits are for training only; nothing is classified by them."""
        self._remember(client, message.rows)
        return None

    def task(self, client: Client, plan: BatchPlan, seed: int) -> Task:
        """Cross-entropy plus γ times the pull."""
        return client_task(
            client,
            plan,
            seed,
            key=self.key,
            loss=self.loss,
            part_names=("cross_entropy", "distillation"),
            learning_rate=self.federation.learning_rate,
            context=client.state,
        )

    def update(self, client: Client, result: FitResult, round_: Round) -> Message:  # noqa: ARG002
        """Mean logits (K_i, K) of the last epoch."""
        return Message(rows=None if result.observed is None else result.observed.means())

    def _remember(self, client: Client, rows: Prototypes | None) -> None:
        classes = self.federation.num_classes
        known = Prototypes.absent(classes, classes) if rows is None else rows
        store_rows(client, known)


def build(hyper: FedDistillHyper, federation: FederationSpec) -> Algorithm:
    """FedDistill; the server takes the unweighted mean over the clients that hold a class."""
    classes = federation.num_classes
    return Algorithm(
        name="feddistill",
        client=LogitClient(hyper, federation),
        server=StreamingServer(classes, Dense(classes)),
        table2_parameters=partial(prototype_parameters, num_classes=classes, width=classes),
        row_width=classes,
    )


SPEC = AlgorithmSpec("feddistill", "FedDistill", FedDistillHyper, build)
