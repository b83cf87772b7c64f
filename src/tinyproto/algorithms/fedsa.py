"""FedSA: clients learn towards semantic anchors, one per class, drawn before round 1 and moved slowly by the server.

Yanbing Zhou et al., "FedSA: A Unified Representation Learning via Semantic Anchors for Prototype-based Federated
Learning", AAAI 2025, arXiv 2501.05496. A client pulls features to their anchor and away from the others by a margin
(RMCL), and trains its head on the anchors as well (classifier calibration, CC).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from tinyproto.algorithms.base import Algorithm, AlgorithmSpec, Client, FederationSpec, not_negative
from tinyproto.algorithms.fedproto import (
    FedProtoHyper,
    PrototypeClient,
    StreamingServer,
    prototype_algorithm,
    stored_rows,
)
from tinyproto.algorithms.fedtgp import pairwise_distances
from tinyproto.algorithms.streaming import Gathered
from tinyproto.core.prototypes import REGULARISERS, Message, Prototypes
from tinyproto.core.streams import Streams, global_randomness
from tinyproto.core.task import Batch, Loss, State, Step
from tinyproto.models.split import Output, SplitModel

ABSENT = 1e9  # added to the distance from an anchor that a client does not have: it is no candidate


@dataclass(frozen=True)
class FedSAHyper(FedProtoHyper):
    """FedProto's hyper-parameters, the weights of the other two terms, and how fast anchors move."""

    contrast_weight: Annotated[float, "of the contrastive term with a margin; 0 or more"] = 1.0
    calibration_weight: Annotated[float, "of the head's cross-entropy on the anchors; 0 or more"] = 1.0
    anchor_decay: Annotated[float, "α: new anchor = α · anchor + (1 − α) · mean of the prototypes; 0 to 1"] = 0.9999

    def __post_init__(self) -> None:
        super().__post_init__()
        not_negative(contrast_weight=self.contrast_weight, calibration_weight=self.calibration_weight)
        if not 0 <= self.anchor_decay <= 1:
            raise ValueError(f"anchor_decay must be between 0 and 1, not {self.anchor_decay}")


def drawn_anchors(num_classes: int, dim: int, streams: Streams) -> Tensor:
    """Return the first anchors (K, d): Gaussian rows through Linear, standardisation over classes and ReLU, twice."""
    with global_randomness(streams.derive("semantic anchors")), torch.no_grad():
        rows = torch.randn(num_classes, dim)
        for _ in range(2):
            rows = nn.Linear(dim, dim)(rows)
            if num_classes > 1:  # one row has no spread
                rows = (rows - rows.mean(0)) / (rows.var(0, unbiased=False) + 1e-5).sqrt()
            rows = rows.relu()
    return rows


def mean_gap(rows: Prototypes) -> Tensor:
    """Return the mean over the classes present of the distance to the nearest other one; 0 if fewer than two are."""
    distances = torch.cdist(rows.values, rows.values, compute_mode="donot_use_mm_for_euclid_dist")
    pairs = rows.present & rows.present.unsqueeze(1) & ~torch.eye(len(distances), device=distances.device).bool()
    nearest = distances.masked_fill(~pairs, torch.inf).min(1).values
    return torch.where(pairs.any(1), nearest, torch.zeros_like(nearest)).sum() / rows.present.sum().clamp_min(1)


def contrast(features: Tensor, labels: Tensor, anchors: Prototypes, margin: Tensor) -> Tensor:
    """Return MCL: the cross-entropy over −distance to each anchor, with the margin on the true class."""
    distances = pairwise_distances(features, anchors.values)  # (B, K)
    own = functional.one_hot(labels, len(anchors.present)).to(distances.dtype)
    scores = -(distances + margin * own + ABSENT * (~anchors.present).to(distances.dtype))
    losses = functional.cross_entropy(scores, labels, reduction="none")
    return torch.where(anchors.present[labels], losses, torch.zeros_like(losses)).mean()


def calibration(logits: Tensor, present: Tensor) -> Tensor:
    """Return CC: the cross-entropy of the head's logits (K, K) on the anchors, mean over the classes present."""
    classes = torch.arange(len(present), device=logits.device)
    losses = functional.cross_entropy(logits, classes, reduction="none")
    return torch.where(present, losses, torch.zeros_like(losses)).sum() / present.sum().clamp_min(1)


def anchor_loss(hyper: FedSAHyper) -> Loss:
    """Return the client's loss: cross-entropy + λ·R + contrast + calibration, each with its weight."""
    regulariser, observe = REGULARISERS[hyper.distance], hyper.prototype_source == "running"

    def step(modules: nn.ModuleDict, batch: Batch, context: Mapping[str, Tensor]) -> Step:
        model, anchors = cast(SplitModel, modules["model"]), stored_rows(context)
        output: Output = model(batch.inputs)
        cross_entropy = functional.cross_entropy(output.logits, batch.labels)
        pull = regulariser(output.features, batch.labels, anchors)
        apart = contrast(output.features, batch.labels, anchors, context["margin"])
        calibrated = calibration(model.head(anchors.values), anchors.present)
        added = hyper.contrast_weight * apart + hyper.calibration_weight * calibrated
        parts = torch.stack((cross_entropy, pull, apart, calibrated)).detach()
        loss = cross_entropy + hyper.proto_weight * pull + added
        return Step(loss, parts, output.features.detach() if observe else None)

    return step


class FedSAClient(PrototypeClient):
    """Receives the anchors, and sends its prototypes."""

    def __init__(self, hyper: FedSAHyper, federation: FederationSpec) -> None:
        super().__init__(hyper, federation)
        self.key = ("fedsa", hyper.contrast_weight, hyper.calibration_weight, *self.key[1:])
        self.loss = anchor_loss(hyper)
        self.part_names = ("cross_entropy", "regulariser", "contrast", "calibration")

    def receive(self, client: Client, message: Message) -> Prototypes | None:
        """Store the anchors, and as the margin the larger mean gap: of the anchors, or of the client's prototypes."""
        anchors = super().receive(client, message)
        local, received = client.local.to(client.device), stored_rows(client.state)
        client.state["margin"] = torch.maximum(mean_gap(local), mean_gap(received))
        return anchors


class FedSAServer(StreamingServer):
    """Keeps the anchors; needs only the sums of the uploads."""

    def __init__(self, hyper: FedSAHyper, num_classes: int, width: int) -> None:
        super().__init__(num_classes, width)
        self.hyper = hyper

    def init(self, streams: Streams) -> State:
        """Return an anchor for each class."""
        everyone = torch.ones(self.num_classes, dtype=torch.bool)
        return Prototypes(drawn_anchors(self.num_classes, self.width, streams), everyone)._asdict()

    def conclude(self, state: State, gathered: Gathered) -> State:
        """Return the anchors after the moving average; the anchor of a class that no client sent stays."""
        anchors, means, decay = stored_rows(state), self.merge_sums(gathered), self.hyper.anchor_decay
        moved = decay * anchors.values + (1.0 - decay) * means.values
        values = torch.where(means.present.unsqueeze(1), moved, anchors.values)
        return Prototypes(values, anchors.present)._asdict()


def build(hyper: FedSAHyper, federation: FederationSpec) -> Algorithm:
    """Return FedSA."""
    server = FedSAServer(hyper, federation.num_classes, federation.proto_dim)
    return prototype_algorithm("fedsa", FedSAClient(hyper, federation), server, width=federation.proto_dim)


SPEC = AlgorithmSpec("fedsa", "FedSA", FedSAHyper, build)
