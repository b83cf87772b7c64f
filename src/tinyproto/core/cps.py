"""Class-wise Prototype Sparsification: which s of d dimensions a class owns, and the operators S, C and reconstruct."""

from __future__ import annotations

import hashlib
from typing import Literal

import torch
from torch import Tensor

from tinyproto.core.mask_search import balanced_search, block_search, random_search
from tinyproto.core.prototypes import Prototypes

MaskKind = Literal["balanced", "random", "blocks"]


def class_masks(num_classes: int, dim: int, cps_dim: int, seed: int) -> Tensor:
    """Masks m_j of all classes, (K, d) bool: s ones per class, every dimension used equally often up to one.

    Disjoint where K·s ≤ d; elsewhere the minimum pairwise Hamming distance is made large. Equal on every machine and
    release for equal arguments, so masks never travel.
    """
    _check_sizes(num_classes, dim, cps_dim)
    return torch.from_numpy(balanced_search(num_classes, dim, cps_dim, seed) != 0)


def random_masks(num_classes: int, dim: int, cps_dim: int, seed: int) -> Tensor:
    """The same, for a study, with overlaps between classes as they fall."""
    _check_sizes(num_classes, dim, cps_dim)
    return torch.from_numpy(random_search(num_classes, dim, cps_dim, seed) != 0)


def block_masks(num_classes: int, dim: int, cps_dim: int, seed: int) -> Tensor:
    """Masks as the published code builds them, for a study: whole blocks of ⌊d/K⌋ neighbouring dimensions per class."""
    _check_sizes(num_classes, dim, cps_dim)
    return torch.from_numpy(block_search(num_classes, dim, cps_dim, seed) != 0)


def _check_sizes(num_classes: int, dim: int, cps_dim: int) -> None:
    if num_classes < 1:
        raise ValueError(f"num_classes must be at least 1, not {num_classes}")
    if not 1 <= cps_dim <= dim:
        raise ValueError(f"cps_dim must be between 1 and dim ({dim}), not {cps_dim}")


def build_masks(kind: MaskKind, num_classes: int, dim: int, cps_dim: int, seed: int) -> Tensor:
    """The masks a config names."""
    build = {"balanced": class_masks, "random": random_masks, "blocks": block_masks}[kind]
    return build(num_classes, dim, cps_dim, seed)


def mask_digest(masks: Tensor) -> str:
    """A short name for a set of masks: equal digests, equal masks."""
    return hashlib.blake2b(masks.cpu().numpy().astype("u1").tobytes(), digest_size=16).hexdigest()


def owned_dimensions(masks: Tensor) -> Tensor:
    """The dimensions each class owns, ascending, (K, s)."""
    return masks.nonzero()[:, 1].view(masks.shape[0], -1)


def sparsify(prototypes: Prototypes, masks: Tensor) -> Prototypes:
    """S(c; m) = c ⊙ m, eq. (7): the structured sparse prototype c̃."""
    return Prototypes(prototypes.values * masks.to(prototypes.values.dtype), prototypes.present)


def compress(prototypes: Prototypes, masks: Tensor) -> Prototypes:
    """C(c; m) = (c_i : m_i = 1), eq. (8): the compressed prototype ĉ, (K, d) to (K, s)."""
    return Prototypes(prototypes.values.gather(1, owned_dimensions(masks)), prototypes.present)


def reconstruct(compressed: Prototypes, masks: Tensor) -> Prototypes:
    """The structured sparse prototype c̃ from the compressed ĉ, (K, s) to (K, d); reconstruct ∘ C = S."""
    values = compressed.values.new_zeros(masks.shape).scatter(1, owned_dimensions(masks), compressed.values)
    return Prototypes(values, compressed.present)
