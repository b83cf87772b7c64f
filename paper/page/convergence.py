"""The assumption of the paper's convergence proof, tried with the operators of the package.

The paper assumes that the support of S(c) is a fixed set, tried here with FedProto's recorded prototypes, and that S
expands no distance, tried with random ones. It writes the last step of its lemma as an equality,
‖S(c) − S(c')‖ = ‖c − c'‖, where c and c' are means of local prototypes. The proof is of CPS alone. Facts on scaling and
int4 decide nothing. TinyProto-FT is not tried: the proof starts from a mean, and its global prototypes are trained.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from paper.experiments import CPS_DIM, DIM
from paper.page.verdicts import Claim, Fact
from tinyproto.core.cps import compress, count_scaled_sum, reconstruct, scale, scale_by_count, sparsify, weighed_mean
from tinyproto.core.masks import build_masks
from tinyproto.core.prototypes import Prototypes, simple_mean, sum_over_holders
from tinyproto.report.words import percent
from tinyproto.wire.values import VALUE_TYPES

CLASSES, CLIENTS, SHARE = 100, 20, 0.9
"""Classes and clients of CIFAR-100, and Σ_i μ·n_ij of a class with the published μ of TinyProto-FP."""

APART = 0.01
"""How far the prototypes of two rounds are apart, where their entries are about 1."""

ROUNDING = 1e-4
"""The relative error that float32 may add to a distance."""

Sparsify = Callable[[Prototypes, Tensor], Prototypes]
Merge = Callable[[Tensor], Tensor]
"""From local prototypes (M, K, d) to the global ones (K, d) that clients reconstruct."""


@dataclass(frozen=True)
class Tried:
    """What a merge made of two rounds of random local prototypes."""

    values: Tensor  # (K, d), of the first round
    ratios: Tensor  # (K,): the distance of the two results over that of the two means without it
    additive: bool  # a sum of local prototypes gives the sum of the results


@dataclass(frozen=True)
class Recorded:
    """FedProto's local prototypes of one dataset, as they were recorded."""

    place: str
    values: Tensor  # (n, d)
    classes: Tensor  # (n,)
    num_classes: int


def convergence(recorded: Sequence[Recorded], cps_dim: int = CPS_DIM, sparse: Sparsify = sparsify) -> Claim:
    """Judge the assumption's two parts and the lemma's last step; the first part needs recorded prototypes."""
    random = torch.Generator().manual_seed(0)
    masks = build_masks("balanced", CLASSES, DIM, cps_dim, 0)
    first = torch.randn(CLIENTS, CLASSES, DIM, generator=random)
    first = first.relu()
    second = first + APART * torch.randn(first.shape, generator=random)
    shares = torch.rand(CLIENTS, CLASSES, generator=random)
    shares /= shares.sum(0)  # q_i of each class
    equal = torch.full_like(shares, 1 / CLIENTS)

    def sent(values: Tensor) -> Prototypes:
        return sparse(_all_present(values), masks)

    def mean(values: Tensor) -> Tensor:
        return simple_mean(sum_over_holders([sent(one) for one in values])).values

    cps = _tried(mean, first, second, equal)
    largest, typical = float(cps.ratios.max()), float(cps.ratios.mean())
    grows, shrinks = largest > 1 + ROUNDING, typical < 1 - ROUNDING
    decisive = [
        *_support(recorded, cps_dim, sparse),
        Fact(
            not grows,
            1 - largest,
            f"(b) S expands no distance: the distance of two means is multiplied by at most {largest:.2f}",
        ),
        Fact(
            not grows and float(cps.ratios.min()) >= 1 - ROUNDING,
            typical - 1,
            f"the lemma's last step is an equality: the left side is on average {typical:.2f} of the right one"
            f"{', so it is an inequality, which bounds the loss as well' if shrinks and not grows else ''}",
        ),
    ]
    return Claim(
        "CPS meets the assumption of the convergence proof, and its last step is an equality",
        [*decisive, *_beyond(first, second, shares, masks, sent)],
        [] if recorded else ["the prototypes of a FedProto cell, for the support"],
    )


def _support(recorded: Sequence[Recorded], cps_dim: int, sparse: Sparsify) -> Iterator[Fact]:
    """Judge the first part, if there are prototypes: one with a zero inside its mask has not the assumed support."""
    outside, shares, told = False, [], []
    for one in recorded:
        count, width = one.values.shape
        masks = build_masks("balanced", one.num_classes, width, min(cps_dim, width), 0)[one.classes]  # (n, d)
        kept = sparse(_all_present(one.values), masks).values != 0
        outside |= bool((kept & ~masks).any())
        shares.append(float((kept == masks).all(1).float().mean()))
        zero = percent(float((one.values == 0).float().mean()))
        told.append(f"{percent(shares[-1])} of {count} ({one.place}; {zero} of their entries are zero)")
    if recorded:
        yield Fact(
            not outside and min(shares) == 1,
            min(shares),
            f"(a) the support of S(c) is a fixed set: {'an entry outside is sent' if outside else 'nothing outside'}; "
            f"and all of it for these of FedProto's recorded prototypes: {', '.join(told)}",
        )


def _beyond(
    first: Tensor, second: Tensor, shares: Tensor, masks: Tensor, sent: Callable[[Tensor], Prototypes]
) -> list[Fact]:
    """Return what scaling and four bits do, which the paper's proof does not treat."""
    counts = shares * SHARE  # μ·n_ij

    def one_scale(values: Tensor) -> Tensor:
        scaled = [scale_by_count(sent(one), count) for one, count in zip(values, counts, strict=True)]
        return scale(count_scaled_sum(sum_over_holders(scaled)), 1.0).values

    def weighed(values: Tensor) -> Tensor:
        rows = torch.stack([scale_by_count(sent(one), count).values for one, count in zip(values, counts, strict=True)])
        lengths = rows.norm(dim=2)
        typical = float((lengths.sum(1) / counts.sum(1)).median())
        return weighed_mean(rows.sum(0), lengths.sum(0), typical, torch.ones(CLASSES, dtype=torch.bool)).values

    def four_bits(values: Tensor) -> Tensor:
        return simple_mean(sum_over_holders([_rounded(sent(one), masks) for one in values])).values

    equal = torch.full_like(shares, 1 / CLIENTS)
    merges: tuple[tuple[str, Merge, Tensor], ...] = (
        ("scaling by one μ (q_i = μ·n_ij)", one_scale, counts),
        ("scaling weighed by senders (preset sound)", weighed, shares),
        (f"int4, where entries of about 1 change by {APART:g},", four_bits, equal),
    )
    return [_told(name, _tried(merge, first, second, weights)) for name, merge, weights in merges]


def _told(name: str, tried: Tried) -> Fact:
    """Return a fact that decides nothing: whether a merge is linear and expands no distance."""
    largest = float(tried.ratios.max())
    linear = "linear" if tried.additive else "not linear"
    words = f"not in the proof: with {name} S is {linear} and multiplies the distance by at most {largest:.2f}"
    return Fact(tried.additive and largest <= 1 + ROUNDING, 1 - largest, words, final=False)


def _tried(merge: Merge, first: Tensor, second: Tensor, weights: Tensor) -> Tried:
    """Compare ‖merge(C) − merge(C')‖ with ‖Σ_i q_i (C_i − C'_i)‖ for each class."""
    one, other = merge(first), merge(second)
    means = (weights.unsqueeze(2) * (first - second)).double().sum(0)  # (K, d)
    ratios = (one - other).double().norm(dim=1) / means.norm(dim=1)
    apart = first.roll(1, dims=0)  # every client with the rows of another
    additive = torch.allclose(merge(first + apart), one + merge(apart), rtol=1e-3, atol=1e-4)
    return Tried(one, ratios, additive)


def _rounded(sent: Prototypes, masks: Tensor) -> Prototypes:
    """Return what arrives of prototypes that travel in four bits."""
    kind, rows = VALUE_TYPES["int4"], compress(sent, masks).values.numpy()
    data = np.frombuffer(kind.encode(rows), np.uint8)
    arrived = torch.from_numpy(kind.decode(data, *rows.shape).copy())
    return reconstruct(_all_present(arrived), masks)


def _all_present(values: Tensor) -> Prototypes:
    return Prototypes(values, torch.ones(len(values), dtype=torch.bool))
