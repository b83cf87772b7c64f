"""Training losses: the clients' of each method, and the contrastive loss of FedTGP's server.

FedTGP: Jianqing Zhang et al., "FedTGP: Trainable Global Prototypes with Adaptive-Margin-Enhanced Contrastive Learning
for Data and Model Heterogeneity in Federated Learning", AAAI 2024. The TinyProto paper uses it unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from tinyproto.core.prototypes import Prototypes, class_sums
from tinyproto.core.task import Batch, Step

Distance = Literal["mse", "l2"]

TINY = 1e-12
"""Below this a squared distance counts as zero, so that the square root keeps a finite gradient."""


def safe_norm(difference: Tensor) -> Tensor:
    """Return the L2 norm over the last axis, with gradient zero (not NaN) at zero."""
    return difference.square().sum(-1).clamp_min(TINY).sqrt()


def mse_regulariser(features: Tensor, labels: Tensor, prototypes: Prototypes) -> Tensor:
    """Return R of eq. (6) as the published runs compute it: the squared error of each sample to its class's prototype.

    The mean is over all B·d entries; a sample whose class has no prototype contributes zero to the sum.
    """
    wanted = prototypes.present[labels].unsqueeze(1)
    difference = torch.where(wanted, features - prototypes.values[labels], torch.zeros_like(features))
    return difference.square().mean()


def l2_regulariser(features: Tensor, labels: Tensor, prototypes: Prototypes) -> Tensor:
    """Return R of eq. (6) and (11) as printed: Σ_j ρ(c̄ᴸ_j, c̄ᴳ_j), Euclidean.

    c̄ᴸ_j is the mean of class j in the batch.
    """
    batch = class_sums(features, labels, prototypes.num_classes)
    means = batch.sums / batch.counts.clamp_min(1).unsqueeze(1).to(features.dtype)
    wanted = prototypes.present & (batch.counts > 0)
    difference = torch.where(wanted.unsqueeze(1), means - prototypes.values, torch.zeros_like(means))
    return torch.where(wanted, safe_norm(difference), torch.zeros_like(difference[:, 0])).sum()


REGULARISERS: dict[Distance, Callable[[Tensor, Tensor, Prototypes], Tensor]] = {
    "mse": mse_regulariser,
    "l2": l2_regulariser,
}


Reduction = Literal["batch", "element"]
"""A divergence is a mean over the samples, or over samples and classes, which is K times smaller."""

CERTAIN = torch.finfo(torch.float32).eps
"""The resolution of a cross-entropy in float32; nothing is divided by less."""


class Mutual(NamedTuple):
    """The losses of two networks that learn together."""

    local: Tensor
    auxiliary: Tensor


class Opinion(NamedTuple):
    """The outputs of one network for a batch."""

    logits: Tensor  # (B, K)
    features: Tensor  # (B, d)


def divergence(logits: Tensor, target_logits: Tensor, reduction: Reduction) -> Tensor:
    """Return KL(softmax(target) ‖ softmax(logits)), temperature 1.

    The target enters as a logarithm: the gradient of a probability too small for float32 would be NaN.
    """
    target = target_logits.log_softmax(1)
    total = (target.exp() * (target - logits.log_softmax(1))).sum()
    return total / (len(logits) if reduction == "batch" else logits.numel())


def mutual_losses(
    local: Tensor, auxiliary: Tensor, labels: Tensor, *, local_weight: float, auxiliary_weight: float,
    reduction: Reduction, detach: bool,
) -> Mutual:  # fmt: skip
    """Return FML's α·CE + (1 − α)·KL towards the other's output, for both; `detach` makes the other a fixed target."""
    target_of_local = auxiliary.detach() if detach else auxiliary
    target_of_auxiliary = local.detach() if detach else local
    return Mutual(
        local_weight * functional.cross_entropy(local, labels)
        + (1 - local_weight) * divergence(local, target_of_local, reduction),
        auxiliary_weight * functional.cross_entropy(auxiliary, labels)
        + (1 - auxiliary_weight) * divergence(auxiliary, target_of_auxiliary, reduction),
    )


def adaptive_losses(
    local: Opinion, auxiliary: Opinion, adapted: Tensor, labels: Tensor, *, reduction: Reduction, detach: bool
) -> Mutual:
    """Return FedKD's CE plus, over D = CE_local + CE_auxiliary, the divergence of outputs and the distance of features.

    `adapted` (B, d) are the auxiliary network's features after the learned map W_h. Networks that are wrong learn less
    from each other. With `detach`, D is a plain weight and targets are fixed; W_h learns in either case.
    """
    own, other = functional.cross_entropy(local.logits, labels), functional.cross_entropy(auxiliary.logits, labels)

    def fixed(values: Tensor) -> Tensor:
        return values.detach() if detach else values

    doubt = fixed(own + other).clamp_min(CERTAIN)
    return Mutual(
        own
        + divergence(local.logits, fixed(auxiliary.logits), reduction) / doubt
        + functional.mse_loss(local.features, fixed(adapted)) / doubt,
        other
        + divergence(auxiliary.logits, fixed(local.logits), reduction) / doubt
        + functional.mse_loss(fixed(local.features), adapted) / doubt,
    )


def class_logit_loss(logits: Tensor, labels: Tensor, global_logits: Prototypes) -> Tensor:
    """Return FedDistill's cross-entropy to the softmax of the class's global mean logits, mean over the batch.

    A sample whose class has no global logits yet adds zero.
    """
    wanted = global_logits.present[labels].unsqueeze(1)
    targets = global_logits.values[labels].softmax(1)  # (B, K)
    return -(torch.where(wanted, targets, torch.zeros_like(targets)) * logits.log_softmax(1)).sum(1).mean()


class TrainablePrototypes(nn.Module):
    """FedTGP's network: one learned vector per class through Linear, ReLU, Linear gives the global prototypes."""

    def __init__(self, num_classes: int, dim: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(num_classes, dim)
        self.hidden = nn.Linear(dim, dim)
        self.output = nn.Linear(dim, dim)

    def forward(self) -> Tensor:
        """Return all global prototypes, (K, d)."""
        projected: Tensor = self.output(functional.relu(self.hidden(self.embedding.weight)))
        return projected


def pairwise_distances(left: Tensor, right: Tensor) -> Tensor:
    """Return Euclidean distances (N, K); distance and gradient stay finite at zero.

    A CPU expands the square; a GPU takes the differences, which is one kernel instead of ten.
    """
    if left.is_cuda:
        return torch.cdist(left, right, compute_mode="donot_use_mm_for_euclid_dist")
    squared = left.square().sum(1, keepdim=True) + right.square().sum(1) - 2.0 * (left @ right.T)
    return squared.clamp_min(TINY).sqrt()


def adaptive_margin(class_centres: Prototypes, cap: float) -> Tensor:
    """Return δ = min(max_k min_{k'≠k} ‖Q_k − Q_k'‖₂, cap) over the classes present; zero if fewer than two are.

    Q_k is the unweighted mean of the uploads of class k.
    """
    centres = class_centres.values[class_centres.present].double()
    if len(centres) < 2:
        return torch.zeros((), device=class_centres.values.device)
    distances = torch.cdist(centres, centres, compute_mode="donot_use_mm_for_euclid_dist")
    distances.fill_diagonal_(torch.inf)
    return distances.min(1).values.max().clamp_max(cap).float()


def distance_penalty(margin: Tensor, offered: Tensor) -> Tensor:
    """Return what is added to the distance from an upload of class j, a row, to each global prototype, (K, K).

    It is the margin δ for its own class and ∞ for classes that are not offered.
    """
    penalty = torch.diag(margin.expand(len(offered)))
    return penalty.masked_fill(~offered, torch.inf)


def margin_contrastive_loss(uploads: Tensor, labels: Tensor, learned: Tensor, penalty: Tensor) -> Tensor:
    """Return the cross-entropy over −distance to each offered global prototype, with the margin δ on the true class."""
    return functional.cross_entropy(-(pairwise_distances(uploads, learned) + penalty[labels]), labels)


def contrastive_step(modules: nn.ModuleDict, batch: Batch, context: Mapping[str, Tensor]) -> Step:
    """Take one step of the server's fit: the uploads of this batch against all learned prototypes."""
    loss = margin_contrastive_loss(batch.inputs, batch.labels, modules["prototypes"](), context["penalty"])
    return Step(loss, loss.detach().unsqueeze(0))
