"""Result-neutral keys: marked in the schema, read from there."""

from __future__ import annotations

from tinyproto.config.schema import neutral_keys

ON_RESUME = {
    "train.max_left_out", "train.workers", "train.client_memory", "train.parallel_cells", "keep_models", "tracking",
}  # fmt: skip


def test_a_resumed_run_may_change_only_how_it_is_executed_and_what_it_keeps() -> None:
    assert set(neutral_keys(on_resume=True)) == ON_RESUME


def test_runs_that_differ_in_neutral_keys_alone_have_the_same_results() -> None:
    others = {"name", "data.cache", "train.trainer", "train.device", "checkpoint.every_seconds"}
    assert set(neutral_keys()) == ON_RESUME | others
