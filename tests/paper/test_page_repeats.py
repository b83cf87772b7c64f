"""Two runs of one cell with one seed: what is compared, and what is said of their commits."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from paper.page.outcomes import Records
from paper.page.repeats import Again, repeats, told
from support_paper import PaperRecord
from tinyproto.report.runs import find_runs, read_runs


def made(folder: Path, *records: tuple[PaperRecord, str]) -> list[Again]:
    for index, (record, commit) in enumerate(records):
        run = record.write(folder / str(index))
        (run / "environment.json").write_text(json.dumps({"commit": commit}))
    return repeats(Records(read_runs(find_runs([folder]))))


def fedproto(correct: int, rounds: int = 60, seed: int = 0, early: int = 0) -> PaperRecord:
    return PaperRecord("table1_cifar100", "fedproto", correct, seed=seed, rounds=rounds, early={60: early})


def test_a_longer_run_of_the_same_seed_is_read_after_as_many_rounds(tmp_path: Path) -> None:
    (again,) = made(tmp_path, (fedproto(60), "abcdefghi"), (fedproto(80, 300, early=63), "bcdefghij"))
    assert again.words() == [
        "CIFAR-100, FedProto", "60", "0", "abcdefg and bcdefgh", "31.50 (+1.50)", "31.50 (+1.50)", "31.50 (+1.50)"
    ]  # fmt: skip
    assert told([again]) == "No pair was run at one commit, so what the code changed is not separated from noise."


@pytest.mark.parametrize(("second", "points"), [(61, "0.50"), (64, "2.00"), (58, "1.00")])
def test_a_repeat_at_one_commit_is_told_as_noise(tmp_path: Path, second: int, points: str) -> None:
    found = made(tmp_path, (fedproto(60), "abc"), (fedproto(second), "abc"))
    assert [again.of_one_commit for again in found] == [True]
    assert told(found) == f"One cell was run again at one commit; their best rounds differ by at most {points} points."


def test_a_constant_and_the_rule_that_derives_it_are_a_repeat(tmp_path: Path) -> None:
    constant = PaperRecord("table1_cifar100", "tinyproto_fp", 80, early={60: 62})
    derived = PaperRecord("readings_methods", "tinyproto_fp(auto)", 63, rounds=60)
    (again,) = made(tmp_path / "one", (constant, "abc"), (derived, "abc"))
    assert again.words()[:4] == ["CIFAR-100, TinyProto-FP (50), tinyproto_fp(auto)", "60", "0", "one"]
    assert again.differences() == {"head": 0.005, "global": 0.005, "local": 0.005}
    assert made(tmp_path / "other", (constant, "abc"), (replace(derived, seed=1), "abc")) == []


def test_two_new_runs_of_one_length_are_one_pair_beside_a_longer_run(tmp_path: Path) -> None:
    found = made(tmp_path, (fedproto(80, 300, early=63), "abc"), (fedproto(60), "abc"), (fedproto(61), "abc"))
    assert [[run.rounds for run in again.runs] for again in found] == [[60, 60]]
    assert told(found) == "One cell was run again at one commit; their best rounds differ by at most 0.50 points."


def test_three_runs_of_one_length_are_three_pairs_and_told_as_one_cell(tmp_path: Path) -> None:
    found = made(tmp_path, *[(fedproto(correct), "abc") for correct in (60, 61, 63)])
    assert len(found) == 3
    assert told(found) == "One cell was run again at one commit; their best rounds differ by at most 1.50 points."


def test_a_cell_that_differs_in_the_classes_it_downloads_alone_is_a_repeat(tmp_path: Path) -> None:
    table = PaperRecord("table1_cifar100", "tinyproto_ft", 90, early={100: 80})
    held = PaperRecord("bytes_cifar100", "tinyproto_ft(s=50-float32-held)", 79, rounds=100)
    (again,) = made(tmp_path, (table, "abcdefghi"), (held, "bcdefghij"))
    assert again.words()[:4] == [
        "CIFAR-100, TinyProto-FT (50), tinyproto_ft(s=50-float32-held)", "100", "0", "abcdefg and bcdefgh",
    ]  # fmt: skip
    assert again.differences() == {"head": -0.005, "global": -0.005, "local": -0.005}


def test_unknown_commits_are_not_one_commit(tmp_path: Path) -> None:
    assert [again.of_one_commit for again in made(tmp_path, (fedproto(60), ""), (fedproto(61), ""))] == [False]


def test_other_seeds_and_other_cells_are_no_repeat(tmp_path: Path) -> None:
    other = PaperRecord("table1_cifar100", "fedtgp", rounds=60)
    assert made(tmp_path, (fedproto(60), "abc"), (fedproto(61, seed=1), "abc"), (other, "abc")) == []
