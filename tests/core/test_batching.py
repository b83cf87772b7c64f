from __future__ import annotations

import pytest
import torch

from tinyproto.core.task import LastBatch, batch_plan, batch_sizes


@pytest.mark.parametrize(
    ("samples", "last", "sizes"),
    [
        (8, "join", (4, 4)),
        (10, "join", (4, 4, 2)),
        (9, "join", (4, 5)),
        (1, "join", (1,)),
        (0, "join", ()),
        (9, "keep", (4, 4, 1)),
        (10, "drop", (4, 4)),
        (3, "drop", (3,)),
    ],
)
def test_an_epoch_s_batches(samples: int, last: LastBatch, sizes: tuple[int, ...]) -> None:
    assert batch_sizes(samples, 4, last) == sizes


@pytest.mark.parametrize(("rest", "tail"), [(3, (35,)), (15, (47,)), (16, (32, 16)), (31, (32, 31))])
def test_a_rest_of_less_than_half_a_batch_joins_the_batch_before_it(rest: int, tail: tuple[int, ...]) -> None:
    # EfficientNet-B0 at 32 × 32 pixels: one step on three samples made its features 1e16 times larger.
    assert batch_sizes(60 * 32 + rest, 32, "join") == (32,) * 59 + tail


def test_shuffled_epochs_each_go_through_every_sample_in_a_new_order() -> None:
    plan = batch_plan(20, 8, epochs=3, last="join", shuffle=torch.Generator().manual_seed(0))
    assert plan.order.shape == (3, 20)
    assert all(sorted(order) == list(range(20)) for order in plan.order.tolist())
    assert plan.order[0].tolist() != plan.order[1].tolist()


def test_without_shuffling_the_same_samples_are_dropped_every_epoch() -> None:
    plan = batch_plan(10, 4, epochs=2, last="drop", shuffle=None)
    assert plan.order.tolist() == [list(range(8))] * 2
