"""A run resumes with the config it started with; keys that do not change results may differ."""

from __future__ import annotations

from typing import Any

import pytest

from tinyproto.config import parse_config
from tinyproto.errors import CheckpointError
from tinyproto.tracking.recorder import check_same_config


def config(**train: Any) -> dict[str, Any]:
    return parse_config({"models": ["small_cnn_a"], "algorithms": ["local"], "train": train}).resolved()


def test_keys_that_do_not_change_results_may_change() -> None:
    check_same_config(config(), config(workers=2, client_memory="1GB", parallel_cells=4, max_left_out=0.9))
    check_same_config(config(), {**config(), "keep_models": True})
    check_same_config(config(), {**config(), "tracking": ["tensorboard", "mlflow"]})


@pytest.mark.parametrize("changed", [{"rounds": 7}, {"device": "cuda"}, {"trainer": "graphed"}, {"precision": "exact"}])
def test_any_other_key_is_refused_and_named(changed: dict[str, Any]) -> None:
    (key,) = changed
    with pytest.raises(CheckpointError, match=rf"train\.{key}: .* → "):
        check_same_config(config(), config(**changed))
