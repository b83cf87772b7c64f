from __future__ import annotations

import math

import pytest
import torch

from tinyproto.algorithms.fedtgp import (
    TrainablePrototypes,
    adaptive_margin,
    distance_penalty,
    margin_contrastive_loss,
    pairwise_distances,
)
from tinyproto.core.prototypes import Prototypes

ALL = torch.ones(3, dtype=torch.bool)


def test_the_margin_is_the_largest_gap_to_a_nearest_neighbour() -> None:
    # Nearest neighbours on a line at 0, 3, 10: gaps 3, 3, 7.
    centres = Prototypes(torch.tensor([[0.0], [3.0], [10.0]]), ALL)
    assert float(adaptive_margin(centres, cap=100)) == 7.0


def test_the_margin_is_capped() -> None:
    assert float(adaptive_margin(Prototypes(torch.tensor([[0.0], [900.0], [0.0]]), ALL), cap=100)) == 100.0


def test_absent_classes_do_not_enter_the_margin() -> None:
    centres = Prototypes(torch.tensor([[0.0], [500.0], [2.0]]), torch.tensor([True, False, True]))
    assert float(adaptive_margin(centres, cap=100)) == 2.0


def test_one_class_alone_has_no_margin() -> None:
    centres = Prototypes(torch.tensor([[5.0], [0.0], [0.0]]), torch.tensor([True, False, False]))
    assert float(adaptive_margin(centres, cap=100)) == 0.0


def test_the_loss_is_cross_entropy_over_negative_distances_with_the_margin_on_the_true_class() -> None:
    uploads, learned = torch.tensor([[0.0, 0.0]]), torch.tensor([[3.0, 4.0], [0.0, 1.0], [0.0, 2.0]])
    # Distances 5, 1, 2; the true class 1 is pushed to 1 + 0.5.
    expected = math.log(math.exp(-5) + math.exp(-1.5) + math.exp(-2)) + 1.5
    loss = margin_contrastive_loss(uploads, torch.tensor([1]), learned, distance_penalty(torch.tensor(0.5), ALL))
    assert float(loss) == pytest.approx(expected, rel=1e-5)


def test_a_class_not_offered_is_no_candidate_and_gets_no_gradient() -> None:
    uploads = torch.tensor([[0.0, 0.0]])
    learned = torch.tensor([[3.0, 4.0], [0.0, 1.0], [0.0, 2.0]], requires_grad=True)
    offered = torch.tensor([True, True, False])
    loss = margin_contrastive_loss(uploads, torch.tensor([1]), learned, distance_penalty(torch.tensor(0.0), offered))
    loss.backward()  # type: ignore[no-untyped-call]
    assert float(loss.detach()) == pytest.approx(math.log(math.exp(-5) + math.exp(-1)) + 1, rel=1e-5)
    assert learned.grad is not None
    assert learned.grad[2].tolist() == [0.0, 0.0]


def test_distance_zero_is_finite_with_a_finite_gradient() -> None:
    learned = torch.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    uploads = learned.detach().clone()
    loss = margin_contrastive_loss(uploads, torch.tensor([0, 1]), learned, distance_penalty(torch.tensor(1.0), ALL[:2]))
    loss.backward()  # type: ignore[no-untyped-call]
    assert learned.grad is not None
    assert bool(loss.isfinite())
    assert bool(learned.grad.isfinite().all())


def test_distances_are_euclidean() -> None:
    generator = torch.Generator().manual_seed(0)
    left, right = torch.randn(6, 9, generator=generator), torch.randn(4, 9, generator=generator)
    direct = (left.unsqueeze(1) - right).norm(dim=2)
    torch.testing.assert_close(pairwise_distances(left, right), direct)


def test_the_network_gives_one_prototype_per_class() -> None:
    network = TrainablePrototypes(num_classes=7, dim=5)
    assert network().shape == (7, 5)
    expected = network.output(torch.relu(network.hidden(network.embedding.weight)))
    torch.testing.assert_close(network(), expected)
