"""`python -m benchmarks round`: what is measured, and that what it says can be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch

from benchmarks import machine
from benchmarks.contenders import Asked, Baseline, Trained
from benchmarks.round import PHASES, measure_rounds
from benchmarks.synthetic import SHAPE, VALUES, synthetic_images
from support import make_patterns
from tinyproto.config import parse_config
from tinyproto.errors import ConfigError
from tinyproto.experiment import Experiment

VALUES_HERE: dict[str, Any] = {
    "partition": {"num_clients": 3, "alpha": 0.5, "min_samples": 40},
    "models": ["small_cnn_a", "small_cnn_c"],
    "prototypes": {"dim": 20, "cps_dim": 4},
    "train": {"batch_size": 16, "local_epochs": 2, "device": "cpu"},
}


def experiment(*algorithms: str) -> Experiment:
    images = make_patterns(200, 5, (1, 8, 8))
    values = {**VALUES_HERE, "data": {"name": "digits"}, "algorithms": list(algorithms)}
    return Experiment(parse_config(values), images)


def measure(algorithms: Sequence[str], trainers: Sequence[str], naive: str | None) -> dict[str, Any]:
    asked = [Asked.parse(name) for name in trainers]
    return measure_rounds(experiment(*algorithms), asked, Baseline.find(naive), 2, lambda words: None)


@pytest.fixture(scope="module")
def measured() -> dict[str, Any]:
    return measure(["fedproto", "local"], ["eager", "stacked"], None)


def test_every_contender_has_its_phases_ratio_and_share(measured: Mapping[str, Any]) -> None:
    fedproto, local = measured["algorithms"]
    assert [row["name"] for row in fedproto["contenders"]] == ["eager", "stacked", "naive"]
    for row in fedproto["contenders"]:
        seconds = row["seconds"]
        assert all(spread["low"] <= spread["median"] <= spread["high"] for spread in seconds.values())
        assert seconds["total"]["median"] > seconds["train"]["median"] > 0
        assert abs(sum(seconds[phase]["median"] for phase in PHASES) - seconds["total"]["median"]) < 0.5
        assert 0 < row["busy_share"] <= 1.05
        assert row["steps_per_second"] == pytest.approx(
            measured["setting"]["steps_per_round"] / seconds["train"]["median"]
        )
        assert row["cpu_seconds"]["median"] > 0
        assert row["first_seconds"] > 0
        assert row["peak_memory_bytes"] >= 0
    naive = fedproto["contenders"][-1]
    assert naive["ratio"] == 1.0
    eager = fedproto["contenders"][0]
    assert eager["ratio"] == pytest.approx(naive["seconds"]["total"]["median"] / eager["seconds"]["total"]["median"])
    assert [row["name"] for row in local["contenders"]] == ["eager", "stacked"]
    assert local["contenders"][0]["ratio_to"] == "eager"
    assert local["notes"][0] == "not compared with the baseline: the naive baseline does not support algorithm local"


def test_contenders_did_the_same_work(measured: Mapping[str, Any]) -> None:
    eager, stacked, naive = measured["algorithms"][0]["contenders"]
    for other in (stacked, naive):
        assert other["loss"] == pytest.approx(eager["loss"], rel=1e-3)
        assert other["accuracy"] == pytest.approx(eager["accuracy"], abs=0.05)


def test_it_says_what_it_was_measured_on(measured: Mapping[str, Any]) -> None:
    assert measured["environment"]["packages"]["torch"] == torch.__version__
    assert measured["setting"]["steps_per_round"] == experiment("local").steps_per_round
    assert measured["setting"]["networks"] == ["small_cnn_a", "small_cnn_c"]
    features = measured["features"]
    assert features["agree"]
    assert features["class_means"]["ratio"] > 1
    assert features["three_rules"]["ratio"] > 1


def test_without_a_baseline_the_first_trainer_is_the_measure() -> None:
    found = measure(["local"], ["eager"], "none")
    assert found["features"] is None
    assert found["algorithms"][0]["contenders"][0]["ratio"] == 1.0
    assert not found["algorithms"][0]["notes"]


def test_steps_are_counted_as_clients_take_them() -> None:
    ours = experiment("local")
    sizes = [len(share.train) for share in ours.data.shares]
    by_hand = sum(max(size // 16 + (size % 16 >= 8), 1) for size in sizes)
    assert ours.steps_per_round == 2 * by_hand


def test_what_a_trainer_computes_beyond_the_steps_taken_is_told() -> None:
    ours = experiment("local")
    eager, stacked = (Trained(ours, 0, Asked(name), 2) for name in ("eager", "stacked"))
    assert eager.paid_steps is None
    eager.play()
    stacked.play()
    assert eager.paid_steps is not None
    assert stacked.paid_steps is not None
    assert stacked.paid_steps >= eager.paid_steps > 0


def test_two_workers_play_the_same_round() -> None:
    if machine.cores() < 2:
        pytest.skip("one core")
    values = {**VALUES, "models": ["small_cnn_a"], "algorithms": ["fedproto"]}
    ours = Experiment(parse_config(values), synthetic_images(200))
    contenders = [Trained(ours, 0, Asked("eager", workers), 2) for workers in (1, 2)]
    try:
        for contender in contenders:
            contender.play()
        assert contenders[0].loss == contenders[1].loss
        assert contenders[1].other_memory > 0 == contenders[0].other_memory
        assert contenders[1].paid_steps is None
        assert machine.cpu_seconds() > 0
    finally:
        for contender in contenders:
            contender.close()


def test_images_in_private_memory_cannot_go_to_workers() -> None:
    with pytest.raises(ConfigError, match="shared memory"):
        Trained(experiment("local"), 0, Asked("eager", 2), 2)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("eagre", "unknown trainer 'eagre', did you mean 'eager'?"),
        ("eager*0", "1 to "),
        ("eager*x", "asks for x workers"),
        ("eager*", "asks for  workers"),
    ],
)
def test_a_trainer_that_cannot_be_is_refused(text: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Asked.parse(text)
    assert says in str(caught.value)


def test_a_trainer_is_named_as_it_was_asked_for() -> None:
    assert [Asked.parse(text).name for text in (" eager", "stacked*1")] == ["eager", "stacked"]
    assert Asked("eager", 2).name == "eager*2"


def test_a_baseline_that_is_not_there_is_an_error() -> None:
    with pytest.raises(ConfigError, match="importing 'no_such_thing' failed"):
        Baseline.find("no_such_thing")


def test_overlapping_intervals_count_once() -> None:
    assert machine.union([(0, 2), (1, 3), (5, 6), (5, 5.5)]) == 4
    assert machine.union([]) == 0


def test_made_up_images_have_cifar_s_shape_and_every_class() -> None:
    images = synthetic_images(30)
    assert images.input_shape == SHAPE
    assert images.class_counts(torch.arange(30)).tolist() == [3] * 10
    assert torch.equal(images.inputs, synthetic_images(30).inputs)
    assert images.inputs.float().std() > 10
