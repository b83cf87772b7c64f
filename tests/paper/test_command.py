from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from paper.page.markdown import BEGIN, END, PAGE
from support_cli import environment
from support_paper import PaperRecord, report_with_paper
from support_report import Made
from support_reproduce import in_process
from tinyproto.report.runs import find_runs, read_runs

ROOT = Path(__file__).parents[2]


def test_the_list_names_every_target_and_its_configs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert in_process(monkeypatch, tmp_path, "--list") == 0
    shown = capsys.readouterr().out
    for words in ("table1", "table3", "appendix", "figure-neurons", "figure-compression", "table1_cifar100.yaml"):
        assert words in shown


def test_the_list_as_json_is_one_value_with_a_line_per_config(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert in_process(monkeypatch, tmp_path, "--list", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    first = found[0]
    assert {key: first[key] for key in ("target", "config", "dataset", "cells")} == {
        "target": "table1", "config": "paper/configs/table1_cifar10.yaml", "dataset": "cifar10", "cells": 27,
    }  # fmt: skip


def test_without_the_list_the_verb_says_what_it_needs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert in_process(monkeypatch, tmp_path) == 2
    assert "--list" in capsys.readouterr().err


def test_a_target_s_cells_are_listed_with_how_far_they_are(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    label = "tinyproto_fp(cps_dim=150,scaling=none)"
    part = ("appendix", "--dataset", "cifar100", "--algorithms", label, "--seeds", "0,3", "--list")
    assert in_process(monkeypatch, tmp_path, *part) == 0
    shown = capsys.readouterr().out
    assert shown.count(label) == 2
    assert "2 cells, 2 to do" in " ".join(shown.split())
    assert in_process(monkeypatch, tmp_path, *part, "--json") == 0
    assert json.loads(capsys.readouterr().out)[1] == {
        "config": "appendix_cifar100", "dataset": "cifar100", "algorithm": "tinyproto_fp", "label": label, "seed": 3,
        "rounds": 300, "state": "to do", "completed": 0, "folder": None,
    }  # fmt: skip
    assert list(tmp_path.iterdir()) == []


def test_a_figure_that_is_computed_has_nothing_to_play(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert in_process(monkeypatch, tmp_path, "figure1") == 0
    assert "python -m paper report paper/records" in capsys.readouterr().out
    assert in_process(monkeypatch, tmp_path, "figure1", "--list") == 0
    assert capsys.readouterr().out == "figure1: parameters compared with FedAvg; computed, so it has no cells.\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["table9"], "target 'table9'"),
        (["table3", "--dataset", "cifar10"], "--dataset: table3 has no cells with cifar10; it has cifar100"),
        (["table1", "--algorithms", "fedprotto"], "'fedproto'"),
        (["table1", "--seeds", "0,x"], "--seeds: .*'x'"),
        (["table1", "--seeds", ","], "--seeds: ','"),
        (["table1", "--import", "nowhere"], "--import .*TARGET"),
        (["--list", "--import", "nowhere"], "--import .*--list"),
        (["table1", "--plan"], "--plan .*TARGET"),
        (["table1", "train.precision=tf32"], "'train.precision=tf32'.*train.parallel_cells"),
        (["table1", "--preset", "mine"], "--preset: .*'mine'"),
        (["table1", "train.batch_size=8"], "'train.batch_size=8'.*train.parallel_cells"),
        (["table1", "train.parallel_cells=0"], "train.parallel_cells: "),
        (["table1", "train.trainer=quick"], "train.trainer: "),
        (["--import", "nowhere"], "nowhere is not a run folder"),
    ],
)
def test_what_is_wrong_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    words: str,
) -> None:
    assert in_process(monkeypatch, tmp_path, *arguments) == 2
    said = capsys.readouterr()
    (sentence,) = said.err.splitlines()
    assert sentence.startswith("python -m paper: error: ")
    assert re.search(words, sentence)
    assert said.out == ""
    assert list(tmp_path.iterdir()) == []


def test_the_plan_lists_jobs_in_order_with_what_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    PaperRecord("published_cifar10", "fedproto").write(tmp_path / "results")
    assert in_process(monkeypatch, tmp_path, "--plan", "--results", "results", "--json") == 0
    jobs = json.loads(capsys.readouterr().out)
    assert [job["job"] for job in jobs] == list(range(1, len(jobs) + 1))
    assert (jobs[0]["cells"], jobs[0]["to_do"]) == (2, 1)
    assert jobs[0]["command"].startswith("python -m paper published --configs published_cifar10 --algorithms fedproto,")
    assert in_process(monkeypatch, tmp_path, "--plan", "--results", "results") == 0
    told = capsys.readouterr().out
    assert f"{sum(job['to_do'] for job in jobs)} cells to do, in this order:" in told
    assert all(job["command"] in told for job in jobs)


# The report with the paper's chapter


def test_records_of_the_paper_bring_its_tables_readings_and_claims(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for label in ("local", "fedproto", "tinyproto_fp", "tinyproto_ft"):
        PaperRecord("table1_cifar100", label, rounds=4).write(tmp_path / "results")
    assert in_process(monkeypatch, tmp_path, "report", "results", "--figures", "figures", "--json") == 0
    captured = capsys.readouterr()
    paper = json.loads(captured.out)["paper"]
    assert [len(table["rows"]) for table in paper["tables"]] == [9] * 6 + [24] * 3
    assert len(paper["readings"]) == 19 + 4 + 4 + 6  # on CIFAR-100, of its ablation, with 50 clients and on CIFAR-10
    assert paper["rules"] == []  # four rounds say nothing of the paper's 300
    assert {claim["verdict"] for claim in paper["claims"]} == {"holds", "holds in part", "does not hold", "undecided"}
    assert (
        "TinyProto sends 10× fewer parameters than FedProto, by the paper's formula: does not hold so far"
        in captured.err
    )
    assert (tmp_path / "figures" / "paper-figure1.svg").is_file()
    assert (tmp_path / "figures" / "paper-neurons-bytes.csv").is_file()
    page = (tmp_path / "report.html").read_text()
    assert page.index(">The paper<") < page.index("Verdict") < page.index(">Numbers<")
    assert "Ablation of TinyProto-FT, CIFAR-10: not drawn, none of its cells is among the runs" in page


def test_records_of_extensions_bring_their_tables_figure_and_aims(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for stem, label, payload in (
        ("table1_cifar100", "fedproto", 5000),
        ("table1_cifar100", "fedtgp", 5000),
        ("bytes_cifar100", "tinyproto_ft(s=50-int8-held)", 80),
    ):
        PaperRecord(stem, label, rounds=4, payload=payload).write(tmp_path / "results")
    assert in_process(monkeypatch, tmp_path, "report", "results", "--figures", "figures", "--json") == 0
    captured = capsys.readouterr()
    extensions = json.loads(captured.out)["paper"]["extensions"]
    assert len(extensions["bytes"]) == 31 + 7
    assert [row["rounds"] for row in extensions["bytes"] if row["experiment"] == "bytes_cifar100"].count(4) == 1
    assert [len(search["constants"]) for search in extensions["auto"]] == [4, 6, 2, 3, 3]
    assert [claim["verdict"] for claim in extensions["claims"]] == ["undecided"] * (2 + 5)
    assert extensions["figures"] == ["extension-bytes-4"]
    assert (tmp_path / "figures" / "extension-bytes-4.csv").is_file()
    assert "TinyProto-FT (s=50, int8, held) trains with at least 55× fewer bytes" in " ".join(captured.err.split())
    page = (tmp_path / "report.html").read_text()
    assert page.index("Open readings") < page.index(">Extensions<") < page.index("Verdict")
    assert "TinyProto-FT, s=50, int4 stochastic" in page
    assert "Not run yet: <code>python -m paper auto</code> runs it." in page


def test_the_paper_comes_before_the_studies_and_a_page_without_it_has_none(tmp_path: Path) -> None:
    PaperRecord("table1_cifar100", "fedproto", 60, rounds=4).write(tmp_path / "paper")
    page = report_with_paper(read_runs(find_runs([tmp_path / "paper"])))
    assert page.html.index(">The paper<") < page.html.index(">Figures<") < page.html.index("Verdict")
    assert page.figures[0].slug == "paper-figure1"
    places = [page.html.index(f'id="{figure.slug}"') for figure in page.figures]
    assert places == sorted(places)
    other = report_with_paper(read_runs([Made().write(tmp_path / "other")]))
    assert ">The paper<" not in other.html


def test_the_report_s_default_is_all_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    PaperRecord("table1_cifar100", "fedproto", 60, rounds=4).write(tmp_path / "paper" / "records")
    assert in_process(monkeypatch, tmp_path, "report", "--out", "paper.html") == 0
    assert "Of the paper's 8 claims" in capsys.readouterr().out
    assert ">The paper<" in (tmp_path / "paper.html").read_text()


def test_a_missing_run_folder_is_an_error_of_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert in_process(monkeypatch, tmp_path, "report", "nowhere") == 2
    assert "nowhere" in capsys.readouterr().err


def test_docs_writes_the_configs_and_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    PaperRecord("table1_cifar100", "fedproto", 60, rounds=4).write(tmp_path / "paper" / "records")
    (tmp_path / PAGE).parent.mkdir(parents=True)
    (tmp_path / PAGE).write_text(f"{BEGIN}\n{END}\n")
    assert in_process(monkeypatch, tmp_path, "docs") == 0
    assert "| 30.00 | +0.03 | +0.2× | no Local run | 1 | 4 of 300 |" in (tmp_path / PAGE).read_text()
    assert (tmp_path / "paper" / "configs" / "table1_cifar100.yaml").is_file()


def test_python_m_paper_works_in_the_root_of_the_repository() -> None:
    command = [sys.executable, "-m", "paper", "table1", "--dataset", "cifar100", "--list", "--json"]
    done = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, check=True)
    cells = json.loads(done.stdout)
    assert len(cells) == 27
    assert {cell["folder"] for cell in cells if cell["seed"] == 0} >= {"paper/records/table1_cifar100/fedproto-0"}
