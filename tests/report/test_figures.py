"""The figures' data, against records made by hand."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path

import numpy as np
import pytest

from support_report import Made
from tinyproto.errors import ConfigError
from tinyproto.report.figures import Figure
from tinyproto.report.figures.clients import accuracy_per_client, who_holds_what
from tinyproto.report.figures.curves import Bought, accuracy_over_bytes, accuracy_over_rounds, pareto_front
from tinyproto.report.figures.prototypes import Shown, choose, dead_units, prototype_figures
from tinyproto.report.runs import PrototypeValues, read_run
from tinyproto.report.studies import Series, Study, arrange


def study_of(made: Made, folder: Path) -> Study:
    (study,) = arrange([made.read(folder / "run")])
    return study


def rows(figure: Figure | None) -> list[list[str]]:
    """Return the rows of the CSV, without its header."""
    assert figure is not None
    header, *found = csv.reader(io.StringIO(figure.csv()))
    assert header == list(figure.columns)
    assert all(len(row) == len(header) for row in found)
    return found


# Rounds


def test_accuracy_over_rounds_has_every_seed_of_every_method(tmp_path: Path) -> None:
    # Of 3 × 10 samples, seed 0 has 13, 19, 25 right and seed 1 has 14, 20, 26.
    figure = accuracy_over_rounds(study_of(Made(seeds=(0, 1)), tmp_path), "head", "rounds")
    per_seed = [("0", "0", 13), ("1", "0", 19), ("2", "0", 25), ("0", "1", 14), ("1", "1", 20), ("2", "1", 26)]
    expected = [
        [name, "head", number, seed, str(float(f"{right / 30:.6g}"))]
        for name in ("Local", "FedProto")
        for number, seed, right in per_seed
    ]
    assert rows(figure) == expected
    assert figure is not None
    assert re.search("band: .* 2 seeds", figure.caption)
    assert figure.svg.count("band c") == 2
    assert "FedProto 85.0 % after 2 rounds" in figure.alternative


def test_one_seed_has_no_band_and_no_words_about_one(tmp_path: Path) -> None:
    figure = accuracy_over_rounds(study_of(Made(), tmp_path), "head", "rounds")
    assert figure is not None
    assert "band" not in figure.svg + figure.caption


def test_a_rule_is_drawn_for_the_methods_it_applies_to_and_from_when_it_does(tmp_path: Path) -> None:
    figure = accuracy_over_rounds(study_of(Made(), tmp_path), "global", "rounds")
    assert [(name, number) for name, _, number, _, _ in rows(figure)] == [("FedProto", "1"), ("FedProto", "2")]
    only_local = study_of(Made(algorithms=("local",)), tmp_path / "local")
    assert accuracy_over_rounds(only_local, "global", "rounds") is None


def test_only_rounds_that_were_evaluated_are_points(tmp_path: Path) -> None:
    made = Made(algorithms=("local",), rounds=6, evaluated=lambda number: (0, 2) if number in (1, 6) else ())
    figure = accuracy_over_rounds(study_of(made, tmp_path), "head", "rounds")
    assert [(row[2], row[4]) for row in rows(figure)] == [("0", "0.4"), ("5", "1.0"), ("6", "1.0")]


def test_a_single_evaluation_is_a_dot(tmp_path: Path) -> None:
    figure = accuracy_over_rounds(study_of(Made(rounds=1, clients=1), tmp_path), "global", "rounds")
    assert figure is not None
    assert figure.svg.count("hollow") + figure.svg.count('"dot ') == 2  # and in the legend


# Bytes


def bought(title: str, payload: float, accuracy: float) -> Bought:
    return Bought(Series(title, title, 0, []), "head", payload, 0.0, accuracy, [(payload, accuracy)])


def place(method: Bought) -> tuple[float, float]:
    return method.payload_bytes, method.accuracy


def test_the_pareto_front_is_what_nothing_beats_on_both() -> None:
    methods = [
        bought("dear and best", 100, 0.9), bought("free", 0, 0.5), bought("dear and bad", 100, 0.6),
        bought("cheap and worse than free", 10, 0.4), bought("cheap", 20, 0.7), bought("no better than cheap", 30, 0.7),
    ]  # fmt: skip
    assert [method.series.title for method in pareto_front(methods, place)] == ["free", "cheap", "dear and best"]
    assert pareto_front([], place) == []


def test_accuracy_over_bytes_has_the_bytes_spent_at_each_evaluation(tmp_path: Path) -> None:
    made = Made(algorithms=("local", "fedproto", "tinyproto_fp"), payload={"local": 0, "tinyproto_fp": 10})
    figure = accuracy_over_bytes(study_of(made, tmp_path), "bytes")
    found = rows(figure)
    assert [row for row in found if row[0] == "FedProto"] == [
        ["FedProto", "global", "0", "1", "600", "690", "0", "0.633333"],
        ["FedProto", "global", "0", "2", "1200", "1350", "0", "0.833333"],
    ]
    assert [row[4] for row in found if row[0] == "TinyProto-FP"] == ["60", "120"]
    assert {row[4] for row in found if row[0] == "Local"} == {"0"}
    assert figure is not None
    assert "On the Pareto front: Local." in figure.alternative  # all reach the same, and Local sends nothing


def test_where_nobody_sends_anything_there_is_no_figure_of_bytes(tmp_path: Path) -> None:
    assert accuracy_over_bytes(study_of(Made(algorithms=("local",)), tmp_path), "bytes") is None


# Clients


def test_accuracy_per_client_is_the_last_evaluation_s_mean_over_seeds(tmp_path: Path) -> None:
    figure = accuracy_per_client(study_of(Made(seeds=(0, 1, 2)), tmp_path), "clients")
    # Client 0 has 8, 9, 8 of 10 right with seeds 0, 1, 2; client 1 has 9, 8, 9.
    assert [row for row in rows(figure) if row[0] == "FedProto"] == [
        ["FedProto", "0", "0.833333"], ["FedProto", "1", "0.866667"], ["FedProto", "2", "0.833333"],
    ]  # fmt: skip
    assert figure is not None
    assert "FedProto: 83.3 % (client 0) to 86.7 %, median 83.3 %." in figure.alternative


def test_a_client_whose_answer_is_missing_is_empty_and_one_without_prototypes_is_wrong(tmp_path: Path) -> None:
    def correct(label: str, seed: int, number: int, client: int, rule: str) -> int | None:
        return None if rule == "global" and client == 1 else 5

    study = study_of(Made(algorithms=("fedproto",), correct=correct, seeds=(0, 1)), tmp_path)
    for cell, missing in zip(study.settings[0].series[0].cells, ({2}, {0, 2}), strict=True):
        asked = cell.rounds[-1]["clients"]
        asked["test_samples"] = [None if client in missing else 10 for client in range(3)]
    found = rows(accuracy_per_client(study, "clients"))
    assert [row[2] for row in found] == ["0.5", "0.0", ""]


def test_without_test_samples_there_is_no_figure_of_clients(tmp_path: Path) -> None:
    study = study_of(Made(algorithms=("fedproto",)), tmp_path)
    (cell,) = study.settings[0].series[0].cells
    cell.rounds[-1]["clients"]["test_samples"] = [0, 0, None]
    assert accuracy_per_client(study, "clients") is None


# Holdings


def test_who_holds_what_counts_samples_by_client_and_class(tmp_path: Path) -> None:
    figure = who_holds_what(study_of(Made(), tmp_path), "holdings")
    counts = [[0, 1, 2, 3], [4, 0, 1, 2], [3, 4, 0, 1]]  # as written by hand: clients × classes
    assert rows(figure) == [[str(i), str(j), str(counts[i][j])] for i in range(3) for j in range(4)]
    assert figure is not None
    assert "A client holds 3 to 3 classes (3.0 on average) and 6 to 8 samples." in figure.alternative


def test_figures_show_the_names_of_classes_where_they_are_known(tmp_path: Path) -> None:
    folder, names = Made(prototypes=True).write(tmp_path / "run"), ["ant", "bee", "cat", "dog"]
    summary = json.loads((folder / "summary.json").read_text())
    for result in summary["results"]:
        result["class_names"] = names
    (folder / "summary.json").write_text(json.dumps(summary))
    (study,) = arrange([read_run(folder)])
    held = who_holds_what(study, "holdings")
    assert held is not None
    assert all(f">{name}<" in held.svg for name in names)
    assert rows(held)[3] == ["0", "3", "3", "dog"]
    series = study.series[0][1]
    values = series.cells[0].run.prototypes(series.cells[0].result["label"], 0)
    assert values is not None
    of_class, of_client, *_ = prototype_figures(series, values, Shown(class_=1), "p")
    assert "class 1 (bee) over clients" in of_class.title
    assert rows(of_client)[-1][0] == "dog"


def test_who_holds_what_is_not_drawn_where_it_was_not_recorded(tmp_path: Path) -> None:
    assert who_holds_what(study_of(Made(federation=False), tmp_path), "holdings") is None


# Prototypes


VALUES = PrototypeValues(
    local=np.array([[[1, 0, 0], [9, 9, 9]], [[2, 0, 3], [0, 0, 0]]], np.float32),  # 2 clients × 2 classes × 3 units
    local_present=np.array([[True, False], [True, True]]),
    global_=np.array([[1.5, 0, -1], [0, 0, 0]], np.float32),
    global_present=np.array([True, False]),
)


def series(name: str = "FedProto") -> Series:
    return Series(name, name, 0, [])


def test_dead_units_are_zeros_of_prototypes_that_are_there() -> None:
    found = dead_units(VALUES)
    assert found.local == pytest.approx(6 / 9)
    assert found.global_ == pytest.approx(1 / 3)


def test_without_prototypes_there_is_no_share_of_dead_units() -> None:
    nobody = np.zeros((2, 2), bool)
    found = dead_units(PrototypeValues(VALUES.local, nobody, VALUES.global_, np.zeros(2, bool)))
    assert (found.local, found.global_) == (None, None)
    assert dead_units(PrototypeValues(VALUES.local, VALUES.local_present, None, None)).global_ is None


def test_prototypes_are_drawn_over_clients_over_classes_and_global() -> None:
    of_class, of_client, global_ = prototype_figures(series(), VALUES, Shown(0, 1), "p")
    assert [figure.slug for figure in (of_class, of_client, global_)] == ["p-class", "p-client", "p-global"]
    assert rows(of_class) == [["L0", "1.0", "0.0", "0.0"], ["L1", "2.0", "0.0", "3.0"], ["G", "1.5", "0.0", "-1.0"]]
    assert rows(of_client) == [["0", "2.0", "0.0", "3.0"], ["1", "0.0", "0.0", "0.0"]]
    assert rows(global_) == [["0", "1.5", "0.0", "-1.0"]]
    assert "binary, 44 % zero, 11 % negative" in of_class.svg
    assert "binary, 67 % zero<" in of_client.svg
    assert of_class.svg.count("<image") == 2


def test_without_global_prototypes_there_is_no_global_figure() -> None:
    alone = PrototypeValues(VALUES.local, VALUES.local_present, None, None)
    assert [figure.slug for figure in prototype_figures(series(), alone, Shown(), "p")] == ["p-class", "p-client"]


def test_a_class_that_nobody_holds_is_said_to_be_missing() -> None:
    nobody = np.array([[True, False], [True, False]])
    values = PrototypeValues(VALUES.local, nobody, None, None)
    figure = next(iter(prototype_figures(series(), values, Shown(class_=1), "p")))
    assert "binary, held by no client" in figure.svg
    assert "All are missing." in figure.alternative
    assert rows(figure) == []


def test_unless_told_the_class_most_held_and_the_client_with_most_classes_are_drawn() -> None:
    assert choose(VALUES, Shown()) == (0, 1)
    assert choose(VALUES, Shown(class_=1, client=0)) == (1, 0)


@pytest.mark.parametrize(("wanted", "named"), [(Shown(class_=2), "class"), (Shown(client=2), "client")])
def test_a_class_or_client_that_does_not_exist_is_refused(wanted: Shown, named: str) -> None:
    with pytest.raises(ConfigError, match=f"--{named} 2 .* 0 to 1"):
        choose(VALUES, wanted)
