"""`tinyproto report`, and the report that `run` and `resume` write."""

from __future__ import annotations

import csv
import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

import pytest

from support_cli import CLASSES, CLIENTS, GoodRun, in_process, tree
from support_report import Made, without_terms
from tinyproto.cli.report import report_runs
from tinyproto.cli.terminal import Output
from tinyproto.report.figures import Figure
from tinyproto.report.figures.prototypes import Shown
from tinyproto.report.page import Chapter
from tinyproto.report.runs import Run

Captured = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """A folder with two runs of one setting."""
    Made(name="first").write(tmp_path / "runs" / "first")
    Made(name="second", seeds=(1, 2)).write(tmp_path / "runs" / "second")
    return tmp_path


def test_a_run_ends_with_a_report_that_the_verb_makes_again_byte_for_byte(
    good: GoodRun, tmp_path: Path, monkeypatch: Patch, capsys: Captured
) -> None:
    assert str(Path("runs", "trial", "report.html")) in good.stdout
    copy = shutil.copytree(good.folder, tmp_path / "trial")
    (copy / "report.html").unlink()
    assert in_process(monkeypatch, tmp_path, "report", "trial") == 0
    assert (copy / "report.html").read_bytes() == (good.folder / "report.html").read_bytes()
    assert "trial/report.html" in capsys.readouterr().out
    assert not list(copy.glob(".*"))


def test_the_report_says_what_the_terminal_said(good: GoodRun) -> None:
    page = re.sub("</?code>", "`", without_terms((good.folder / "report.html").read_text()))
    shown = " ".join(good.stdout.partition("• ")[2].partition("\n\nResults")[0].split())
    for sentence in shown.split("• "):
        assert sentence.strip() in page


def test_a_run_records_who_holds_what(good: GoodRun) -> None:
    found = json.loads((good.folder / "federation.json").read_text())
    assert [len(row) for row in found["counts"]] == [CLASSES] * CLIENTS
    assert [sum(row) for row in found["counts"]] == [a + b for a, b in zip(found["train"], found["test"], strict=True)]
    assert sum(map(sum, found["counts"])) == 1797


def test_resuming_a_finished_run_remakes_its_report(
    good: GoodRun, tmp_path: Path, monkeypatch: Patch, capsys: Captured
) -> None:
    copy = shutil.copytree(good.cwd, tmp_path / "copy")
    folder = copy / "runs" / "trial"
    (folder / "report.html").unlink()
    before = tree(folder)
    assert in_process(monkeypatch, copy, "resume", "runs/trial", "--json") == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["report"] == "runs/trial/report.html"
    assert "runs/trial/report.html" in captured.err
    page = tree(folder).pop("report.html")
    assert page == (good.folder / "report.html").read_bytes()
    assert tree(folder) == {**before, "report.html": page}


def test_several_runs_make_one_report_here(made: Path, monkeypatch: Patch, capsys: Captured) -> None:
    before = tree(made / "runs")
    assert in_process(monkeypatch, made, "report", "runs/first", "runs/second") == 0
    page = (made / "report.html").read_text()
    assert "3 seeds (0, 1, 2)" in page
    assert tree(made / "runs") == before
    assert re.search("^• .*nearest global prototype.*FedProto", capsys.readouterr().out, re.MULTILINE)


def test_a_folder_of_runs_stands_for_all_of_them(made: Path, monkeypatch: Patch, capsys: Captured) -> None:
    assert in_process(monkeypatch, made, "report", "runs", "--out", "new/folder/both.html") == 0
    assert "first, second" in (made / "new" / "folder" / "both.html").read_text()
    assert not (made / "report.html").exists()


def test_runs_are_found_however_deep_and_what_is_no_run_is_passed_over(
    made: Path, monkeypatch: Patch, capsys: Captured
) -> None:
    Made(name="deep").write(made / "runs" / "some" / "where" / "deep")
    Made(name="hidden").write(made / "runs" / ".old" / "hidden")
    Made(name="inner").write(made / "runs" / "first" / "cells" / "inner")  # a run folder's own business
    (made / "runs" / "bench").mkdir()
    (made / "runs" / "bench" / "scale.json").write_text("{}")
    assert in_process(monkeypatch, made, "report", "runs", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert [setting["name"] for setting in found["settings"]] == ["first + second + deep"]
    assert found["passed_over"] == []


def test_one_run_that_is_unfinished_or_broken_is_named_and_the_others_are_shown(
    made: Path, monkeypatch: Patch, capsys: Captured
) -> None:
    Made(name="begun", done=0).write(made / "runs" / "begun")
    (Made(name="broken").write(made / "runs" / "broken") / "rounds.jsonl").write_text("{}\n")
    assert in_process(monkeypatch, made, "report", "runs") == 0
    said = " ".join(capsys.readouterr().out.split())
    page = (made / "report.html").read_text()
    for words in ("runs/begun ", "runs/broken/rounds.jsonl "):
        assert f"Not in the report: {words}" in said
        assert words in page
    assert "first, second" in page


def test_where_nothing_can_be_shown_the_first_problem_is_the_error(
    made: Path, monkeypatch: Patch, capsys: Captured
) -> None:
    Made(name="begun", done=0).write(made / "begun")
    assert in_process(monkeypatch, made, "report", "begun") == 2
    assert re.search("error: begun .*tinyproto resume begun", capsys.readouterr().err)


def test_an_extension_adds_a_chapter_sentences_and_facts(made: Path, monkeypatch: Patch, capsys: Captured) -> None:
    def chapter(runs: Sequence[Run]) -> Chapter:
        figure = Figure("drawn", "Drawn", "", "a picture", "<svg></svg>", ("x",), [[1]])
        return Chapter("<h2>More</h2>", [figure], [f"It has {len(runs)} runs."], {"more": len(runs)})

    monkeypatch.chdir(made)
    report_runs([Path("runs")], None, Path("figures"), Shown(), Output(json=True), chapter)
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    assert (found["more"], found["figures"][0]) == (2, "drawn")
    assert captured.err.startswith("• It has 2 runs.\n")
    page = (made / "report.html").read_text()
    assert page.index("<h2>More</h2>") < page.index("Verdict") < page.index(">Numbers<")
    assert (made / "figures" / "drawn.csv").read_text() == "x\n1\n"


def test_settings_are_named_where_there_are_several(made: Path, monkeypatch: Patch, capsys: Captured) -> None:
    Made(name="longer", rounds=3).write(made / "runs" / "longer")
    assert in_process(monkeypatch, made, "report", "runs") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith("• first + second: ")]
    assert [line for line in lines if line.startswith("• longer: ")]


def test_every_figure_is_written_as_a_picture_and_as_data(made: Path, monkeypatch: Patch, capsys: Captured) -> None:
    assert in_process(monkeypatch, made, "report", "runs/second", "--figures", "figures", "--json") == 0
    slugs = json.loads(capsys.readouterr().out)["figures"]
    assert len(slugs) == 11
    assert {path.name for path in (made / "figures").iterdir()} == {
        f"{s}.{kind}" for s in slugs for kind in ("svg", "csv")
    }
    for slug in slugs:
        picture = ElementTree.parse(made / "figures" / f"{slug}.svg").getroot()
        assert picture.tag == "{http://www.w3.org/2000/svg}svg"
        assert picture.find("{http://www.w3.org/2000/svg}style") is None
        with (made / "figures" / f"{slug}.csv").open(newline="") as file:
            header, *rows = csv.reader(file)
        assert rows
        assert {len(row) for row in rows} == {len(header)}


def test_with_json_standard_output_is_one_value_and_words_go_elsewhere(
    made: Path, monkeypatch: Patch, capsys: Captured
) -> None:
    assert in_process(monkeypatch, made, "report", "runs", "--json") == 0
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    assert found["report"] == "report.html"
    (setting,) = found["settings"]
    assert setting["name"] == "first + second"
    assert "nearest global prototype" in setting["verdict"][0]
    assert [row["label"] for row in setting["rows"]] == ["local", "fedproto"]
    assert setting["rows"][1]["accuracy"]["head"]["count"] == 3
    assert setting["rows"][1]["headline"] == setting["rows"][1]["accuracy"]["global"]["mean"]
    assert "report.html" in captured.err


@pytest.mark.parametrize("flag", ["-q", "--quiet"])
def test_quietly_nothing_is_said(made: Path, monkeypatch: Patch, capsys: Captured, flag: str) -> None:
    assert in_process(monkeypatch, made, "report", "runs/first", flag, "--figures", "figures") == 0
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "")
    assert (made / "runs" / "first" / "report.html").is_file()


def test_quietly_json_is_still_what_was_asked_for(made: Path, monkeypatch: Patch, capsys: Captured) -> None:
    assert in_process(monkeypatch, made, "report", "runs/first", "-q", "--json") == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["report"] == "runs/first/report.html"
    assert captured.err == ""


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nothing"], "nothing "),
        (["runs/first", "nothing"], "nothing "),
        (["runs/first", "--class", "4"], "--class 4 "),
        (["runs/first", "--client", "3"], "--client 3 "),
        (["runs/first", "--out", "."], "folder"),
        (["runs/first", "--out", "runs"], "cannot write runs"),
        (["runs/first", "--out", "file/report.html"], "cannot write file/report.html: file is a file; name a folder"),
        (["runs/first", "--figures", "file"], "cannot write figures to file: it is a file"),
    ],
)
def test_what_cannot_be_is_one_line_and_status_2(
    made: Path, monkeypatch: Patch, capsys: Captured, arguments: list[str], says: str
) -> None:
    (made / "file").write_text("in the way")
    assert in_process(monkeypatch, made, "report", *arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert line.startswith("tinyproto: error: ")
    assert says in line
    assert not [path for path in made.rglob("*") if path.name.endswith(".partial")]


@pytest.mark.parametrize("arguments", [["runs/first", "--class", "-1"], ["runs/first", "--client", "x"], []])
def test_arguments_that_are_no_numbers_or_missing_are_refused(
    made: Path, monkeypatch: Patch, capsys: Captured, arguments: list[str]
) -> None:
    assert in_process(monkeypatch, made, "report", *arguments) == 2
    assert not (made / "runs" / "first" / "report.html").exists()


def test_the_class_and_the_client_drawn_can_be_chosen(made: Path, monkeypatch: Patch, capsys: Captured) -> None:
    assert in_process(monkeypatch, made, "report", "runs/first", "--class", "3", "--client", "2") == 0
    page = (made / "runs" / "first" / "report.html").read_text()
    assert "FedProto: class 3 over clients" in page
    assert "FedProto: client 2 over classes" in page
