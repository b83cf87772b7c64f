from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from tinyproto.core.prototypes import Prototypes
from tinyproto.engine.measure import Scored, score, scores, scores_together

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


MOST_OPERATIONS = 20
"""Operations on tensors per client, views included; scoring client after client takes 50."""

WAITS = ("_local_scalar_dense", "nonzero", "masked_select", "equal", "is_nonzero", "_to_copy")
"""Operations for which the host waits for a GPU, or may do so."""


class Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts operations, and those for which the host waits for a GPU."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total = 0
        self.waits: Counter[str] = Counter()

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        name = function.overloadpacket.__name__
        self.total += 1
        by_mask = name.startswith("index") and any(
            isinstance(each, Tensor) and each.dtype == torch.bool for each in (args[1] if len(args) > 1 else ()) or ()
        )
        if by_mask or name in WAITS:
            self.waits[name] += 1
        return function(*args, **(kwargs or {}))


class Reads(TorchFunctionMode):
    """Counts copies to the host, which on a CPU are no operations."""

    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    def __torch_function__(
        self, function: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        self.total += getattr(function, "__name__", "") in ("tolist", "cpu", "item", "numpy", "to")
        return function(*args, **(kwargs or {}))


def scored(clients: int, classes: int = 10, width: int = 8) -> list[Scored]:
    """Clients with other numbers of samples, the first of them with fewer prototypes."""
    generator = torch.Generator().manual_seed(0)
    found = []
    for number in range(clients):
        samples = 5 * number
        global_, local = (
            Prototypes(
                torch.randn(classes, width, generator=generator), torch.rand(classes, generator=generator) < share
            )
            for share in (0.8, 0.4)
        )
        received = {0: None, 1: Prototypes.absent(classes, width)}.get(number, global_)
        labels = torch.randint(0, classes, (samples,), generator=generator)
        head, features = nn.Linear(width, classes), torch.randn(samples, width, generator=generator)
        found.append(
            Scored(head, features, labels, received, Prototypes.absent(classes, width) if number == 2 else local)
        )
    return found


def test_clients_scored_together_have_the_scores_of_each_alone() -> None:
    clients = scored(12)
    assert scores_together(clients) == scores(clients) == [score(*client) for client in clients]
    assert scores_together([]) == []


def test_clients_are_scored_together_in_few_operations_and_without_the_host_waiting_for_each() -> None:
    several = Operations(), Operations()
    for operations, clients in zip(several, (scored(4), scored(24)), strict=True):
        reads = Reads()
        with reads, operations:
            scores_together(clients)
        assert not operations.waits
        assert reads.total == 1
    assert several[1].total - several[0].total <= 20 * MOST_OPERATIONS
