"""The client's training loss: cross-entropy and the pull towards global prototypes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from tinyproto.core.prototypes import Prototypes, class_sums

Distance = Literal["mse", "l2"]

TINY = 1e-12
"""Below this a squared distance counts as zero, so that the square root keeps a finite gradient."""


def safe_norm(difference: Tensor) -> Tensor:
    """L2 norm over the last axis, with gradient zero (not NaN) at zero."""
    return difference.square().sum(-1).clamp_min(TINY).sqrt()


def mse_regulariser(features: Tensor, labels: Tensor, prototypes: Prototypes) -> Tensor:
    """R of eq. (6) as the published runs compute it: squared error of each sample to its class's prototype.

    The mean is over all B·d entries; a sample whose class has no prototype contributes zero to the sum.
    """
    wanted = prototypes.present[labels].unsqueeze(1)
    difference = torch.where(wanted, features - prototypes.values[labels], torch.zeros_like(features))
    return difference.square().mean()


def l2_regulariser(features: Tensor, labels: Tensor, prototypes: Prototypes) -> Tensor:
    """R of eq. (6) and (11) as printed: Σ_j ρ(c̄ᴸ_j, c̄ᴳ_j), Euclidean, with c̄ᴸ_j the mean of class j in the batch."""
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
"""A divergence as a mean over the samples, or over samples and classes, which is K times smaller."""

CERTAIN = torch.finfo(torch.float32).eps
"""Below this, its own resolution, a cross-entropy counts as zero; nothing is divided by less."""


class Mutual(NamedTuple):
    """The losses of two networks that learn together."""

    local: Tensor
    auxiliary: Tensor


class Opinion(NamedTuple):
    """What one network says of a batch."""

    logits: Tensor  # (B, K)
    features: Tensor  # (B, d)


def divergence(logits: Tensor, target_logits: Tensor, reduction: Reduction) -> Tensor:
    """KL(softmax(target) ‖ softmax(logits)), temperature 1.

    The target enters as a logarithm: a probability too small for float32 would have NaN for a gradient.
    """
    target = target_logits.log_softmax(1)
    total = (target.exp() * (target - logits.log_softmax(1))).sum()
    return total / (len(logits) if reduction == "batch" else logits.numel())


def mutual_losses(
    local: Tensor, auxiliary: Tensor, labels: Tensor, *, local_weight: float, auxiliary_weight: float,
    reduction: Reduction, detach: bool,
) -> Mutual:  # fmt: skip
    """FML: α·CE + (1 − α)·KL towards the other's output, for both; `detach` makes the other a fixed target."""
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
    """FedKD: CE, and over D = CE_local + CE_auxiliary the divergence of outputs and the distance of features.

    `adapted` (B, d) are the auxiliary network's features after the learned map W_h. Networks that are wrong learn less
    from each other. With `detach`, D is a plain weight and what is learned from is fixed; W_h learns in either case.
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
    """FedDistill: cross-entropy to the softmax of the class's global mean logits, mean over the batch.

    A sample whose class has none yet adds zero.
    """
    wanted = global_logits.present[labels].unsqueeze(1)
    targets = global_logits.values[labels].softmax(1)  # (B, K)
    return -(torch.where(wanted, targets, torch.zeros_like(targets)) * logits.log_softmax(1)).sum(1).mean()
