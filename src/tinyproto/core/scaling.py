"""Prototype scaling: clients send n_ij · prototype, a constant μ brings it back (paper section 4.2)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tinyproto.core.prototypes import Prototypes

SUM_RULE_SHRINK = 0.9
"""κ of FedProto's μ: the published constants all equal 0.9 over the samples per class."""

TRAINABLE_STRETCH = 3.0
"""κ of FedTGP's μ, over the mean n_ij: between the 2.6 and 5.9 that were best; the published constants are 0.6."""


def scale_by_count(prototypes: Prototypes, counts: Tensor) -> Prototypes:
    """Local scaling: n_ij · c_ij, so that importance travels without n_ij travelling."""
    return Prototypes(prototypes.values * counts.unsqueeze(1).to(prototypes.values.dtype), prototypes.present)


def scale(prototypes: Prototypes, factor: float) -> Prototypes:
    """Global scaling: μ · c, eq. (11); done on the server, so what a client receives is ready to use."""
    return Prototypes(prototypes.values * factor, prototypes.present)


def longest_prototype(dim: int, width: int, proto_weight: float) -> float:
    """Return R = d·√s / 2λ, the length at which the pull on a feature of zero is 1 in each of the s dimensions.

    The gradient of λ·MSE towards a prototype of a in each owned dimension is 2λa/d there, and a row of R has a = d/2λ.
    Without a pull (λ = 0) features do not follow prototypes, and any length will do.
    """
    return dim * math.sqrt(width) / (2 * proto_weight) if proto_weight else math.inf


def shorten(prototypes: Prototypes, length: float) -> Prototypes:
    """Scale rows longer than `length` down to it; the others keep their bits."""
    lengths = torch.linalg.vector_norm(prototypes.values.double(), dim=1, keepdim=True)
    shorter = (prototypes.values.double() * (length / lengths)).to(prototypes.values.dtype)
    return Prototypes(torch.where(lengths > length, shorter, prototypes.values), prototypes.present)


def derived_sum_scale(num_classes: int, samples: int) -> float:
    """μ for the sum rule, 0.9 · K / Σ n_i, given Σ n_i: the sum becomes 0.9 times the mean of balanced classes."""
    return SUM_RULE_SHRINK * num_classes / max(samples, 1)


def derived_mean_scale(classes_held: int, samples: int) -> float:
    """μ for the mean rule, eq. (10): 0.9 over the mean n_ij, which is Σ n_i / Σ K_i, both given."""
    return SUM_RULE_SHRINK * classes_held / max(samples, 1)


def derived_trainable_scale(classes_held: int, samples: int) -> float:
    """μ for FedTGP, given Σ K_i and Σ n_i: 3 over the mean n_ij; an upload becomes 3 · n_ij / mean n · c_ij."""
    return TRAINABLE_STRETCH * classes_held / max(samples, 1)
