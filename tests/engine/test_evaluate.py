from __future__ import annotations

import torch
from torch import nn

from tinyproto.core.prototypes import Prototypes
from tinyproto.engine.measure import score

FEATURES = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.9, 0.2]])
LABELS = torch.tensor([0, 1, 1])
STRAIGHT = Prototypes(torch.eye(2), torch.tensor([True, True]))
SWAPPED = Prototypes(torch.eye(2).flip(0), torch.tensor([True, True]))


def test_all_three_rules_are_scored_from_the_same_features() -> None:
    metrics = score(nn.Identity(), FEATURES, LABELS, SWAPPED, STRAIGHT)
    assert metrics == {"test_samples": 3.0, "correct_head": 2.0, "correct_global": 1.0, "correct_local": 2.0}


def test_a_rule_without_prototypes_has_no_score() -> None:
    metrics = score(nn.Identity(), FEATURES, LABELS, None, Prototypes.absent(2, 2))
    assert metrics == {"test_samples": 3.0, "correct_head": 2.0}
    assert "correct_global" not in score(nn.Identity(), FEATURES, LABELS, Prototypes.absent(2, 2), STRAIGHT)


def test_an_empty_test_part_scores_nothing() -> None:
    metrics = score(nn.Identity(), FEATURES[:0], LABELS[:0], STRAIGHT, STRAIGHT)
    assert metrics == {"test_samples": 0.0, "correct_head": 0.0, "correct_global": 0.0, "correct_local": 0.0}


def test_dropout_in_the_head_is_off() -> None:
    head = nn.Sequential(nn.Dropout(0.99))
    head.train()
    assert score(head, FEATURES, LABELS, None, STRAIGHT)["correct_head"] == 2.0
