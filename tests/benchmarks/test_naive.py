"""The baseline does the same work as the package: a ratio compares equal results."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from benchmarks.naive import NaiveFederation, class_means, nearest
from support import make_patterns
from tinyproto.config import parse_config
from tinyproto.core import prototypes
from tinyproto.core.streams import one_thread
from tinyproto.engine.round import RoundRecord
from tinyproto.errors import ConfigError
from tinyproto.experiment import Experiment

ROUNDS = 3


def experiment(algorithm: str | dict[str, Any], preset: str = "sound", **train: Any) -> Experiment:
    images = make_patterns(260, 5, (1, 8, 8))
    values = {
        "preset": preset,
        "partition": {"num_clients": 3, "alpha": 0.5, "min_samples": 40},
        "models": ["small_cnn_a", "small_cnn_b"],
        "prototypes": {"dim": 20, "cps_dim": 4},
        "train": {"rounds": ROUNDS, "batch_size": 16, **train},
        "algorithms": [algorithm],
    }
    return Experiment(parse_config(values, images=images), images)


@pytest.fixture(autouse=True)
def one_thread_only() -> Iterator[None]:
    with one_thread():
        yield


@pytest.mark.parametrize(
    ("algorithm", "preset"),
    [
        ("fedproto", "sound"),
        ("tinyproto_fp", "sound"),
        ({"name": "tinyproto_fp", "aggregation": "mean"}, "sound"),
        ({"name": "fedtgp", "server_epochs": 5}, "sound"),
        ({"name": "tinyproto_ft", "server_epochs": 5}, "sound"),
        ({"name": "tinyproto_ft", "server_epochs": 5, "global_scale": 0.01, "offered_classes": "all"}, "reference"),
    ],
)
def test_it_reaches_what_the_eager_trainer_reaches(algorithm: str | dict[str, Any], preset: str) -> None:
    ours = experiment(algorithm, preset)
    (cell,) = ours.cells
    host = ours.loopback(cell)
    naive = NaiveFederation(ours, cell)
    played = ours.simulation(cell, host).rounds()
    for _ in range(ROUNDS):
        seconds = naive.play()
        assert sum(seconds.values()) - seconds["total"] <= seconds["total"]
        assert_equal_round(naive, next(played).record)
    for mine, theirs in zip(host.store.values(), naive.clients, strict=True):
        present = mine.local.present.nonzero().flatten().tolist()
        assert sorted(theirs.prototypes) == present
        rows = torch.stack([theirs.prototypes[label] for label in present])
        torch.testing.assert_close(rows, mine.local.values[present], rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(dict(theirs.model.state_dict()), dict(mine.model.state_dict()), rtol=1e-3, atol=1e-4)
    naive.close()


def assert_equal_round(naive: NaiveFederation, record: RoundRecord) -> None:
    assert naive.accuracy == pytest.approx(record.accuracy)
    assert naive.loss == pytest.approx(record.loss, rel=1e-4, abs=1e-6)


def test_two_epochs_and_all_prototypes_agree_too() -> None:
    ours = experiment("fedproto", local_epochs=2, last_batch="drop")
    (cell,) = ours.cells
    naive = NaiveFederation(ours, cell)
    played = ours.simulation(cell, ours.loopback(cell)).rounds()
    for _ in range(2):
        naive.play()
        assert_equal_round(naive, next(played).record)


@pytest.mark.parametrize(
    ("algorithm", "train", "says"),
    [
        ("local", {}, "algorithm local"),
        ({"name": "fedproto", "distance": "l2"}, {}, "a distance other than mse"),
        ({"name": "fedproto", "prototype_source": "running"}, {}, "prototypes other than fresh ones"),
        ("fedproto", {"participation": 0.5}, "partial participation"),
        ("fedproto", {"batch_size": 1}, "clients with a batch of one sample"),
    ],
)
def test_what_it_does_not_play_it_refuses(algorithm: str, train: dict[str, Any], says: str) -> None:
    ours = experiment(algorithm, **train)
    with pytest.raises(ConfigError, match=says):
        NaiveFederation(ours, ours.cells[0])


def test_class_means_and_the_nearest_prototype_are_ours() -> None:
    generator = torch.Generator().manual_seed(0)
    features, labels = torch.rand(40, 6, generator=generator), torch.arange(40) % 3
    mine = prototypes.class_means(features, labels, 4)
    theirs = class_means(features, labels)
    assert sorted(theirs) == [0, 1, 2]
    torch.testing.assert_close(torch.stack([theirs[label] for label in range(3)]), mine.values[:3])
    assert torch.equal(nearest(features, theirs, 4), prototypes.nearest(features, mine))
