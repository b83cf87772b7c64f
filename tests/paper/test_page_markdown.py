from __future__ import annotations

from pathlib import Path

from paper.page.markdown import BEGIN, END, PAGE, RECORDS, from_records, renewed, write_page
from support_paper import PaperRecord
from support_report import Made

ROOT = Path(__file__).parents[2]


def test_the_page_in_docs_says_what_the_records_say() -> None:
    page = (ROOT / PAGE).read_text(encoding="utf-8")
    assert page == renewed(page, from_records(ROOT / RECORDS)), "run `make docs`"


def test_only_what_is_between_the_markers_is_made_anew(tmp_path: Path) -> None:
    PaperRecord("table1_cifar100", "fedproto", 60, rounds=4).write(tmp_path / RECORDS)
    (tmp_path / PAGE).parent.mkdir(parents=True)
    (tmp_path / PAGE).write_text(f"before\n{BEGIN}\nwhat was there\n{END}\nafter\n")
    write_page(tmp_path)
    page = (tmp_path / PAGE).read_text()
    assert page.startswith(f"before\n{BEGIN}\n")
    assert page.endswith(f"{END}\nafter\n")
    assert "what was there" not in page
    assert "| FedProto | 29.97 ± 0.18 | 30.00 | +0.03 | +0.2× | no Local run | 1 | 4 of 300 |" in page
    assert "| FML | 37.83 ± 0.03 | not run |" in page
    write_page(tmp_path)
    assert (tmp_path / PAGE).read_text() == page


def test_without_a_cell_of_the_paper_the_page_says_so(tmp_path: Path) -> None:
    Made().write(tmp_path / "run")
    assert from_records(tmp_path) == "No cell of the paper is recorded yet.\n"


def test_extensions_follow_the_paper(tmp_path: Path) -> None:
    PaperRecord("table1_cifar100", "fedtgp", 60, rounds=4).write(tmp_path)
    without = from_records(tmp_path).partition("## Extensions")[2]
    assert "Not run yet: `python -m paper bytes` runs it." in without
    assert "Not run yet: `python -m paper auto` runs it." in without
    PaperRecord("bytes_cifar100", "tinyproto_ft(s=25-int4-held)", 70, rounds=4, evaluation=100).write(tmp_path)
    PaperRecord("auto_cifar10", "tinyproto_ft(auto)", 150, rounds=4).write(tmp_path)
    made = from_records(tmp_path).partition("## Extensions")[2]
    assert (
        "| TinyProto-FT, s=25, int4 | held | 4 | 35.00 | 35.00 | 35.00 | +5.00 | 4.06 kB | – | 6.06 kB |" in made
    )  # fmt: skip
    assert "| TinyProto-FT, s=25, int8 | held | not run |" in made
    assert "| TinyProto-FT (50), CIFAR-10, preset reference: auto | 4 | 0 | 75.00 | 75.00 | 75.00 | – |" in made


def test_a_table_of_which_nothing_was_run_is_named_and_left_out(tmp_path: Path) -> None:
    PaperRecord("table1_cifar100", "fedproto", 60, rounds=4).write(tmp_path)
    made = from_records(tmp_path)
    (words,) = (
        line for line in made.splitlines() if line.startswith("Left out, because nothing of their own was run:")
    )
    assert "Table 3: CIFAR-100, α=0.5" in words
    assert "Appendix: CPS and scaling on CIFAR-100" in words  # its FedProto is that of Table 1
    assert "Table 1: CIFAR-100" not in words
    assert [line for line in made.splitlines() if line.startswith("### Table") or line.startswith("### Appendix")] == [
        "### Table 1: CIFAR-100"
    ]


def test_each_comparison_of_a_claim_has_a_line_of_its_own(tmp_path: Path) -> None:
    PaperRecord("table1_cifar100", "tinyproto_ft", 92).write(tmp_path)
    PaperRecord("table1_cifar100", "local", 80).write(tmp_path)
    assert "against Local 40.00 (+6.00, 1 seed).<br>Needs more of table1_cifar10," in from_records(tmp_path)
