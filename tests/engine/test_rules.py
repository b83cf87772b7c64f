"""The rules as modules: the classes that evaluation finds, with scores that are what they are said to be."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tinyproto.core.prototypes import Prototypes, nearest
from tinyproto.engine.rules import HeadRule, PrototypeRule


@pytest.mark.parametrize("offset", [0.0, 3.0, 1000.0])
@pytest.mark.parametrize("present", [[True] * 6, [False, True, True, False, True, False], [False] * 5 + [True]])
def test_the_highest_score_is_the_nearest_prototype_and_scores_are_minus_distances(
    offset: float, present: list[bool]
) -> None:
    drawn = torch.Generator().manual_seed(0)
    values = torch.randn(6, 20, generator=drawn) + offset
    features = torch.randn(500, 20, generator=drawn) + offset
    prototypes = Prototypes(values, torch.tensor(present))
    scores = PrototypeRule(prototypes)(features)
    assert torch.equal(scores.argmax(1), nearest(features, prototypes))
    distances = torch.cdist(features.double(), values.double())[:, present]
    torch.testing.assert_close(-scores[:, present], distances, rtol=1e-4, atol=1e-3)
    assert bool((scores[:, ~torch.tensor(present)] == -torch.inf).all())


def test_close_calls_stay_apart() -> None:
    """In float32, adding what all classes share would make the two equal."""
    prototypes = Prototypes(torch.tensor([[1.0, 0.0], [1.0, 1e-3], [0.0, 0.0]]), torch.ones(3, dtype=torch.bool))
    features = torch.tensor([[3000.0, 5.1e-4], [3000.0, 4.9e-4]])
    assert torch.equal(PrototypeRule(prototypes)(features).argmax(1), nearest(features, prototypes))


def test_the_head_s_scores_are_its_softmax() -> None:
    head, features = nn.Linear(4, 3), torch.randn(7, 4, generator=torch.Generator().manual_seed(0))
    scores = HeadRule(head)(features)
    torch.testing.assert_close(scores.sum(1), torch.ones(7, dtype=torch.float64))
    assert torch.equal(scores.argmax(1), head(features).argmax(1))
