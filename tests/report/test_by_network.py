"""Accuracy by network, from runs whose numbers are known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from support_report import Made
from tinyproto.report.networks import NetworkRow, network_rows
from tinyproto.report.page import make_report
from tinyproto.report.runs import Run
from tinyproto.report.studies import arrange


def by_client(label: str, seed: int, round_: int, client: int, rule: str) -> int | None:
    """Return how many of ten are correct: equal for Local; others are best in round 3, odd clients better by global."""
    if (rule != "head" and round_ == 1) or (rule == "global" and label == "local"):
        return None
    if label == "local":
        return 4 + seed
    return {1: 1, 2: 5, 3: 7, 4: 6}[round_] + (client % 2 if rule == "global" else 0) + seed


def made(folder: Path, models: list[Any], **changed: Any) -> Run:
    run = Made(clients=5, rounds=3, **{"correct": by_client, **changed}).read(folder / "run")
    return replace(run, config={**run.config, "models": models})


def rows(run: Run) -> dict[str, NetworkRow]:
    (study,) = arrange([run])
    return {row.title.lower(): row for row in network_rows(study.settings[0])}


def means(row: NetworkRow) -> Mapping[str, float | None]:
    return {name: None if found is None else found.mean for name, found in row.accuracy.items()}


def test_clients_of_one_network_are_taken_together_and_read_where_the_headline_is(tmp_path: Path) -> None:
    found = rows(made(tmp_path, ["a", "b"], config={"evaluate": {"statistic": "best"}}))
    assert means(found["fedproto"]) == {"a": pytest.approx(0.7), "b": pytest.approx(0.8)}  # round 3, not 4
    assert found["fedproto"].over_local == {"a": pytest.approx(0.3), "b": pytest.approx(0.4)}
    assert found["local"].over_local == {"a": None, "b": None}
    assert found["fedproto"].words() == ["FedProto", "70.0 (+30.0)", "80.0 (+40.0)"]


@pytest.mark.parametrize(("statistic", "expected"), [("last", 0.6), ("last10", (0.5 + 0.7 + 0.6) / 3)])
def test_other_statistics_read_other_rounds(tmp_path: Path, statistic: str, expected: float) -> None:
    found = rows(made(tmp_path, ["a", "b"], config={"evaluate": {"statistic": statistic}}))
    assert means(found["fedproto"])["a"] == pytest.approx(expected)


def test_a_network_named_twice_is_one_and_seeds_become_a_spread(tmp_path: Path) -> None:
    found = rows(made(tmp_path, ["a", "b", "a"], seeds=(0, 1)))["fedproto"]
    assert list(found.accuracy) == ["a", "b"]
    one = found.accuracy["b"]  # clients 1 and 4: 7 and 6 of ten, then a point more
    assert one is not None
    assert [one.mean, one.deviation] == pytest.approx([0.7, 0.1 / 2**0.5])
    assert one.count == 2


def test_a_network_whose_clients_say_nothing_has_nothing(tmp_path: Path) -> None:
    def even(label: str, seed: int, round_: int, client: int, rule: str) -> int | None:
        return None if client % 2 else by_client(label, seed, round_, client, rule)

    found = rows(made(tmp_path, ["a", "b"], correct=even))["fedproto"]
    assert means(found) == {"a": pytest.approx(0.6), "b": None}
    assert found.words()[-1] == "–"


def test_without_local_there_is_nothing_to_be_above(tmp_path: Path) -> None:
    run = made(tmp_path, ["a", "b"], algorithms=("fedproto",))
    assert rows(run)["fedproto"].words() == ["FedProto", "60.0", "70.0"]
    assert "points over the same network" not in make_report([run]).html


@pytest.mark.parametrize("models", [["a"], ["a", "a"]])
def test_one_network_needs_no_table(tmp_path: Path, models: list[Any]) -> None:
    run = made(tmp_path, models)
    assert rows(run) == {}
    assert "by network" not in make_report([run]).html


def test_in_a_real_federation_nobody_says_which_network_it_has(tmp_path: Path) -> None:
    run = made(tmp_path, ["a", "b"])
    counted = {"up": 1, "down": 1}
    assert rows(replace(run, results=[{**one, "socket_bytes_per_round": counted} for one in run.results])) == {}


def test_the_page_has_it_below_the_numbers(tmp_path: Path) -> None:
    page = make_report([made(tmp_path, ["a", "package.module:net"])]).html
    place = page.index("The same by network")
    assert page.index(">Numbers<") < place < page.index(">Figures<")
    assert "package.module:net" in page[place : place + 600]
    assert "points over the same network" in page
