"""What benchmarks/README.md claims is what the records beside it say."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tinyproto.report.words import times

FOLDER = Path(__file__).parents[2] / "benchmarks"
RECORDS = sorted((FOLDER / "records").glob("round_*.json"))
PAGE = (FOLDER / "README.md").read_text(encoding="utf-8")


def rows_of(record: Path) -> list[str]:
    return [line for line in PAGE.splitlines() if line.startswith(f"| `{record.stem}` ")]


def read(record: Path) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(record.read_text(encoding="utf-8"))
    return values


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.stem)
def test_a_record_s_ratios_stand_on_the_page(record: Path) -> None:
    found = read(record)
    claimed = [
        (algorithm["algorithm"], row["name"], times(row["ratio"]), f"{row['seconds']['total']['median']:.3f}")
        for algorithm in found["algorithms"]
        for row in algorithm["contenders"]
    ]
    for cells in claimed:
        assert any(all(f"| {cell} " in row for cell in cells) for row in rows_of(record)), cells
    for part in ("class_means", "three_rules"):
        assert times(found["features"][part]["ratio"]) in PAGE
    assert found["features"]["agree"]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.stem)
def test_a_record_says_on_what_and_of_what_it_was_taken(record: Path) -> None:
    found = read(record)
    assert len(found["environment"]["commit"]) == 40
    assert found["environment"]["packages"]["torch"]
    assert found["setting"]["rounds"] >= 3


def test_every_row_has_its_record() -> None:
    named = set(re.findall(r"^\| `(round_\w+)` ", PAGE, re.MULTILINE))
    assert named == {record.stem for record in RECORDS}
    assert named
