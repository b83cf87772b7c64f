"""FedORGP: the server trains global prototypes whose directions are orthogonal; clients turn their features to them.

Fucheng Guo et al., "FedORGP: Guiding Heterogeneous Federated Learning with Orthogonality Regularization on Global
Prototypes", arXiv 2502.16119. Only directions count: both losses are made of cosines.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import torch
from torch import Tensor, nn

from tinyproto.algorithms.base import (
    Algorithm,
    AlgorithmSpec,
    FederationSpec,
    PrototypeSource,
    Round,
    Update,
    not_negative,
    positive,
)
from tinyproto.algorithms.fedproto import FedProtoHyper, Upload, prototype_algorithm, prototype_loss
from tinyproto.algorithms.fedtgp import FedTGPHyper, OfferedClasses, TrainablePrototypes, TrainableServer
from tinyproto.algorithms.tinyproto_fp import TinyProtoClient
from tinyproto.algorithms.tinyproto_hyper import OptionalCPSHyper
from tinyproto.core import cps
from tinyproto.core.prototypes import Prototypes, safe_norm
from tinyproto.core.streams import Streams
from tinyproto.core.task import Batch, Loss, State, Step, Task, Trainer

SHORTEST = 1e-5
"""A feature shorter than this has no direction and adds nothing to the client's loss."""


@dataclass(frozen=True)
class FedORGPHyper(OptionalCPSHyper):
    """The client's pull, and the server's fit."""

    proto_weight: Annotated[float, "λ, the weight of the pull towards the global directions; 0 or more"] = 10.0
    prototype_source: Annotated[
        PrototypeSource,
        "local prototypes from the trained network, from the features seen while training, or from the network before",
    ] = "fresh"
    orthogonality_weight: Annotated[float, "γ, the weight of the cosines between classes; 0 or more"] = 1.0
    server_epochs: Annotated[int, "of the server's fit, per round; above 0"] = 100
    server_learning_rate: Annotated[float, "of the server's SGD; above 0"] = 0.01
    server_batch_size: Annotated[int, "uploads per step of the fit; above 0"] = 32
    offered_classes: Annotated[OfferedClasses, "classes the server offers: those ever uploaded, or all"] = "uploaded"

    def __post_init__(self) -> None:
        super().__post_init__()
        not_negative(proto_weight=self.proto_weight, orthogonality_weight=self.orthogonality_weight)
        positive(
            server_epochs=self.server_epochs,
            server_learning_rate=self.server_learning_rate,
            server_batch_size=self.server_batch_size,
        )


def cosine_regulariser(features: Tensor, labels: Tensor, prototypes: Prototypes) -> Tensor:
    """Return the client's alignment term: 1 − cos(feature, its class's prototype), mean over the batch."""
    targets, lengths = prototypes.values[labels], safe_norm(features)
    cosines = (features * targets).sum(1) / (lengths * safe_norm(targets))
    wanted = prototypes.present[labels] & (lengths > SHORTEST)
    return torch.where(wanted, 1.0 - cosines, torch.zeros_like(cosines)).mean()


def orthogonality_loss(uploads: Tensor, labels: Tensor, learned: Tensor, offered: Tensor, weight: float) -> Tensor:
    """Return L_OR: Σ over uploads of (1 − cos to the own prototype) + γ · Σ |cos| to each other one that is offered."""
    directions = learned / safe_norm(learned).unsqueeze(1)  # (K, d)
    cosines = uploads / safe_norm(uploads).unsqueeze(1) @ directions.T  # (N, K)
    own = torch.zeros_like(cosines, dtype=torch.bool).scatter(1, labels.unsqueeze(1), True)
    others = torch.where(offered & ~own, cosines.abs(), torch.zeros_like(cosines)).sum(1)
    return (1.0 - cosines.gather(1, labels.unsqueeze(1)).squeeze(1) + weight * others).sum()


def orthogonality_step(weight: float) -> Loss:
    """Return one step of the server's fit; the logged term is the mean over the uploads."""

    def step(modules: nn.ModuleDict, batch: Batch, context: Mapping[str, Tensor]) -> Step:
        loss = orthogonality_loss(batch.inputs, batch.labels, modules["prototypes"](), context["offered"], weight)
        return Step(loss, loss.detach().unsqueeze(0) / len(batch.labels))

    return step


class FedORGPClient(TinyProtoClient):
    """FedProto's client with cosines in place of distances."""

    def __init__(self, hyper: FedORGPHyper, federation: FederationSpec, masks: Tensor | None) -> None:
        plain = FedProtoHyper(hyper.proto_weight, prototype_source=hyper.prototype_source)
        super().__init__(plain, federation, masks, scaling="none")
        self.key = ("fedorgp", hyper.proto_weight, hyper.prototype_source)
        self.loss = prototype_loss(hyper.proto_weight, cosine_regulariser, hyper.prototype_source == "running")


class OrthogonalServer(TrainableServer):
    """FedTGP's server and network with another loss. Rows have length 1, so the nearest has the largest cosine."""

    def __init__(self, hyper: FedORGPHyper, federation: FederationSpec, masks: Tensor | None, width: int) -> None:
        fit = FedTGPHyper(
            server_epochs=hyper.server_epochs, server_learning_rate=hyper.server_learning_rate,
            server_batch_size=hyper.server_batch_size, offered_classes=hyper.offered_classes,
        )  # fmt: skip
        super().__init__(fit, federation, width)
        self.weight, self.loss = hyper.orthogonality_weight, orthogonality_step(hyper.orthogonality_weight)
        self.masks = masks  # m_j, (K, d); None without CPS

    def aggregate(
        self, state: State, updates: Sequence[Update], trainer: Trainer, round_: Round, streams: Streams
    ) -> State:
        """Fit the network to the uploads; there is no margin to keep."""
        fitted = super().aggregate(state, updates, trainer, round_, streams)
        return {name: value for name, value in fitted.items() if name != "margin"}

    def normalise(self, uploads: Sequence[Upload]) -> list[Prototypes]:
        """Return the uploads reconstructed to d dimensions."""
        return [cps.reconstruct(upload.rows, self.masks) for upload in uploads]

    def compress(self, learned: Prototypes) -> Prototypes:
        """Return the owned dimensions of the learned prototypes, brought to length 1."""
        return cps.with_length(cps.compress(learned, self.masks), 1.0)

    def _fit(
        self, network: TrainablePrototypes, uploads: Sequence[Prototypes], margin: Tensor, offered: Tensor,
        device: torch.device, round_: Round, streams: Streams,
    ) -> Task:  # fmt: skip
        task = super()._fit(network, uploads, margin, offered, device, round_, streams)
        key, context = ("fedorgp server", self.weight, self.federation.proto_dim), {"offered": offered.to(device)}
        return replace(task, key=key, context=context, loss=self.loss, part_names=("orthogonality",), epoch=None)


def build(hyper: FedORGPHyper, federation: FederationSpec) -> Algorithm:
    """Return FedORGP; with `sent_dim`, the owned dimensions of each class travel."""
    masks, width = hyper.sent(federation)
    client, server = FedORGPClient(hyper, federation, masks), OrthogonalServer(hyper, federation, masks, width)
    return prototype_algorithm("fedorgp", client, server, width=width, masks=masks)


SPEC = AlgorithmSpec("fedorgp", "FedORGP", FedORGPHyper, build)
