from __future__ import annotations

from typing import Any

import pytest

from tinyproto.algorithms.base import Round
from tinyproto.core.streams import Streams
from tinyproto.engine.participation import plan_round
from tinyproto.report.compare import Comparison, Spread, compare, share_cell, spread

TITLES = {"local": "Local", "fedproto": "FedProto", "tiny": "Tiny"}


def result(
    algorithm: str, best: tuple[float | None, float | None, float | None], *, label: str | None = None, seed: int = 0,
    last: tuple[float | None, float | None, float | None] = (0.0, 0.0, 0.0), up: float = 0, down: float = 0,
    seconds: float = 1.0, rounds: int = 30,
) -> dict[str, Any]:  # fmt: skip
    rules = ("head", "global", "local")
    return {
        "algorithm": algorithm,
        "label": label or algorithm,
        "seed": seed,
        "rounds": rounds,
        "accuracy": {
            "best": dict(zip(rules, best, strict=True)),
            **{name: dict(zip(rules, last, strict=True)) for name in ("last", "last10")},
        },
        "params_per_round": (up + down) / 4,
        "payload_bytes_per_round": {"up": up, "down": down},
        "wire_bytes_per_round": {"up": up + 10, "down": down + 10},
        "evaluation_bytes_per_round": {"up": 0, "down": 0},
        "seconds_per_round": {"total": seconds},
    }


def comparison(*results: dict[str, Any], rule: str = "global", statistic: str = "best") -> Comparison:
    return compare(results, TITLES, rule, statistic)


def test_a_row_has_what_its_seeds_derived_and_nothing_of_those_that_do_not_say() -> None:
    derived = [{}, {"derived": {"cps_dim": 5, "global_scale": 0.1}}, {"derived": {"cps_dim": 5, "global_scale": 0.3}}]
    results = [{**result("tiny", (0.1,) * 3, seed=seed), **told} for seed, told in enumerate(derived)]
    (row,) = comparison(*results).rows
    assert row.derived == {"cps_dim": [5, 5], "global_scale": [0.1, 0.3]}


def test_there_is_one_row_per_label_in_the_order_of_the_run() -> None:
    found = comparison(
        result("fedproto", (0.1, 0.1, 0.1)),
        result("local", (0.1, None, 0.1)),
        result("tinyproto_fp", (0.1, 0.1, 0.1), label="tiny"),
        result("tinyproto_fp", (0.1, 0.1, 0.1), label="tiny, full"),
        result("fedproto", (0.1, 0.1, 0.1), seed=1),
    )
    assert [row.label for row in found.rows] == ["fedproto", "local", "tiny", "tiny, full"]
    assert [row.title for row in found.rows] == ["FedProto", "Local", "Tiny", "tiny, full"]


def test_seeds_become_a_mean_and_a_sample_deviation() -> None:
    # Of 0.2 and 0.6: 0.4 ± 0.28, with n − 1 (a population deviation would be 0.2).
    (row,) = comparison(
        result("fedproto", (0.2, 0.5, 0.1), seed=0, up=100, down=40, seconds=1.0),
        result("fedproto", (0.6, 0.5, 0.1), seed=1, up=120, down=40, seconds=2.0),
    ).rows
    head, global_ = row.accuracy["head"], row.accuracy["global"]
    assert head is not None
    assert global_ is not None
    assert [head.mean, head.deviation] == pytest.approx([0.4, 0.08**0.5])
    assert head.count == 2
    assert (global_.mean, global_.deviation) == (0.5, 0.0)
    assert (row.payload_bytes, row.wire_bytes, row.parameters, row.seconds) == (150.0, 170.0, 37.5, 1.5)


def test_one_seed_has_no_deviation_and_no_plus_minus() -> None:
    found = spread([0.5, None])
    assert found == Spread(0.5, None, 1)
    assert share_cell(found) == "50.0"
    assert share_cell(spread([0.2, 0.6])) == "40.0 ± 28.3"
    assert share_cell(spread([None])) == "–"
    assert not comparison(result("fedproto", (0.5, 0.5, 0.5))).has_deviations


def test_the_statistic_decides_which_accuracy_is_compared() -> None:
    one = result("fedproto", (0.9, 0.9, 0.9), last=(0.1, 0.2, 0.3))
    (row,) = comparison(one, statistic="last").rows
    assert [spread.mean for spread in row.accuracy.values() if spread] == [0.1, 0.2, 0.3]


def test_a_rule_that_does_not_apply_has_no_spread() -> None:
    (row,) = comparison(result("local", (0.5, None, 0.4))).rows
    assert row.accuracy["global"] is None


@pytest.mark.parametrize(
    ("rule", "prototype_method", "other_method"), [("global", 0.2, 0.5), ("local", 0.3, 0.5), ("head", 0.1, 0.5)]
)
def test_a_method_without_global_prototypes_is_read_by_its_head(
    rule: str, prototype_method: float, other_method: float
) -> None:
    found = comparison(result("fedproto", (0.1, 0.2, 0.3)), result("local", (0.5, None, 0.9)), rule=rule)
    assert [found.headline(row) for row in found.rows] == [prototype_method, other_method]
    assert [found.headline_rule(row) for row in found.rows] == [rule, "head"]


@pytest.mark.parametrize(
    ("accuracy", "baseline"), [((0.5, None, 0.4), ("head", 0.5)), ((0.5, None, 0.8), ("local", 0.8))]
)
def test_the_baseline_is_what_local_training_reaches_by_its_better_rule(
    accuracy: tuple[float, None, float], baseline: tuple[str, float]
) -> None:
    found = comparison(result("fedproto", (0.9, 0.9, 0.9)), result("local", accuracy))
    assert found.baseline == baseline


def test_without_local_training_there_is_no_baseline_and_no_gain() -> None:
    found = comparison(result("fedproto", (0.9, 0.9, 0.9)))
    assert found.baseline is None
    assert found.over_local(found.rows[0], "head") is None


def test_the_gain_is_over_the_baseline_by_any_rule() -> None:
    found = comparison(result("local", (0.5, None, 0.6)), result("fedproto", (0.7, 0.4, 0.6)))
    local, fedproto = found.rows
    assert found.over_local(fedproto, "head") == pytest.approx(0.1)
    assert found.over_local(fedproto, "global") == pytest.approx(-0.2)
    assert found.over_local(local, "head") is None


def test_a_row_is_found_by_its_algorithm() -> None:
    found = comparison(result("local", (0.5, None, 0.6)), result("tinyproto_fp", (0.7, 0.4, 0.6), label="tiny"))
    row = found.row("tinyproto_fp")
    assert row is not None
    assert row.label == "tiny"
    assert found.row("fedtgp") is None


@pytest.mark.parametrize(
    ("rounds", "every", "words"),
    [
        ([1], 1, "the one evaluation after training"),
        ([3], 1, "mean of the 3 evaluations after training"),
        ([9], 2, "mean of the 5 evaluations after training"),
        ([10], 1, "mean of the last 10 evaluations"),
        ([10], 2, "mean of the 5 evaluations after training"),
        ([300], 10, "mean of the last 10 evaluations"),
        ([300, 4], 1, "mean of the 4 evaluations after training"),
    ],
)
def test_the_mean_of_the_last_ten_says_how_many_there_are(rounds: list[int], every: int, words: str) -> None:
    results = [result("fedproto", (0.5, 0.5, 0.5), seed=seed, rounds=count) for seed, count in enumerate(rounds)]
    assert compare(results, TITLES, "global", "last10", every).statistic_words == words
    assert compare(results, TITLES, "global", "best", every).statistic_words == "best round"


@pytest.mark.parametrize(("rounds", "every"), [(1, 1), (3, 1), (9, 2), (10, 2), (12, 1), (25, 3)])
def test_the_number_of_evaluations_is_what_a_run_has(rounds: int, every: int) -> None:
    plans = [
        plan_round([0, 1], Round(number, rounds), 1.0, every, "all", Streams(0)) for number in range(1, rounds + 2)
    ]
    evaluated = [plan for plan in plans if plan.evaluated and plan.round.number > 1]
    one = result("fedproto", (0.5, 0.5, 0.5), rounds=rounds)
    assert compare([one], TITLES, "global", "last10", every).evaluations == len(evaluated)
