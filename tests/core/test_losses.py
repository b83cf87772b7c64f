from __future__ import annotations

import math

import pytest
import torch

from tinyproto.core.prototypes import REGULARISERS, Distance, Prototypes, l2_regulariser, mse_regulariser, safe_norm

PROTOTYPES = Prototypes(torch.tensor([[1.0, 0.0], [0.0, 0.0], [0.0, 2.0]]), torch.tensor([True, False, True]))


def test_mse_is_the_mean_over_all_entries_with_absent_classes_as_zero() -> None:
    features = torch.tensor([[3.0, 1.0], [50.0, 50.0], [0.0, 0.0]])
    # Sample 0 is of class 0: 4 + 1; sample 1 of the absent class 1: 0; sample 2 of class 2: 0 + 4. Six entries.
    assert float(mse_regulariser(features, torch.tensor([0, 1, 2]), PROTOTYPES)) == pytest.approx(9 / 6)


def test_l2_sums_the_distances_of_the_batch_s_class_means() -> None:
    features = torch.tensor([[3.0, 4.0], [5.0, 4.0], [50.0, 50.0], [0.0, 1.0]])
    # Class 0 has mean (4, 4): distance 5 to (1, 0). Class 2 has mean (0, 1): distance 1. Class 1 is absent.
    assert float(l2_regulariser(features, torch.tensor([0, 0, 1, 2]), PROTOTYPES)) == pytest.approx(6.0)


@pytest.mark.parametrize("distance", ["mse", "l2"])
def test_an_absent_class_contributes_exactly_nothing_to_loss_and_gradient(distance: Distance) -> None:
    none = Prototypes.absent(3, 2)
    features = torch.randn(5, 2, requires_grad=True)
    loss = REGULARISERS[distance](features, torch.tensor([0, 1, 2, 0, 1]), none)
    loss.backward()  # type: ignore[no-untyped-call]
    assert float(loss.detach()) == 0.0
    assert features.grad is not None
    assert float(features.grad.abs().max()) == 0.0


@pytest.mark.parametrize("distance", ["mse", "l2"])
def test_garbage_in_an_absent_row_never_shows(distance: Distance) -> None:
    poisoned = Prototypes(torch.full((3, 2), math.nan), torch.zeros(3, dtype=torch.bool))
    features = torch.randn(4, 2, requires_grad=True)
    loss = REGULARISERS[distance](features, torch.tensor([0, 1, 2, 0]), poisoned)
    loss.backward()  # type: ignore[no-untyped-call]
    assert float(loss.detach()) == 0.0
    assert features.grad is not None
    assert bool(features.grad.isfinite().all())


def test_the_norm_has_a_finite_gradient_at_zero() -> None:
    difference = torch.zeros(1, 3, requires_grad=True)
    safe_norm(difference).sum().backward()  # type: ignore[no-untyped-call]
    assert difference.grad is not None
    assert difference.grad.tolist() == [[0.0, 0.0, 0.0]]
