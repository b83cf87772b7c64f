from __future__ import annotations

import weakref
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tinyproto.engine.measure import Cost, Direction, Purpose
from tinyproto.engine.round import RoundRecord, Traffic
from tinyproto.tracking.summary import RoundResult, Totals

Accuracy = dict[str, float | None]


def accuracy(head: float | None, global_: float | None = None, local: float | None = None) -> Accuracy:
    return {"head": head, "global": global_, "local": local}


def record(
    number: int, by_rule: Accuracy | None = None, *, closing: bool = False, mean: Accuracy | None = None,
    traffic: dict[Purpose, Traffic] | None = None,
) -> RoundRecord:  # fmt: skip
    return RoundRecord(
        round=number,
        closing=closing,
        participants=(),
        accuracy=by_rule or accuracy(None),
        client_mean=mean or by_rule or accuracy(None),
        loss={},
        traffic=traffic or {},
        clients={},
    )


def both(up: Cost, down: Cost) -> Traffic:
    return {"up": up, "down": down}


# Three rounds and the closing exchange, as FedProto leaves them: round 1 has no prototypes and sends nothing down.
RECORDS = [
    record(
        1, accuracy(0.1),
        traffic={"hello": both(Cost(0, 0, 50), Cost(0, 0, 40)), "training": both(Cost(10, 40, 99), Cost(0, 0, 64))},
    ),
    record(2, accuracy(0.5, 0.3, 0.9), traffic={"training": both(Cost(10, 40, 100), Cost(20, 80, 150))}),
    record(
        3, accuracy(0.7, 0.2, 0.8),
        traffic={
            "training": both(Cost(13, 52, 121), Cost(20, 80, 150)),
            "evaluation": both(Cost(0, 0, 30), Cost(20, 80, 140)),
        },
    ),
    record(
        4, accuracy(0.6, 0.4, 0.7), closing=True, mean=accuracy(0.55, 0.35, 0.65),
        traffic={"closing": both(Cost(0, 0, 60), Cost(20, 80, 170))},
    ),
]  # fmt: skip
SECONDS = [
    {"total": 90.0, "train": 80.0},
    {"total": 1.0, "train": 0.5, "server": 0.25},
    {"total": 3.0, "train": 1.5, "evaluate": 1.0},
    {"total": 70.0, "evaluate": 60.0},
]
PLAYED = [RoundResult(one, seconds) for one, seconds in zip(RECORDS, SECONDS, strict=True)]
SUMMARY = Totals(PLAYED).summary(
    {"algorithm": "fedproto", "seed": 3}, formula=31, peak_memory=1234, derived={"cps_dim": 42}
)


def accuracy_summary(records: list[RoundRecord]) -> dict[str, dict[str, float | None]]:
    totals = Totals(RoundResult(one, {}) for one in records)
    return dict(totals.summary({}, formula=None, peak_memory=0, derived={})["accuracy"])


def test_each_rules_best_is_its_own_maximum() -> None:
    assert SUMMARY["accuracy"]["best"] == accuracy(0.7, 0.4, 0.9)


def test_last_is_the_closing_exchange() -> None:
    assert SUMMARY["accuracy"]["last"] == accuracy(0.6, 0.4, 0.7)
    assert SUMMARY["accuracy"]["client_mean"] == accuracy(0.55, 0.35, 0.65)


def test_the_mean_of_the_last_ten_leaves_out_the_untrained_networks_of_round_one() -> None:
    assert SUMMARY["accuracy"]["last10"] == pytest.approx(accuracy(0.6, 0.3, 0.8))


def test_the_mean_of_the_last_ten_is_over_ten_evaluations_even_if_most_rounds_had_none() -> None:
    # Evaluated in rounds 1, 3, …, 25, with head = round / 100; the last ten are 7, 9, …, 25, whose mean is 16.
    records = [record(number, accuracy(number / 100) if number % 2 else None) for number in range(1, 26)]
    summary = accuracy_summary(records)
    assert summary["last10"]["head"] == pytest.approx(0.16)
    assert summary["last"]["head"] == 0.25


def test_the_last_evaluation_counts_where_the_last_round_had_none() -> None:
    summary = accuracy_summary([record(1, accuracy(0.1)), record(2, accuracy(0.4)), record(3)])
    assert summary["last"]["head"] == 0.4
    assert summary["client_mean"]["head"] == 0.4


def test_a_rule_that_never_applied_has_no_number() -> None:
    summary = accuracy_summary([record(1, accuracy(0.1)), record(2, accuracy(0.5), closing=True)])
    assert {name: by_rule["global"] for name, by_rule in summary.items()} == dict.fromkeys(summary)
    assert summary["best"]["head"] == 0.5


def test_an_untrained_network_may_still_be_the_best() -> None:
    summary = accuracy_summary([record(1, accuracy(0.5)), record(2, accuracy(0.2), closing=True)])
    assert summary["best"]["head"] == 0.5
    assert summary["last10"]["head"] == 0.2


def test_costs_are_means_over_rounds_two_to_the_last_without_hello_and_closing() -> None:
    assert SUMMARY["params_per_round"] == (30 + 33) / 2
    assert SUMMARY["payload_bytes_per_round"] == {"up": 46, "down": 80}
    assert SUMMARY["wire_bytes_per_round"] == {"up": 110.5, "down": 150}
    assert SUMMARY["params_per_round_formula"] == 31


def test_bytes_stay_whole_numbers_where_they_are_whole() -> None:
    assert isinstance(SUMMARY["payload_bytes_per_round"]["up"], int)
    assert isinstance(SUMMARY["wire_bytes_per_round"]["up"], float)


def test_hello_closing_and_evaluation_bytes_are_told_apart() -> None:
    assert SUMMARY["hello_bytes"] == {"up": 50, "down": 40}
    assert SUMMARY["closing_bytes"] == {"up": 60, "down": 170}
    assert SUMMARY["evaluation_bytes_per_round"] == {"up": 15, "down": 70}
    assert SUMMARY["socket_bytes_per_round"] is None


def test_socket_bytes_are_means_over_the_rounds_in_which_they_were_counted() -> None:
    counted: dict[int, dict[Direction, int]]
    counted = {client: {"up": 5_000_000_000 + client, "down": 7} for client in (3, 40, 41)}
    few: dict[int, dict[Direction, int]] = {3: {"up": 2, "down": 1}}
    some = [replace(PLAYED[1], sockets=used) for used in (counted, few, None)]
    found = Totals([PLAYED[0], *some]).summary({}, formula=None, peak_memory=0, derived={})["socket_bytes_per_round"]
    assert found["clients"]["3"] == {"up": 2_500_000_002.5, "down": 4}
    assert found["clients"]["41"] == {"up": 5_000_000_041, "down": 7}
    assert found["down"] == 11


def test_seconds_are_means_over_the_same_rounds_and_an_idle_phase_took_none() -> None:
    assert SUMMARY["seconds_per_round"] == {
        "total": 2.0,
        "train": 1.0,
        "prototypes": 0.0,
        "server": 0.125,
        "evaluate": 0.5,
        "clients": 0.0,
    }


def test_a_run_of_one_round_is_measured_by_that_round() -> None:
    summary = Totals([PLAYED[0], PLAYED[3]]).summary({}, formula=0, peak_memory=0, derived={})
    assert summary["params_per_round"] == 10
    assert summary["payload_bytes_per_round"] == {"up": 40, "down": 0}
    assert summary["seconds_per_round"]["total"] == 90.0


def test_a_summary_says_which_cell_it_is_and_what_memory_it_took() -> None:
    assert (SUMMARY["algorithm"], SUMMARY["seed"], SUMMARY["peak_memory_bytes"]) == ("fedproto", 3, 1234)


def test_a_summary_has_what_was_derived_as_a_value_of_its_own() -> None:
    assert SUMMARY["derived"] == {"cps_dim": 42}
    assert Totals(PLAYED).summary({}, formula=None, peak_memory=0, derived={})["derived"] == {}


def test_rounds_are_read_once_and_not_kept() -> None:
    alive: list[weakref.ref[RoundRecord]] = []

    def rounds() -> Iterator[RoundResult]:
        for number in range(1, 50):
            one = record(number, accuracy(0.1), traffic={"training": both(Cost(1, 2, 3), Cost(4, 5, 6))})
            alive.append(weakref.ref(one))
            yield RoundResult(one, {"total": 1.0}, sockets={client: {"up": 1, "down": 2} for client in range(9)})
            del one
            assert sum(ref() is not None for ref in alive) <= 2  # the first round may be the only one

    totals = Totals(rounds())
    assert sum(ref() is not None for ref in alive) == 0
    assert totals.summary({}, None, 0, {})["payload_bytes_total"] == {"up": 98, "down": 245}
