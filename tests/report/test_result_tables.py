"""The table of results for a paper, in three formats."""

from __future__ import annotations

import csv
import io
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from rich.console import Console

from support_cli import in_process
from support_report import Made
from tinyproto.cli.report import print_comparison
from tinyproto.report.formats import TableFormat
from tinyproto.report.runs import Run, read_runs
from tinyproto.report.studies import arrange
from tinyproto.report.tables import results_table

LABELS = ("local", {"name": "fedproto", "label": "50%_of & more"})
SPECIAL = "a_b&c%d#e$f{g}h~i^j\\k<l>m|n*o"


def table(format_: TableFormat, *runs: Run) -> str:
    return results_table(arrange(runs), format_)


@pytest.fixture
def runs(tmp_path: Path) -> list[Run]:
    """Two runs of one setting: three seeds of Local, one of the other method."""
    first = Made(name="first", algorithms=LABELS, payload={"local": 0, "50%_of & more": 1000}).read(tmp_path / "first")
    more = Made(name="more", algorithms=("local",), seeds=(1, 2)).read(tmp_path / "more")
    return [first, more]


def test_markdown_has_a_line_per_method_its_seeds_and_a_dagger_for_fewer(runs: list[Run]) -> None:
    lines = table(TableFormat.MARKDOWN, *runs).splitlines()
    assert lines[0] == "| method | head | global | local | payload | seeds |"
    assert lines[1] == "| --- | ---: | ---: | ---: | ---: | ---: |"
    assert lines[2] == "| Local | **84.4** ± 1.9 | – | **84.4** ± 1.9 | 0 B | 3 |"
    assert lines[3] == "| 50%_of & more† | 83.3 | 83.3 | 83.3 | 6 kB | 1 |"
    assert lines[-1].endswith("† fewer than 3 seeds.")
    assert "mean ± sample standard deviation (n − 1) over seeds" in lines[-1]


def test_csv_has_numbers_and_says_in_words_which_row_has_fewer_seeds(runs: list[Run]) -> None:
    local, other = csv.DictReader(io.StringIO(table(TableFormat.CSV, *runs)))
    assert (local["setting"], local["method"], local["seeds"], local["note"]) == ("first + more", "Local", "3", "")
    assert float(local["head_mean"]) == pytest.approx(0.844444, abs=1e-6)
    assert float(local["head_deviation"]) == pytest.approx(0.019245, abs=1e-6)
    assert (local["global_mean"], other["head_deviation"]) == ("", "")
    assert (other["payload_bytes_per_round"], other["note"]) == ("6000.0", "fewer seeds (1 of 3)")


def test_latex_escapes_what_it_reserves_and_is_a_table_of_booktabs(runs: list[Run]) -> None:
    written = table(TableFormat.LATEX, *runs)
    assert r"50\%\_of \& more$^\dagger$ & 83.3 & 83.3 & 83.3 & 6 kB & 1 \\" in written
    assert r"Local & \textbf{84.4} $\pm$ 1.9 & -- & \textbf{84.4} $\pm$ 1.9 & 0 B & 3 \\" in written
    assert [rule for rule in ("top", "mid", "bottom") if rf"\{rule}rule" in written] == ["top", "mid", "bottom"]
    assert written.isascii()


def test_latex_compiles_whatever_a_label_is(tmp_path: Path) -> None:
    if shutil.which("pdflatex") is None:
        pytest.skip("needs pdflatex with booktabs")
    run = Made(algorithms=({"name": "local", "label": SPECIAL}, "fedproto")).read(tmp_path / "run")
    other = Made(name="other", rounds=3).read(tmp_path / "other")
    body = table(TableFormat.LATEX, run, other)
    text = rf"\documentclass{{article}}\usepackage{{booktabs}}\begin{{document}}{body}\end{{document}}"
    (tmp_path / "paper.tex").write_text(text)
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "paper.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout[-1000:]
    assert (tmp_path / "paper.pdf").is_file()


def test_several_settings_share_a_table_with_a_column_that_names_them(tmp_path: Path) -> None:
    runs = [Made(name=name, rounds=rounds).read(tmp_path / name) for name, rounds in (("a", 2), ("b", 3))]
    header, _, *lines = table(TableFormat.MARKDOWN, *runs).splitlines()
    assert header.startswith("| setting | method | head |")
    assert [line.split(" | ")[0] for line in lines[:4]] == ["| a", "| a", "| b", "| b"]
    assert "bold is the highest in a setting" in lines[-1]


def test_a_single_seed_has_no_deviation_and_a_rule_without_numbers_no_column(tmp_path: Path) -> None:
    written = table(TableFormat.MARKDOWN, Made(algorithms=("local",)).read(tmp_path / "one"))
    assert written.startswith("| method | head | local | payload | seeds |")
    assert "±" not in written
    assert "**" not in written  # one method is not the best of anything


def test_the_verb_prints_only_the_table_or_writes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Made().write(tmp_path / "run")
    assert in_process(monkeypatch, tmp_path, "report", "run", "--table", "csv") == 0
    printed = capsys.readouterr()
    assert (printed.out.partition(",")[0], printed.err) == ("setting", "")
    assert in_process(monkeypatch, tmp_path, "report", "run", "--table", "csv", "-o", "new/table.csv") == 0
    assert (tmp_path / "new" / "table.csv").read_text() == printed.out
    assert capsys.readouterr() == ("", "Wrote new/table.csv\n")
    assert not (tmp_path / "run" / "report.html").exists()


@pytest.mark.parametrize("other", [("--json",), ("--figures", "f")])
def test_a_table_comes_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], other: tuple[str, ...]
) -> None:
    Made().write(tmp_path / "run")
    assert in_process(monkeypatch, tmp_path, "report", "run", "--table", "latex", *other) == 2
    assert re.search("--table latex prints a table only", capsys.readouterr().err)


def test_the_page_and_the_terminal_mark_fewer_seeds_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Made(name="first").write(tmp_path / "first")
    Made(name="more", algorithms=("local",), seeds=(1,)).write(tmp_path / "more")
    assert in_process(monkeypatch, tmp_path, "report", "first", "more") == 0
    page = (tmp_path / "report.html").read_text()
    assert "FedProto†" in page
    assert "† fewer than 2 seeds." in page
    assert "Local†" not in page
    (study,) = arrange(read_runs([tmp_path / "first", tmp_path / "more"]))
    print_comparison(Console(width=150), study.settings[0].comparison, [])
    shown = capsys.readouterr().out
    assert "FedProto† " in shown
    assert "† fewer than 2 seeds." in shown
