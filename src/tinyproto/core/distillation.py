"""Losses of networks that learn from each other (FML, FedKD) or from the mean logits of a class (FedDistill)."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from tinyproto.core.prototypes import Prototypes

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
