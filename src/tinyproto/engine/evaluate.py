"""The three ways to classify a test sample, all from one pass of features."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tinyproto.core.prototypes import Prototypes, nearest

RULES = ("head", "global", "local")
"""By the client's own head, by the nearest global prototype, by the nearest of the client's own prototypes."""


@torch.no_grad()
def score(
    head: nn.Module, features: Tensor, labels: Tensor, global_: Prototypes | None, local: Prototypes
) -> dict[str, float]:
    """Metrics `test_samples` and `correct_<rule>` for each rule that applies; without prototypes none does."""
    head.eval()
    guesses = {"head": head(features).argmax(1)}
    for rule, prototypes in (("global", global_), ("local", local)):
        if prototypes is not None and bool(prototypes.present.any()):
            guesses[rule] = nearest(features, prototypes)
    correct = {f"correct_{rule}": float((guess == labels).sum()) for rule, guess in guesses.items()}
    return {"test_samples": float(len(labels)), **correct}
