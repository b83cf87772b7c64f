"""A run resumes with the config it started with; keys that do not change results may differ."""

from __future__ import annotations

import weakref
from pathlib import Path
from typing import Any, cast

import pytest

from tinyproto.config import parse_config
from tinyproto.engine.round import RoundRecord
from tinyproto.engine.server import ServerRuntime
from tinyproto.errors import CheckpointError
from tinyproto.tracking.recorder import CellRecorder, check_same_config
from tinyproto.tracking.run_folder import RunFolder
from tinyproto.tracking.summary import RoundResult


def config(**train: Any) -> dict[str, Any]:
    return parse_config({"models": ["small_cnn_a"], "algorithms": ["local"], "train": train}).resolved()


def played(number: int) -> RoundResult:
    none: dict[str, float | None] = dict.fromkeys(("head", "global", "local"))
    record = RoundRecord(number, False, (), none, none, {"cross_entropy": 0.1 * number}, {}, {})
    return RoundResult(record, {"total": number / 3}, sockets={number: {"up": 5, "down": 6}})


def test_recorded_rounds_are_in_the_files_and_not_in_memory(tmp_path: Path) -> None:
    identity = {"algorithm": "local", "label": "local", "seed": 0}
    recorder = CellRecorder(RunFolder(tmp_path), {}, identity, cast("ServerRuntime", None))
    result = played(1)
    kept = weakref.ref(result.record)
    recorder.append(result)
    recorder.append(played(2))
    del result
    assert kept() is None
    assert recorder.done == 2
    assert list(recorder.rounds()) == [played(number) for number in (1, 2)]


def test_keys_that_do_not_change_results_may_change() -> None:
    check_same_config(config(), config(workers=2, client_memory="1GB", parallel_cells=4, max_left_out=0.9))
    check_same_config(config(), {**config(), "keep_models": True})
    check_same_config(config(), {**config(), "tracking": ["tensorboard", "mlflow"]})


@pytest.mark.parametrize("changed", [{"rounds": 7}, {"device": "cuda"}, {"trainer": "graphed"}, {"precision": "exact"}])
def test_any_other_key_is_refused_and_named(changed: dict[str, Any]) -> None:
    (key,) = changed
    with pytest.raises(CheckpointError, match=rf"train\.{key}: .* → "):
        check_same_config(config(), config(**changed))
