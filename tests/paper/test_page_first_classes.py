"""Tiny-ImageNet's first 100 classes from records that are known: nine methods, each held against Local."""

from __future__ import annotations

from pathlib import Path

import pytest

from paper.page.chapter import as_html, findings
from paper.page.extensions import FIRST_HEADER, FIRST_STEM, FirstRow, first_rows
from paper.page.markdown import from_records
from paper.page.outcomes import Records
from support_paper import PaperRecord
from tinyproto.report.runs import find_runs, read_runs

TITLE = "The first 100 classes of Tiny-ImageNet"


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("results")
    for record in (
        PaperRecord(FIRST_STEM, "local", 70, local=60, early={4: 50}, payload=0, formula=0),
        PaperRecord(FIRST_STEM, "local", 74, seed=1),
        PaperRecord(FIRST_STEM, "fedkd", 66),
        PaperRecord(FIRST_STEM, "tinyproto_ft", 90, head=80, local=84, payload=9, formula=91_700),
        PaperRecord(FIRST_STEM, "fedtgp", 62, rounds=4),
        PaperRecord("table1_tiny_imagenet", "fedproto", 20),
    ):
        record.write(folder)
    return folder


@pytest.fixture(scope="module")
def rows(results: Path) -> dict[str, FirstRow]:
    return {row.cell.label: row for row in first_rows(Records(read_runs(find_runs([results]))))}


def test_a_row_has_ours_the_gain_over_local_all_rules_and_costs(rows: dict[str, FirstRow]) -> None:
    assert dict(zip(FIRST_HEADER, rows["tinyproto_ft"].words(), strict=True)) == {
        "algorithm": "TinyProto-FT (50)", "ours": "45.00", "Δ Local": "+10.00", "seeds": "1", "head": "40.00",
        "global": "45.00", "local": "42.00", "params, formula": "91 700", "payload": "360 B", "wire": "420 B",
    }  # fmt: skip


def test_a_method_without_global_prototypes_is_read_by_its_head(rows: dict[str, FirstRow]) -> None:
    assert rows["fedkd"].words()[1:7] == ["33.00", "−2.00", "1", "33.00", "–", "33.00"]


def test_local_stands_there_without_a_gain_over_itself(rows: dict[str, FirstRow]) -> None:
    assert rows["local"].words()[:4] == ["Local", "36.00 ± 1.41", "–", "2"]


def test_a_shorter_run_is_marked_and_held_against_local_after_as_many_rounds(rows: dict[str, FirstRow]) -> None:
    assert rows["fedtgp"].words()[1:3] == ["31.00 (4 rounds)", "+6.00"]


def test_what_was_not_run_stays_visible_and_all_200_classes_do_not_fill_it(rows: dict[str, FirstRow]) -> None:
    assert len(rows) == 9
    assert rows["fedproto"].words() == ["FedProto", "not run", *["–"] * 8]
    assert rows["fedproto"].plain()["ours"] is None


def test_without_local_there_is_no_gain(tmp_path: Path) -> None:
    PaperRecord(FIRST_STEM, "tinyproto_ft", 90).write(tmp_path)
    found = first_rows(Records(read_runs(find_runs([tmp_path]))))
    assert [row.cell.label for row in found if row.variant is not None] == ["tinyproto_ft"]
    assert [row.gain for row in found] == [None] * 9


def test_a_row_as_json_has_everything(rows: dict[str, FirstRow]) -> None:
    plain = rows["tinyproto_ft"].plain()
    assert (plain["experiment"], plain["label"]) == (FIRST_STEM, "tinyproto_ft")
    assert plain["over_local"] == pytest.approx(0.1)
    assert plain["ours"]["accuracy"] == {"head": 0.4, "global": 0.45, "local": 0.42}


def test_page_and_report_have_it_among_the_extensions_and_no_printed_value_beside_it(results: Path) -> None:
    made = from_records(results).partition("## Extensions")[2]
    part = made.partition(f"### {TITLE}")[2].partition("### ")[0]
    assert "| TinyProto-FT (50) | 45.00 | +10.00 | 1 | 40.00 | 45.00 | 42.00 | 91 700 | 360 B | 420 B |" in part
    assert "| FML | not run |" in part
    assert "Not run yet" not in part
    assert "27.29" not in part  # what Table 1 prints for all 200
    paper = findings(read_runs(find_runs([results])))
    assert paper is not None
    page = "".join(as_html(paper))
    assert page.index(">Extensions<") < page.index(TITLE) < page.index("+10.00")
    assert [row["label"] for row in paper.plain()["extensions"]["tiny_imagenet_100"]][-1] == "tinyproto_ft"


def test_where_nothing_was_run_the_empty_table_says_how_to_run_it(tmp_path: Path) -> None:
    PaperRecord("table1_tiny_imagenet", "fedproto", 20).write(tmp_path)
    part = from_records(tmp_path).partition(f"### {TITLE}")[2].partition("### ")[0]
    assert "Not run yet: `python -m paper tiny-imagenet-100` runs it." in part
    assert part.count("| not run |") == 9
