"""Bytes on the wire of records with different versions of the frame: told as measured, compared as one version."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from paper.page.chapter import findings
from paper.page.frames import HEADERS
from paper.page.markdown import as_markdown
from paper.page.outcomes import Outcome, Records
from paper.page.wire_types import wire_claims, wire_rows
from paper.printed import Address
from support_paper import CLIENTS, PaperRecord
from tinyproto.report.runs import find_runs, read_runs
from tinyproto.tracking.environment import environment
from tinyproto.wire.frame import HEADER_BYTES, VERSION

FEDPROTO = PaperRecord("table1_cifar100", "fedproto", 60, payload=2200)
FEDTGP = PaperRecord("table1_cifar100", "fedtgp", 74, payload=2200)
INT8 = PaperRecord("bytes_cifar100", "tinyproto_ft(s=50-int8-held)", 88, payload=38)
SHORTER = HEADERS[1] - HEADERS[2]


def written(folder: Path, *made: tuple[PaperRecord, int | None]) -> Records:
    """Records that name the version of their frames; None: an older record, which does not."""
    for record, version in made:
        facts = {} if version is None else {"frame_version": version}
        (record.write(folder) / "environment.json").write_text(json.dumps(facts))
    return Records(read_runs(find_runs([folder])))


def found(records: Records, label: str = "fedproto") -> Outcome:
    outcome = records.find(Address("table1_cifar100", label))
    assert outcome is not None
    return outcome


def test_a_run_names_the_version_of_its_frames_and_the_page_knows_their_headers() -> None:
    assert environment("cpu", 0)["frame_version"] == VERSION
    assert HEADERS[VERSION] == HEADER_BYTES


@pytest.mark.parametrize("version", HEADERS)
def test_a_record_without_a_version_shows_it_by_its_hello(tmp_path: Path, version: int) -> None:
    folder = FEDPROTO.write(tmp_path)
    summary = json.loads((folder / "summary.json").read_text())
    summary["results"][0]["hello_bytes"] = {"up": 9000, "down": HEADERS[version] * CLIENTS}
    (folder / "summary.json").write_text(json.dumps(summary))
    assert found(Records(read_runs([folder]))).frame_version == version


def test_bytes_of_seeds_with_different_frames_are_told_as_the_oldest_version_has_them(tmp_path: Path) -> None:
    alone = found(written(tmp_path / "alone", (FEDPROTO, None)))
    both = found(written(tmp_path / "both", (FEDPROTO, 1), (replace(FEDPROTO, seed=1), 2)))
    assert (alone.frame_version, both.frame_version) == (1, 1)
    assert both.wire_bytes() - alone.wire_bytes() == pytest.approx(2 * CLIENTS * SHORTER / 2)  # half of them convert


def test_a_saving_is_that_of_frames_of_one_version(tmp_path: Path) -> None:
    records = written(tmp_path, (FEDPROTO, None), (FEDTGP, None), (INT8, 2))
    row = next(row for row in wire_rows(records) if row.cell.address.label == INT8.label)
    ours, theirs = 1580, 88_060 - 2 * CLIENTS * SHORTER
    assert row.plain()["frame_version"] == 2
    assert row.saving == pytest.approx(theirs / ours)
    assert row.words()[-3:-1] == ["1.58 kB†", f"{theirs / ours:.1f}×"]
    claim = wire_claims(wire_rows(records))[0]
    assert claim.evidence.startswith(f"{theirs / ours:.1f}× fewer on the wire (1.58 kB against 87 kB a round;")


def test_the_page_marks_rows_with_other_frames_and_says_so_only_then(tmp_path: Path) -> None:
    def page(folder: Path, *made: tuple[PaperRecord, int | None]) -> str:
        written(folder, *made)
        paper = findings(read_runs(find_runs([folder])))
        assert paper is not None
        return as_markdown(paper)

    old = page(tmp_path / "old", (FEDPROTO, None))
    assert "Wire bytes are those of frames of version 1." in old
    assert "†" not in old
    mixed = page(tmp_path / "mixed", (FEDPROTO, None), (FEDTGP, 2))
    assert "of version 1; † frames of version 2, 26 bytes a frame less than version 1." in mixed
    assert mixed.count("88.1 kB†") == 1
    new = page(tmp_path / "new", (FEDPROTO, 2))
    assert "frames of version 1" not in new
