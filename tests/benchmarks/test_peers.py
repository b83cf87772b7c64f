"""`python -m benchmarks peers`: both sides do the same work, and what did not learn is told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.contenders import Asked
from benchmarks.peers import command
from benchmarks.peers.command import problems
from benchmarks.peers.pfl_rounds import MISSING, PflRounds
from benchmarks.peers.work import Ours, Work, cohort, distance, initial_network, pooled_test
from support_benchmarks import benchmark

SMALL = Work(clients=8, participants=2, learning_rate=0.01, device="cpu")


def row(name: str, accuracy: float, steps: int | None = 10) -> dict[str, Any]:
    return {"name": name, "accuracy": accuracy, "steps": steps}


def test_each_client_has_fifty_samples_to_train_and_ten_to_test() -> None:
    experiment = SMALL.experiment()
    assert {(len(share.train), len(share.test)) for share in experiment.data.shares} == {(50, 10)}
    assert len(pooled_test(experiment)) == 80
    assert len(cohort(experiment, 1)) == 2


def test_stacked_and_eager_reach_the_same_weights_from_the_same_start() -> None:
    experiment = SMALL.experiment()
    start = {name: value.detach() for name, value in initial_network(experiment).named_parameters()}
    sides = [Ours(experiment, Asked(name), 2) for name in ("eager", "stacked")]
    for side in sides:
        side.play()
    assert [side.steps for side in sides] == [10, 10]
    assert distance(sides[0].weights, sides[1].weights) < 1e-4
    assert distance(sides[0].weights, start) > 1e-3


def test_pfl_reaches_our_weights_in_as_many_steps() -> None:
    pytest.importorskip("pfl")
    experiment = SMALL.experiment()
    ours, theirs = Ours(experiment, Asked("eager"), 3), PflRounds(SMALL, experiment)
    try:
        for _ in range(2):
            ours.play()
            theirs.play()
        assert theirs.steps == ours.steps == 10
        assert distance(ours.weights, theirs.weights) < 1e-3
    finally:
        theirs.close()


def test_without_pfl_ours_is_measured_alone_and_the_page_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "has_pfl", lambda: False)
    options = ("--device=cpu", "--clients=40", "--participants=6", "--rounds=2", "--trainers=eager")
    assert benchmark(monkeypatch, tmp_path, "peers", *options, "--record=found.json") == 0
    assert MISSING in " ".join(capsys.readouterr().out.split())
    found = json.loads((tmp_path / "found.json").read_text(encoding="utf-8"))
    assert found["peer"]["version"] is None
    assert [one["name"] for one in found["contenders"]] == ["eager"]
    assert found["contenders"][0]["seconds"]["n"] == 2
    assert found["environment"]["packages"]["torch"] == torch.__version__


def test_what_did_not_learn_or_learned_something_else_is_told() -> None:
    assert problems([row("eager", 0.50), row("pfl", 0.51)], 10_000) == []
    assert "pfl did not learn" in problems([row("pfl", 0.11)], 10_000)[0]
    assert "more than noise" in problems([row("eager", 0.50), row("pfl", 0.53)], 10_000)[0]
    assert "different numbers of steps" in problems([row("eager", 0.5, 9), row("pfl", 0.5)], 10_000)[0]
    assert problems([row("eager*2", 0.5, None), row("pfl", 0.5)], 10_000) == []
