from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from support_paper import PaperRecord
from tinyproto.report.figures.figure import Figure
from tinyproto.report.paper.figures import Drawn, paper_figures
from tinyproto.report.paper.records import Records
from tinyproto.report.runs import find_runs, read_runs


def drawn(folder: Path, made: Sequence[PaperRecord]) -> dict[str, Drawn]:
    for record in made:
        record.write(folder)
    runs = read_runs(find_runs([folder])) if made else []
    return {one.title: one for one in paper_figures(Records(runs))}


@pytest.fixture(scope="module")
def some(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Drawn]:
    made = [
        PaperRecord("table1_cifar100", "fedtgp", 74, rounds=5, payload=500),
        PaperRecord("table1_cifar100", "tinyproto_ft", 92, rounds=5, payload=50, formula=146_050),
        PaperRecord("neurons_1000", "tinyproto_ft", 94, rounds=5, payload=100, formula=292_100),
        PaperRecord("appendix_cifar100", "tinyproto_ft(cps_dim=150,scaling=count)", 90, rounds=5, payload=150),
        PaperRecord("appendix_cifar100", "tinyproto_ft(cps_dim=150,scaling=none)", 70, rounds=5, payload=150),
        PaperRecord("compression_cifar10_250", "fedproto", 160, rounds=5, payload=250),
    ]
    return drawn(tmp_path_factory.mktemp("results"), made)


def rows(figure: Figure) -> set[tuple[object, ...]]:
    return {tuple(row[:4]) for row in figure.rows}


def test_without_any_cell_only_the_analytical_figure_is_drawn_and_words_say_so(tmp_path: Path) -> None:
    found = drawn(tmp_path, [])
    assert [title for title, one in found.items() if one.figures] == ["Figure 1: parameters against FedAvg"]
    assert found["CPS against a smaller layer, CIFAR-10"].missing.startswith("no cell of it is among the runs (")
    assert sum(bool(one.missing) for one in found.values()) == 6


def test_figure_1_is_the_formula(some: dict[str, Drawn]) -> None:
    (figure,) = some["Figure 1: parameters against FedAvg"].figures
    values = {(row[0], row[2]): row[3] for row in figure.rows}
    assert values["FedAvg, ShuffleNetV2 ×0.5", 1000] == 1_366_792
    assert values["prototypes, d=500", 100] == 50_000


def test_neurons_are_drawn_as_accuracy_parameters_and_bytes(some: dict[str, Drawn]) -> None:
    accuracy, parameters, over_bytes = some["Number of neurons, CIFAR-100"].figures
    assert {("TinyProto-FT", "ours", 500, 0.46), ("TinyProto-FT", "ours", 1000, 0.47)} <= rows(accuracy)
    assert ("TinyProto-FT", "paper", 500.0, 0.4594) in rows(accuracy)
    assert "hollow" in accuracy.svg
    assert {("TinyProto-FT", "ours", 500, 146_050), ("TinyProto-FT", "ours", 1000, 292_100)} <= rows(parameters)
    assert ("TinyProto-FT", "ours", 2 * 50 * 20, 0.46) in rows(over_bytes)


def test_an_ablation_draws_what_there_is_beside_what_is_printed(some: dict[str, Drawn]) -> None:
    accuracy, over_bytes = some["Ablation of TinyProto-FT, CIFAR-100"].figures
    found = rows(accuracy)
    assert {("CPS and scaling", "ours", 50, 0.46), ("CPS and scaling", "ours", 150, 0.45)} <= found
    assert ("CPS and scaling", "paper", 450.0, 0.4559) in found
    assert ("FedTGP", "ours", None, 0.37) in found  # the same at every s: a line across
    assert ("scaling, no CPS", "paper", 500.0, 0.461) in found
    assert not [row for row in found if row[:2] == ("scaling, no CPS", "ours")]
    assert accuracy.svg.count("curve dashed c4") == 2  # the level and its place in the legend
    assert "Only the paper's values are there for scaling, no CPS." in accuracy.alternative
    assert "after 5 rounds" in accuracy.alternative
    assert ("FedTGP", "ours", 2 * 500 * 20, 0.37) in rows(over_bytes)


def test_compression_holds_cps_against_fewer_neurons(some: dict[str, Drawn]) -> None:
    accuracy, over_bytes = some["CPS against a smaller layer, CIFAR-10"].figures
    assert ("FedProto with only d neurons", "ours", 250, 0.8) in rows(accuracy)
    assert ("TinyProto-FP, CPS and scaling", "paper", 250.0, 0.8507) in rows(accuracy)
    assert rows(over_bytes) == {("FedProto with only d neurons", "ours", 2 * 250 * 20, 0.8)}


def test_every_figure_has_words_data_and_a_name_of_its_own(some: dict[str, Drawn]) -> None:
    figures = [figure for one in some.values() for figure in one.figures]
    assert len({figure.slug for figure in figures}) == len(figures) == 8
    for figure in figures:
        assert figure.alternative
        assert figure.csv().count("\n") == len(figure.rows) + 1
        assert 'role="img"' in figure.svg
