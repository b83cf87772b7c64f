"""Robust statistics, by hand-worked cases."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tinyproto.core.robust import coordinate_median, krum_order, near_centre, trimmed_mean, trusted, unscaled

ALL = torch.ones(5, 1, dtype=torch.bool)


def one_class(*rows: tuple[float, float]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64).unsqueeze(1)  # (M, 1, 2)


def test_what_counts_explain_is_removed_and_directions_stay() -> None:
    prototypes = torch.tensor(
        [[[3.0, 4.0], [5.0, 0.0]], [[0.0, 5.0], [4.0, 3.0]]], dtype=torch.float64
    )  # all of length 5
    counts = torch.tensor([[2.0, 8.0], [30.0, 10.0]], dtype=torch.float64)
    scaled = prototypes * counts.unsqueeze(2)
    present = torch.ones(2, 2, dtype=torch.bool)
    torch.testing.assert_close(unscaled(scaled, present, counts.sum(1)), prototypes)


def test_the_median_ignores_who_does_not_hold_a_class() -> None:
    values = one_class((1, 1), (2, 5), (3, 3), (1e9, 1e9), (1e9, 1e9))
    present = torch.tensor([[True], [True], [True], [False], [False]])
    assert coordinate_median(values, present).tolist() == [[2, 3]]
    assert coordinate_median(values, torch.zeros(5, 1, dtype=torch.bool)).tolist() == [[0, 0]]


@pytest.mark.parametrize(("share", "mean"), [(0.2, 3.0), (0.4, 3.0), (0.01, 3.0)])
def test_the_trimmed_mean_leaves_out_both_ends(share: float, mean: float) -> None:
    values = one_class((1, -1e6), (2, 3), (3, 3), (4, 3), (1e6, 1e6))
    assert trimmed_mean(values, ALL, share).tolist() == [[mean, 3]]


def test_the_trimmed_mean_of_two_is_their_mean() -> None:
    values = one_class((1, 1), (3, 5))
    assert trimmed_mean(values, ALL[:2], 0.4).tolist() == [[2, 3]]


@pytest.mark.parametrize("attack", [(1e3, 1e3), (-1.0, -1.0), (1e9, -1e9)])
def test_a_row_that_is_far_off_or_points_away_is_set_aside(attack: tuple[float, float]) -> None:
    values = one_class((1.0, 1.0), (1.1, 0.9), (0.9, 1.1), (1.2, 1.0), attack)
    assert near_centre(values, ALL, 3.0)[:, 0].tolist() == [True, True, True, True, False]


def test_stragglers_are_trusted_where_most_have_converged() -> None:
    values = one_class((1.0, 1.0), (1.0, 1.0), (1.0, 1.0), (1.0, 1.0), (0.5, 0.6))
    assert near_centre(values, ALL, 3.0).all()


def test_two_holders_cannot_outvote_each_other_but_an_absurd_length_is_seen() -> None:
    values = torch.tensor([[[1.0], [1.0]], [[-1.0], [1.0]], [[0.0], [1e6]]], dtype=torch.float64)
    present = torch.tensor([[True, True], [True, False], [False, True]])
    assert near_centre(values, present, 3.0).tolist() == [[True, True], [True, False], [False, False]]


def test_a_client_with_most_rows_far_off_is_distrusted_whole() -> None:
    values = torch.ones(6, 3, 2, dtype=torch.float64)
    values[5] = -1.0
    present = torch.ones(6, 3, dtype=torch.bool)
    present[:5, 2] = False  # class 2 is held by the hostile client alone
    found = trusted(values, present, 3.0)
    assert not found[5].any()
    assert found[:5, :2].all()


def test_hostile_clients_that_outnumber_the_holders_of_a_class_are_known_by_the_others() -> None:
    values = torch.ones(8, 3, 2, dtype=torch.float64)
    values[5:] = -1.0  # three hostile clients claim all classes
    present = torch.ones(8, 3, dtype=torch.bool)
    present[1:5, 2] = False  # one honest client holds class 2
    found = trusted(values, present, 3.0)
    assert found[0].tolist() == [True, True, True]
    assert not found[5:].any()


def test_krum_puts_the_odd_one_last() -> None:
    values = one_class((1.0, 1.0), (1.1, 0.9), (9.0, 9.0), (0.9, 1.1), (1.2, 1.0))
    assert krum_order(values, ALL, 1)[-1] == 2


def test_krum_compares_clients_by_the_classes_that_both_hold() -> None:
    values = torch.zeros(5, 2, 1, dtype=torch.float64)
    values[:, 1] = 100.0  # class 1 lies elsewhere, which says nothing of who holds it
    values[3, 0] = 50.0
    present = torch.tensor([[True, False], [True, True], [True, True], [True, False], [False, True]])
    assert krum_order(values, present, 1)[-1] == 3
