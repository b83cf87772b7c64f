"""The client's training loss: cross-entropy and the pull towards global prototypes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

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
