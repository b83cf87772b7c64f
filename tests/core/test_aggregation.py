from __future__ import annotations

import pytest
import torch

from tinyproto.algorithms.streaming import HolderSums
from tinyproto.core.cps import count_scaled_mean, count_scaled_sum
from tinyproto.core.prototypes import Prototypes, simple_mean, stack_rows, sum_over_holders


def upload(values: list[list[float]], present: list[bool]) -> Prototypes:
    return Prototypes(torch.tensor(values), torch.tensor(present))


FIRST = upload([[2.0, 4.0], [0.0, 0.0], [1.0, 1.0]], [True, False, True])
SECOND = upload([[4.0, 0.0], [0.0, 0.0], [0.0, 0.0]], [True, False, False])


def test_the_simple_mean_is_over_the_holders_of_a_class() -> None:
    merged = simple_mean(sum_over_holders([FIRST, SECOND]))
    assert merged.values.tolist() == [[3.0, 2.0], [0.0, 0.0], [1.0, 1.0]]
    assert merged.present.tolist() == [True, False, True]


def test_count_scaled_uploads_are_summed_or_averaged_over_their_holders() -> None:
    assert count_scaled_sum(sum_over_holders([FIRST, SECOND])).values.tolist() == [[6.0, 4.0], [0.0, 0.0], [1.0, 1.0]]
    assert count_scaled_mean(sum_over_holders([FIRST, SECOND])).values.tolist() == [[3.0, 2.0], [0.0, 0.0], [1.0, 1.0]]


def test_what_stands_in_an_absent_row_adds_nothing() -> None:
    garbage = upload([[float("nan"), 9.0], [7.0, 7.0], [float("inf"), 0.0]], [False, False, False])
    assert simple_mean(sum_over_holders([FIRST, garbage])).values.tolist() == FIRST.values.tolist()


def test_accumulators_merge_as_if_one_had_seen_everything() -> None:
    left, right = HolderSums(3, 2), HolderSums(3, 2)
    left.add(FIRST)
    right.add(SECOND)
    left.merge(right)
    assert simple_mean(left.totals).values.tolist() == simple_mean(sum_over_holders([FIRST, SECOND])).values.tolist()
    assert left.holders.tolist() == [2, 0, 1]


def test_nothing_cannot_be_aggregated() -> None:
    with pytest.raises(ValueError, match="nothing"):
        sum_over_holders([])


def test_stacked_rows_carry_their_classes() -> None:
    values, labels = stack_rows([FIRST, SECOND])
    assert values.tolist() == [[2.0, 4.0], [1.0, 1.0], [4.0, 0.0]]
    assert labels.tolist() == [0, 2, 0]
