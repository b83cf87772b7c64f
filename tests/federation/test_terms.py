"""Terms that a coordinator offers are what a client builds, whatever the algorithm and the reading of the paper."""

from __future__ import annotations

import json
from typing import Any

import pytest

from support_members import TOKEN
from tinyproto.algorithms import ALGORITHMS
from tinyproto.config import parse_config
from tinyproto.errors import ConfigError
from tinyproto.federation.terms import accepted_terms, agree, offered_terms

MODEL = "resnet8"
CASES = [
    *((name, "reference") for name in ALGORITHMS), ("fml", "sound"), ("tinyproto_ft", "paper"), ("fedkd", "paper"),
    ("fedtgp", "published"),
]  # fmt: skip


def values(algorithm: str, **more: Any) -> dict[str, Any]:
    return {
        "data": {"name": "cifar10"},
        "models": ["resnet8"] if algorithm == "fedavg" else ["resnet8", "small_cnn_a"],
        "prototypes": {"dim": 64, "cps_dim": 8},
        "train": {"rounds": 7, "local_epochs": 2, "batch_size": 5, "learning_rate": 0.1},
        "algorithms": [algorithm],
        **more,
    }


def test_the_first_classes_of_a_known_dataset_are_how_many_there_are() -> None:
    config = parse_config(values("fedproto", data={"name": "cifar10", "first_classes": 4}))
    assert offered_terms(config, TOKEN).num_classes == 4


@pytest.mark.parametrize(("name", "preset"), CASES)
def test_both_sides_build_the_same(name: str, preset: str) -> None:
    config = parse_config(values(name, preset=preset))
    offered = offered_terms(config, TOKEN)
    ours, (terms, theirs) = agree(offered, config.model.models), accepted_terms(offered.text(), MODEL)
    assert terms == offered
    assert theirs.expectation.digest == ours.expectation.digest
    assert theirs.training == ours.training
    assert (theirs.training.rounds, theirs.training.local_epochs, theirs.training.batch_size) == (7, 2, 5)
    assert theirs.spec.shape == ours.spec.shape
    assert theirs.spec.input_shape == (3, 32, 32)
    assert theirs.spec.head_dropout_in_place == (preset == "published")
    assert ("head_dropout_in_place" in offered.text()) == (preset == "published")  # earlier releases do not know it


@pytest.mark.parametrize(
    ("name", "key", "form"), [("fedkd", "factorised", "updates"), ("feddistill", "teachers", "others")]
)
def test_the_form_of_a_baseline_travels(name: str, key: str, form: str) -> None:
    terms, _ = accepted_terms(offered_terms(parse_config(values(name, preset="paper")), TOKEN).text(), MODEL)
    assert terms.algorithm[key] == form


def test_an_algorithms_own_types_and_a_byte_budget_travel() -> None:
    entry = {"name": "tinyproto_fp", "wire": {"up": "int8", "rounding": "stochastic"}, "byte_budget": "1kB"}
    config = parse_config(values("tinyproto_fp", algorithms=[entry]))
    terms, found = accepted_terms(offered_terms(config, TOKEN).text(), MODEL)
    assert (found.spec.wire.up, found.spec.wire.rounding) == ("int8", "stochastic")
    assert terms.algorithm["byte_budget"] == "1kB"
    assert found.algorithm.row_width == agree(terms, [MODEL]).algorithm.row_width
    assert found.algorithm.row_width not in (8, 64, None)


def test_terms_hold_nothing_of_the_coordinators_own() -> None:
    config = parse_config(values("fedproto", data={"name": "cifar10", "root": "/srv/secret"}, name="secret"))
    text = offered_terms(config, TOKEN).text()
    assert "secret" not in text
    assert sorted(json.loads(text)) == [
        "algorithm", "classes", "clients", "digest", "federation", "input_shape", "num_classes", "preset",
        "protocol", "prototypes", "seed", "train", "wire",
    ]  # fmt: skip


def test_a_coordinator_cannot_test_clients_on_samples_of_others() -> None:
    with pytest.raises(ConfigError, match=r"evaluate\.scope"):
        offered_terms(parse_config(values("fedproto", evaluate={"scope": "all"})), TOKEN)
