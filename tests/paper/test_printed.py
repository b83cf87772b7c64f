"""The numbers of the paper, held against its LaTeX where that is at hand."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from paper.experiments import experiments
from paper.matching import paper_cells
from paper.printed import DATASET_NAMES, Address, Printed, PrintedTable, ablation, printed_tables

ROOT = Path(__file__).parents[2]
LATEX = ROOT.parent / "shared" / "paper" / "tinyproto.tex"
NAMES = {
    "LG-FedAvg": "lg_fedavg", "FML": "fml", "FedKD": "fedkd", "FedDistill": "feddistill", "FedProto": "fedproto",
    "FedTGP": "fedtgp", "TinyProto-FP": "tinyproto_fp", "TinyProto-FT": "tinyproto_ft",
}  # fmt: skip
TABLES = printed_tables()


def of(target: str) -> list[PrintedTable]:
    return [table for table in TABLES if table.target == target]


def latex_rows(label: str) -> Iterator[list[str]]:
    """The body of one table, cell by cell, without markup."""
    if not LATEX.is_file():
        pytest.skip("the paper's LaTeX is not beside this repository")
    text = LATEX.read_text(encoding="utf-8")
    end = text.index(f"\\label{{{label}}}")
    body = text[text.rindex("\\begin{tabular}", 0, end) : end].split("\\midrule", 1)[1].split("\\bottomrule")[0]
    for line in body.replace("\\midrule", "").split("\\\\"):
        plain = re.sub(r"\\(?:underline|textbf)|[{}$]", "", line).replace("\\pm", "±")
        if plain.strip():
            yield [re.sub(r"\s+", " ", cell).strip() for cell in plain.split("&")]


def as_printed(row: Printed) -> list[str]:
    accuracy = f"{100 * row.accuracy:.2f} ± {100 * row.deviation:.2f}"
    return [accuracy] if row.communication is None else [accuracy, row.communication]


def test_table_1_is_what_the_paper_prints() -> None:
    for index, (name, *cells) in enumerate(latex_rows("table:total_result")):
        rows = [table.rows[index] for table in of("table1")]
        assert {row.address.label for row in rows} == {NAMES[name.removesuffix(" (50)")]}
        assert [cell for row in rows for cell in as_printed(row)] == cells
    assert index == 7


def test_table_3_is_what_the_paper_prints() -> None:
    for index, (name, *cells) in enumerate(latex_rows("table:additional_result")):
        rows = [table.rows[index] for table in of("table3")]
        assert {row.address.label for row in rows} == {NAMES[name.removesuffix(" (50)")]}
        assert [cell for row in rows for cell in as_printed(row)] == cells
    assert index == 7


def test_the_appendix_is_what_the_paper_prints() -> None:
    for index, (name, width, scaling, *cells) in enumerate(latex_rows("table:supp_total_result")):
        method = {"FedProto": "tinyproto_fp", "FedTGP": "tinyproto_ft"}.get(name) or NAMES[name]
        cps_dim = None if width == "\\xmark" else int(width)
        rows = [table.rows[index] for table in of("appendix")]
        expected = [ablation(dataset, method, cps_dim, scaling == "\\cmark") for dataset in DATASET_NAMES]
        assert [row.address for row in rows] == expected
        assert [cell for row in rows for cell in as_printed(row)] == cells
    assert index == 23


def test_every_printed_number_has_a_cell_that_repeats_it() -> None:
    known = {Address(cell.stem, cell.label) for config in experiments() for cell in paper_cells(config)}
    assert {row.address for table in TABLES for row in table.rows} <= known
    assert {table.stem for table in TABLES} <= {address.stem for address in known}


def test_what_the_appendix_repeats_of_table_1_is_the_same_there() -> None:
    table1 = {row.address: row for table in of("table1") for row in table.rows}
    shared = [row for table in of("appendix") for row in table.rows if row.address in table1]
    assert len(shared) == 4 * 3
    assert all(table1[row.address] == row for row in shared)
