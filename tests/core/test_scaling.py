from __future__ import annotations

import math

import pytest
import torch

from tinyproto.core.cps import (
    count_scaled_sum,
    derived_mean_scale,
    derived_sum_scale,
    derived_trainable_scale,
    longest_prototype,
    scale,
    scale_by_count,
    shorten,
)
from tinyproto.core.prototypes import Prototypes, mse_regulariser, sum_over_holders


def test_each_row_is_multiplied_by_its_class_count() -> None:
    prototypes = Prototypes(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([True, True]))
    assert scale_by_count(prototypes, torch.tensor([5, 0])).values.tolist() == [[5, 10], [0, 0]]


def test_the_global_scale_multiplies_every_row() -> None:
    prototypes = Prototypes(torch.tensor([[2.0], [4.0]]), torch.tensor([True, False]))
    assert scale(prototypes, 0.5).values.tolist() == [[1.0], [2.0]]


def test_the_derived_scale_of_the_sum_is_the_published_constant_for_cifar_100() -> None:
    # 60 000 samples, 100 classes, ΣK_i = 921: mean n_ij 65.1. The grid search found 1.5e-3.
    samples, held = 60_000, 921
    assert derived_sum_scale(100, samples) == pytest.approx(1.5e-3)
    assert derived_mean_scale(held, samples) == pytest.approx(0.9 / 65.1, rel=1e-2)


@pytest.mark.parametrize(("held", "below", "above"), [(921, 4e-2, 1e-1), (102, 3e-3, 1e-2)])
def test_the_derived_scale_for_fedtgp_lies_between_the_constants_that_were_best(
    held: int, below: float, above: float
) -> None:
    # CIFAR-100 and CIFAR-10 with their 60 000 samples; the records of `readings` have both neighbours.
    assert below < derived_trainable_scale(held, 60_000) < above


def test_the_sum_rule_with_its_derived_scale_is_nine_tenths_of_the_weighted_mean() -> None:
    counts = torch.tensor([[6, 2], [4, 8]])  # both classes have 10 samples
    values = torch.tensor([[[1.0], [5.0]], [[2.0], [10.0]]])  # (client, class, 1)
    present = torch.tensor([True, True])
    uploads = [scale_by_count(Prototypes(values[i], present), counts[i]) for i in range(2)]
    merged = scale(count_scaled_sum(sum_over_holders(uploads)), derived_sum_scale(2, 20))
    weighted = torch.tensor([[(6 * 1 + 4 * 2) / 10], [(2 * 5 + 8 * 10) / 10]])
    torch.testing.assert_close(merged.values, 0.9 * weighted)


def test_a_row_is_shortened_to_the_limit_and_others_keep_their_bits() -> None:
    rows = Prototypes(torch.tensor([[3.0, 4.0], [0.6, 0.8], [0.0, 0.0]]), torch.tensor([True, True, False]))
    short = shorten(rows, 2.0)
    torch.testing.assert_close(short.values[0], torch.tensor([1.2, 1.6]))
    assert torch.equal(short.values[1:], rows.values[1:])
    assert torch.equal(shorten(rows, math.inf).values, rows.values)


def test_at_the_longest_prototype_the_pull_on_a_feature_of_zero_is_one_in_each_owned_dimension() -> None:
    dim, width, weight = 50, 10, 10.0
    length = longest_prototype(dim, width, weight)
    target = torch.zeros(1, dim)
    target[0, :width] = length / math.sqrt(width)
    feature = torch.zeros(1, dim, requires_grad=True)
    prototypes = Prototypes(target, torch.tensor([True]))
    (weight * mse_regulariser(feature, torch.tensor([0]), prototypes)).backward()  # type: ignore[no-untyped-call]
    assert feature.grad is not None
    torch.testing.assert_close(feature.grad[0, :width], torch.full((width,), -1.0))


def test_without_a_pull_any_length_will_do() -> None:
    assert longest_prototype(50, 10, 0.0) == math.inf


def test_a_federation_without_samples_has_a_finite_scale() -> None:
    assert derived_sum_scale(10, 0) == 9.0
