from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest

from paper.page.curves import RING, Curve, Point, accuracies, draw, widths
from paper.page.figures import PaperFigure, paper_figures
from paper.page.outcomes import Records
from support_paper import PaperRecord
from tinyproto.report.figures import Figure
from tinyproto.report.runs import find_runs, read_runs
from tinyproto.report.svg import BOTTOM, DOT


def drawn(folder: Path, made: Sequence[PaperRecord]) -> dict[str, PaperFigure]:
    for record in made:
        record.write(folder)
    runs = read_runs(find_runs([folder])) if made else []
    return {one.title: one for one in paper_figures(Records(runs))}


@pytest.fixture(scope="module")
def some(tmp_path_factory: pytest.TempPathFactory) -> dict[str, PaperFigure]:
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


SVG = "{http://www.w3.org/2000/svg}"


def marks(figure: Figure) -> tuple[list[ElementTree.Element], list[ElementTree.Element]]:
    """What is drawn in colours above the axis, and below it in the legend."""
    plot: list[ElementTree.Element] = []
    below: list[ElementTree.Element] = []
    for one in ElementTree.fromstring(figure.svg):
        if inks(one):
            height = one.get("y1") or one.get("cy") or one.get("d", "").partition(",")[2].partition("L")[0]
            (below if float(height) > BOTTOM else plot).append(one)
    return plot, below


def inks(element: ElementTree.Element) -> set[str]:
    return {name for name in element.get("class", "").split() if name[0] == "c" and name[1:].isdigit()}


def entries(figure: Figure) -> dict[str, ElementTree.Element]:
    """The legend: words and the mark before each."""
    parts = list(ElementTree.fromstring(figure.svg))
    pairs = [(mark, words) for mark, words in pairwise(parts) if words.tag == f"{SVG}text"]
    return {words.text or "": mark for mark, words in pairs if float(words.get("y", "0")) > BOTTOM + 40}


def tips(elements: Sequence[ElementTree.Element], name: str) -> list[tuple[str | None, float]]:
    """A curve's dots: class and radius."""
    named = [one for one in elements if (one.findtext(f"{SVG}title") or "").startswith(f"{name}: ")]
    return [(one.get("class"), float(one.get("r", "nan"))) for one in named]


def test_without_any_cell_only_the_analytical_figure_is_drawn_and_words_say_so(tmp_path: Path) -> None:
    found = drawn(tmp_path, [])
    assert [title for title, one in found.items() if one.figures] == ["Figure 1: parameters compared with FedAvg"]
    assert found["CPS compared with a smaller layer, CIFAR-10"].missing.startswith(
        "none of its cells is among the runs ("
    )
    assert sum(bool(one.missing) for one in found.values()) == 6


def test_figure_1_is_the_formula(some: dict[str, PaperFigure]) -> None:
    (figure,) = some["Figure 1: parameters compared with FedAvg"].figures
    values = {(row[0], row[2]): row[3] for row in figure.rows}
    assert values["FedAvg, ShuffleNetV2 ×0.5", 1000] == 1_366_792
    assert values["prototypes, d=500", 100] == 50_000


def test_neurons_are_drawn_as_accuracy_parameters_and_bytes(some: dict[str, PaperFigure]) -> None:
    accuracy, parameters, over_bytes = some["Number of neurons, CIFAR-100"].figures
    assert {("TinyProto-FT", "ours", 500, 0.46), ("TinyProto-FT", "ours", 1000, 0.47)} <= rows(accuracy)
    assert ("TinyProto-FT", "paper", 500.0, 0.4594) in rows(accuracy)
    assert "hollow" in accuracy.svg
    assert {("TinyProto-FT", "ours", 500, 146_050), ("TinyProto-FT", "ours", 1000, 292_100)} <= rows(parameters)
    assert ("TinyProto-FT", "ours", 2 * 50 * 20, 0.46) in rows(over_bytes)


def test_the_formula_is_drawn_at_every_d_from_a_record_at_one(tmp_path: Path) -> None:
    known = {"lg_fedavg": 2_000_000, "feddistill": 292_100, "fedtgp": 1_460_500, "tinyproto_fp": 146_050}
    made = [PaperRecord("table1_cifar100", label, rounds=5, formula=count) for label, count in known.items()]
    _, parameters, _ = drawn(tmp_path, made)["Number of neurons, CIFAR-100"].figures
    assert [(row[0], row[2], row[3]) for row in parameters.rows] == [
        ("LG-FedAvg", 100, 400_000), ("LG-FedAvg", 500, 2_000_000), ("LG-FedAvg", 1000, 4_000_000),
        ("FedDistill", 100, 292_100), ("FedDistill", 500, 292_100), ("FedDistill", 1000, 292_100),  # d is not in it
        ("FedTGP", 100, 292_100), ("FedTGP", 500, 1_460_500), ("FedTGP", 1000, 2_921_000),
        ("TinyProto-FP", 100, 29_210), ("TinyProto-FP", 500, 146_050), ("TinyProto-FP", 1000, 292_100),
    ]  # fmt: skip


def test_the_formula_at_a_d_that_was_run_is_what_its_own_record_says(tmp_path: Path) -> None:
    made = [
        PaperRecord("table1_cifar100", "fedproto", rounds=5, formula=5000),
        PaperRecord("neurons_1000", "fedproto", rounds=5, formula=7777),
    ]
    _, parameters, _ = drawn(tmp_path, made)["Number of neurons, CIFAR-100"].figures
    assert {(row[2], row[3]) for row in parameters.rows} == {(100, 1000), (500, 5000), (1000, 7777)}


def test_methods_that_send_as_much_are_all_seen(tmp_path: Path) -> None:
    made = [PaperRecord("table1_cifar100", name, rounds=5, formula=1_460_500) for name in ("fedproto", "fedtgp")]
    made += [PaperRecord("table1_cifar100", "feddistill", rounds=5, formula=292_100)]  # as both have at d=100
    _, parameters, _ = drawn(tmp_path, made)["Number of neurons, CIFAR-100"].figures
    plot, _ = marks(parameters)
    (under, over) = [one.get("class") for one in plot if one.tag == f"{SVG}path"][1:]
    assert (under, over) == ("curve c6", "curve over c7")
    assert {name: mark.get("class") for name, mark in entries(parameters).items()} == {
        "FedDistill": "curve c5", "FedProto": under, "FedTGP": over,
    }  # fmt: skip
    assert tips(plot, "FedDistill") == [("dot c5", DOT)] * 3
    assert tips(plot, "FedProto") == [("hollow c6", DOT + RING), ("dot c6", DOT), ("dot c6", DOT)]
    assert tips(plot, "FedTGP") == [("hollow c7", DOT + 2 * RING), ("hollow c7", DOT + RING), ("hollow c7", DOT + RING)]


def test_three_equal_curves_of_one_point_are_rings_in_the_legend_too() -> None:
    curves = [Curve(name, f"c{index}", [Point(1, 0.5, "")]) for index, name in enumerate("abc")]
    figure = draw("equal", "Equal", "", curves, widths([0, 2], "x"), accuracies(curves))
    found = {name: (mark.get("class"), mark.get("r")) for name, mark in entries(figure).items()}
    assert found == {"a": ("dot c0", "4"), "b": ("hollow c1", "6.5"), "c": ("hollow c2", "9")}


def test_every_colour_that_is_drawn_is_in_the_legend(some: dict[str, PaperFigure]) -> None:
    for figure in (figure for one in some.values() for figure in one.figures):
        plot, below = marks(figure)
        assert plot
        assert set().union(*map(inks, plot)) == set().union(*map(inks, below)), figure.slug


def test_a_curve_of_printed_values_alone_is_told_as_one(some: dict[str, PaperFigure]) -> None:
    ablation, _ = some["Ablation of TinyProto-FT, CIFAR-100"].figures
    assert {name: mark.get("class") for name, mark in entries(ablation).items()} == {
        "CPS and scaling": "curve c8", "CPS, not scaled": "dot c6", "scaling, no CPS, printed": "curve printed c1",
        "FedTGP": "curve dashed c4", "the paper": "curve printed axis",
    }  # fmt: skip
    compression, _ = some["CPS compared with a smaller layer, CIFAR-10"].figures
    assert {name: mark.get("class") for name, mark in entries(compression).items()} == {
        "TinyProto-FP, CPS and scaling, printed": "curve printed c8",
        "TinyProto-FP, CPS, not scaled, printed": "curve printed c6",
        "FedProto with only d neurons": "dot c4",
    }  # and no entry for the paper's values of a curve that has its own


def test_one_printed_value_alone_is_a_ring_and_told_as_printed() -> None:
    curves = [Curve("ours", "c0", [Point(1, 0.5, "")]), Curve("theirs", "c1", [], [(1.0, 0.6)])]
    figure = draw("printed", "Printed", "", curves, widths([0, 2], "x"), accuracies(curves))
    assert {name: mark.get("class") for name, mark in entries(figure).items()} == {
        "ours": "dot c0", "theirs, printed": "hollow c1",
    }  # fmt: skip


def test_an_ablation_draws_what_there_is_beside_what_is_printed(some: dict[str, PaperFigure]) -> None:
    accuracy, over_bytes = some["Ablation of TinyProto-FT, CIFAR-100"].figures
    found = rows(accuracy)
    assert {("CPS and scaling", "ours", 50, 0.46), ("CPS and scaling", "ours", 150, 0.45)} <= found
    assert ("CPS and scaling", "paper", 450.0, 0.4559) in found
    assert ("FedTGP", "ours", None, 0.37) in found  # the same at every s: a line across
    assert ("scaling, no CPS", "paper", 500.0, 0.461) in found
    assert not [row for row in found if row[:2] == ("scaling, no CPS", "ours")]
    assert accuracy.svg.count("curve dashed c4") == 2  # the level and its place in the legend
    assert "Only the paper has values of scaling, no CPS." in accuracy.alternative
    assert "after 5 rounds" in accuracy.alternative
    assert ("FedTGP", "ours", 2 * 500 * 20, 0.37) in rows(over_bytes)


def test_compression_holds_cps_against_fewer_neurons(some: dict[str, PaperFigure]) -> None:
    accuracy, over_bytes = some["CPS compared with a smaller layer, CIFAR-10"].figures
    assert ("FedProto with only d neurons", "ours", 250, 0.8) in rows(accuracy)
    assert ("TinyProto-FP, CPS and scaling", "paper", 250.0, 0.8507) in rows(accuracy)
    assert rows(over_bytes) == {("FedProto with only d neurons", "ours", 2 * 250 * 20, 0.8)}


def test_every_figure_has_words_data_and_a_name_of_its_own(some: dict[str, PaperFigure]) -> None:
    figures = [figure for one in some.values() for figure in one.figures]
    assert len({figure.slug for figure in figures}) == len(figures) == 8
    for figure in figures:
        assert figure.alternative
        assert figure.csv().count("\n") == len(figure.rows) + 1
        assert 'role="img"' in figure.svg
