"""TinyProto's two operations on prototypes: Class-wise Prototype Sparsification (CPS) and prototype scaling.

CPS (paper section 4.1): each class owns s of the d dimensions, and only these travel. Scaling (section 4.2): clients
send n_ij times the prototype, and a constant μ brings the global prototype back to a prototype's scale.
`core/masks.py` finds the dimensions.
"""

from __future__ import annotations

import math
from collections.abc import MutableMapping

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from tinyproto.core.prototypes import ClassSums, Prototypes, simple_mean

SUM_RULE_SHRINK = 0.9
"""κ of FedProto's μ: the published constants all equal 0.9 over the samples per class."""

TRAINABLE_STRETCH = 3.0
"""κ of FedTGP's μ, over the mean n_ij: between the 2.6 and 5.9 that were best; the published constants are 0.6."""


_OWNED: MutableMapping[Tensor, dict[torch.device, Tensor]] = WeakTensorKeyDictionary()
"""A cache by device: every client needs them twice a round, and a search in a mask takes longer than their use."""


def owned_dimensions(masks: Tensor, device: torch.device | None = None) -> Tensor:
    """Return the dimensions that each class owns, ascending, (K, s), on a device, or that of the masks."""
    known = _OWNED.setdefault(masks, {})
    place = masks.device if device is None else device
    if place not in known:
        known[place] = masks.nonzero()[:, 1].view(masks.shape[0], -1).to(place)
    return known[place]


def sparsify(prototypes: Prototypes, masks: Tensor) -> Prototypes:
    """Return S(c; m) = c ⊙ m, eq. (7): the structured sparse prototype c̃."""
    return Prototypes(prototypes.values * masks.to(prototypes.values.dtype), prototypes.present)


def compress(prototypes: Prototypes, masks: Tensor | None) -> Prototypes:
    """Return C(c; m) = (c_i : m_i = 1), eq. (8): the compressed prototype ĉ, (K, d) to (K, s).

    Without masks, here and in `reconstruct`, all dimensions travel and prototypes stay as they are.
    """
    if masks is None:
        return prototypes
    owned = owned_dimensions(masks, prototypes.values.device)
    return Prototypes(prototypes.values.gather(1, owned), prototypes.present)


def reconstruct(compressed: Prototypes, masks: Tensor | None) -> Prototypes:
    """Return the structured sparse prototype c̃ from the compressed ĉ, (K, s) to (K, d); reconstruct ∘ C = S."""
    if masks is None:
        return compressed
    owned = owned_dimensions(masks, compressed.values.device)
    values = compressed.values.new_zeros(masks.shape).scatter(1, owned, compressed.values)
    return Prototypes(values, compressed.present)


def scale_by_count(prototypes: Prototypes, counts: Tensor) -> Prototypes:
    """Return n_ij · c_ij, the local scaling: importance travels, and n_ij does not."""
    return Prototypes(prototypes.values * counts.unsqueeze(1).to(prototypes.values.dtype), prototypes.present)


def scale(prototypes: Prototypes, factor: float) -> Prototypes:
    """Return μ · c, the global scaling of eq. (11); the server does it, so a client receives what it can use."""
    return Prototypes(prototypes.values * factor, prototypes.present)


def count_scaled_mean(scaled: ClassSums) -> Prototypes:
    """Return ĉᴳ_j, eq. (10): 1/|N_j| Σ n_ij ĉ_ij, given the sums of uploads n_ij ĉ_ij."""
    return simple_mean(scaled)


def count_scaled_sum(scaled: ClassSums) -> Prototypes:
    """Return Σ n_ij ĉ_ij, the rule behind the paper's tables: times κ / Σ_i n_ij it is κ times the weighted mean."""
    return Prototypes(scaled.sums.float(), scaled.counts > 0)


def weighed_mean(sums: Tensor, lengths: Tensor, typical: float, present: Tensor) -> Prototypes:
    """Return ℓ · Σ_i n_ij ĉ_ij / Σ_i ‖n_ij ĉ_ij‖, (K, w) over (K,), of the classes present.

    Where all prototypes of a class have the length ℓ, Σ_i ‖n_ij ĉ_ij‖ = ℓ Σ_i n_ij over the senders. Then this is the
    mean weighted by n_ij, and no n_ij is needed. It is never longer than ℓ, and zero if all rows are zero.
    """
    factors = torch.where(lengths > 0, typical / lengths, torch.zeros_like(lengths))
    return Prototypes((sums * factors.unsqueeze(1)).float() * present.unsqueeze(1), present)


def derived_sum_scale(num_classes: int, samples: int) -> float:
    """Return μ for the sum rule, 0.9 · K / Σ n_i: the sum becomes 0.9 times the mean of balanced classes."""
    return SUM_RULE_SHRINK * num_classes / max(samples, 1)


def derived_mean_scale(classes_held: int, samples: int) -> float:
    """Return μ for the mean rule, eq. (10): 0.9 over the mean n_ij, which is Σ n_i / Σ K_i."""
    return SUM_RULE_SHRINK * classes_held / max(samples, 1)


def derived_trainable_scale(classes_held: int, samples: int) -> float:
    """Return μ for FedTGP, 3 over the mean n_ij: an upload becomes 3 · n_ij / mean n · c_ij."""
    return TRAINABLE_STRETCH * classes_held / max(samples, 1)


def longest_prototype(dim: int, width: int, proto_weight: float) -> float:
    """Return R = d·√s / 2λ, the length at which the pull on a feature of zero is 1 in each of the s dimensions.

    The gradient of λ·MSE towards a prototype of a in each owned dimension is 2λa/d there, and a row of R has a = d/2λ.
    Without a pull (λ = 0) features do not follow prototypes, and any length is allowed.
    """
    return dim * math.sqrt(width) / (2 * proto_weight) if proto_weight else math.inf


def shorten(prototypes: Prototypes, length: float) -> Prototypes:
    """Scale rows longer than `length` down to it; the others keep their bits."""
    lengths = torch.linalg.vector_norm(prototypes.values.double(), dim=1, keepdim=True)
    shorter = (prototypes.values.double() * (length / lengths)).to(prototypes.values.dtype)
    return Prototypes(torch.where(lengths > length, shorter, prototypes.values), prototypes.present)


def with_length(prototypes: Prototypes, length: float) -> Prototypes:
    """Scale each row to `length`; a row of zeros has no direction and counts as absent."""
    values = prototypes.values.double()
    lengths = torch.linalg.vector_norm(values, dim=1, keepdim=True)
    present = prototypes.present & (lengths[:, 0] > 0)
    factors = torch.where(lengths > 0, length / lengths, torch.zeros_like(lengths))
    return Prototypes((values * factors).float() * present.unsqueeze(1), present)
