from __future__ import annotations

import pytest
import torch

from tinyproto.core.aggregate import (
    HolderSums,
    count_scaled_mean,
    count_scaled_sum,
    keep_last,
    simple_mean,
    stack_rows,
    tensor_mean,
)
from tinyproto.core.prototypes import Prototypes


def upload(values: list[list[float]], present: list[bool]) -> Prototypes:
    return Prototypes(torch.tensor(values), torch.tensor(present))


FIRST = upload([[2.0, 4.0], [0.0, 0.0], [1.0, 1.0]], [True, False, True])
SECOND = upload([[4.0, 0.0], [0.0, 0.0], [0.0, 0.0]], [True, False, False])


def test_the_simple_mean_is_over_the_holders_of_a_class() -> None:
    merged = simple_mean([FIRST, SECOND])
    assert merged.values.tolist() == [[3.0, 2.0], [0.0, 0.0], [1.0, 1.0]]
    assert merged.present.tolist() == [True, False, True]


def test_count_scaled_uploads_are_summed_or_averaged_over_their_holders() -> None:
    assert count_scaled_sum([FIRST, SECOND]).values.tolist() == [[6.0, 4.0], [0.0, 0.0], [1.0, 1.0]]
    assert count_scaled_mean([FIRST, SECOND]).values.tolist() == [[3.0, 2.0], [0.0, 0.0], [1.0, 1.0]]


def test_what_stands_in_an_absent_row_adds_nothing() -> None:
    garbage = upload([[float("nan"), 9.0], [7.0, 7.0], [float("inf"), 0.0]], [False, False, False])
    assert simple_mean([FIRST, garbage]).values.tolist() == FIRST.values.tolist()


def test_accumulators_merge_as_if_one_had_seen_everything() -> None:
    left, right = HolderSums(3, 2), HolderSums(3, 2)
    left.add(FIRST)
    right.add(SECOND)
    left.merge(right)
    assert left.mean().values.tolist() == simple_mean([FIRST, SECOND]).values.tolist()
    assert left.holders.tolist() == [2, 0, 1]


def test_nothing_cannot_be_aggregated() -> None:
    with pytest.raises(ValueError, match="nothing"):
        simple_mean([])


def test_a_class_nobody_sent_keeps_its_last_value() -> None:
    last = upload([[9.0, 9.0], [8.0, 8.0], [7.0, 7.0]], [True, True, False])
    kept = keep_last(SECOND, last)
    assert kept.values.tolist() == [[4.0, 0.0], [8.0, 8.0], [7.0, 7.0]]
    assert kept.present.tolist() == [True, True, False]


def test_stacked_rows_carry_their_classes() -> None:
    values, labels = stack_rows([FIRST, SECOND])
    assert values.tolist() == [[2.0, 4.0], [1.0, 1.0], [4.0, 0.0]]
    assert labels.tolist() == [0, 2, 0]


def test_tensors_are_averaged_one_by_one_with_their_weights() -> None:
    uploads = [
        {"w": torch.tensor([2.0, 0.0]), "b": torch.tensor(1.0)},
        {"w": torch.tensor([6.0, 4.0]), "b": torch.tensor(5.0)},
    ]
    weighted, plain = tensor_mean(uploads, [1, 3]), tensor_mean(uploads, [1, 1])
    assert (weighted["w"].tolist(), float(weighted["b"])) == ([5.0, 3.0], 4.0)
    assert (plain["w"].tolist(), float(plain["b"])) == ([4.0, 2.0], 3.0)
    assert weighted["w"].dtype == torch.float32


def test_who_has_no_samples_has_no_weight_unless_nobody_has_any() -> None:
    uploads = [{"w": torch.tensor([2.0])}, {"w": torch.tensor([8.0])}]
    assert tensor_mean(uploads, [0, 7])["w"].tolist() == [8.0]
    assert tensor_mean(uploads, [0, 0])["w"].tolist() == [5.0]


def test_a_mean_of_many_equal_tensors_is_that_tensor() -> None:
    value = torch.tensor([0.1, 1e-8, 12345.678])
    assert torch.equal(tensor_mean([{"w": value}] * 1000, [3] * 1000)["w"], value)
