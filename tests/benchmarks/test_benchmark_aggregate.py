"""`python -m benchmarks aggregate` on a few uploads; the full million is slow."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import aggregate
from benchmarks.aggregate import AggregateSettings, compare_with_exact, make_ring, measure
from support_benchmarks import benchmark
from tinyproto.algorithms.streaming import HolderSums
from tinyproto.core.prototypes import PackedRows
from tinyproto.report.words import number, size, times

SMALL = AggregateSettings(uploads=150, num_classes=10, held=4, cps_dim=3, proto_dim=20, shards=3)


@pytest.fixture(autouse=True)
def _few_distinct(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aggregate, "DISTINCT", 64)


def test_it_takes_in_what_was_asked_for_and_the_sums_are_right() -> None:
    told: list[tuple[str, int, int]] = []
    found = measure(SMALL, lambda *step: told.append(step))
    assert found["payload_bytes"] == 150 * 4 * 3 * 4
    assert found["wire_bytes"] == found["payload_bytes"] + 150 * (22 + 2 + 2 + 5 + 5)
    assert found["distinct_uploads"] == 64
    assert found["sums"]["within_bound"]
    assert found["sums"]["holders_are_right"]
    assert sum(found["shares"].values()) == pytest.approx(1)
    assert 0 < found["median_microseconds_per_upload"] < 1e6 * found["cpu_seconds"]
    assert list(found["shares"]) == ["checksum", "decode", "validate", "fold"]
    assert found["gigabytes_per_second_per_core"] * found["cpu_seconds"] == pytest.approx(found["payload_bytes"] / 1e9)
    assert found["environment"]["packages"]["numpy"]
    assert told[-2:] == [("aggregating uploads", 150, 150), ("comparing with exact sums", 0, 0)]


def all_taken_in(settings: AggregateSettings) -> tuple[aggregate.Ring, HolderSums]:
    ring = make_ring(settings, bytes(16))
    sums = HolderSums(settings.num_classes, settings.cps_dim)
    for client in range(settings.uploads):
        place = client % len(ring.bodies)
        sums.fold(PackedRows(settings.num_classes, ring.classes[place].numpy(), ring.values[place].numpy()))
    return ring, sums


def test_a_sum_that_is_off_and_an_upload_that_is_missing_are_noticed() -> None:
    ring, sums = all_taken_in(SMALL)
    assert compare_with_exact(SMALL, ring, sums)["within_bound"]
    sums.sums[3, 1] *= 1 + 1e-12
    found = compare_with_exact(SMALL, ring, sums)
    assert not found["within_bound"]
    assert found["largest_share_of_bound"] > 1
    sums.fold(PackedRows(10, ring.classes[0].numpy(), torch.zeros(4, 3).numpy()))
    assert not compare_with_exact(SMALL, ring, sums)["holders_are_right"]


ARGUMENTS = ("aggregate", "--uploads", "70", "--classes", "10", "--held", "4", "--cps-dim", "3")


def test_the_verb_prints_one_json_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert benchmark(monkeypatch, tmp_path, *ARGUMENTS, "--proto-dim", "20", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["settings"] == {
        "uploads": 70, "num_classes": 10, "held": 4, "cps_dim": 3, "proto_dim": 20, "shards": 1,
    }  # fmt: skip


def test_the_verb_says_rate_memory_shares_hardware_and_whether_the_sums_are_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert benchmark(monkeypatch, tmp_path, *ARGUMENTS, "--proto-dim", "20", "--shards", "2") == 0
    said = capsys.readouterr().out
    for words in (
        "70 of 4 of 10 classes, 3 values each; 64 of them differ", "GB/s of payload", "uploads/s", "checksum",
        "readable way", "above the imported package", "2, whose sums were merged in a tree", "within the bound",
        "numpy",
    ):  # fmt: skip
        assert words in said


def test_wrong_sums_are_said_and_are_the_exit_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fold = HolderSums.fold

    def forgetful(self: HolderSums, upload: PackedRows) -> None:
        fold(self, upload._replace(values=upload.values * 0.999))

    monkeypatch.setattr(HolderSums, "fold", forgetful)
    assert benchmark(monkeypatch, tmp_path, *ARGUMENTS, "--proto-dim", "20") == 1
    assert "WRONG" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("option", "words"),
    [
        (("--uploads", "0"), "uploads must be at least 1, not 0"),
        (("--shards", "-1"), "shards must be at least 1, not -1"),
        (("--held", "11"), "a client cannot hold 11 of 10 classes"),
        (("--proto-dim", "2"), "cps_dim must be at most proto_dim, 2, not 3"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], option: Any, words: str
) -> None:
    assert benchmark(monkeypatch, tmp_path, *ARGUMENTS, *option) == 2
    assert words in capsys.readouterr().err


@pytest.mark.slow
def test_a_million_uploads_need_less_than_300_megabytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    found = measure(AggregateSettings())
    assert found["payload_bytes"] == 9_200_000_000
    assert found["peak_memory_bytes"] < 300e6
    assert found["sums"]["within_bound"]
    assert found["sums"]["holders_are_right"]


def test_wide_rows_have_fewer_distinct_uploads_so_that_memory_is_not_the_bench_s_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(aggregate, "DISTINCT_BYTES", 10 * SMALL.payload_per_upload)
    assert len(make_ring(SMALL, bytes(16)).bodies) == 10
    monkeypatch.setattr(aggregate, "DISTINCT_BYTES", 1)
    assert len(make_ring(SMALL, bytes(16)).bodies) == 1


RECORD = Path(__file__).parents[2] / "results" / "aggregate" / "aggregate.json"


def test_the_page_quotes_the_record_which_is_of_the_million() -> None:
    record = json.loads(RECORD.read_text(encoding="utf-8"))
    assert record["settings"] == asdict(AggregateSettings())
    assert record["sums"]["within_bound"]
    assert record["sums"]["holders_are_right"]
    assert record["peak_memory_bytes"] < 300e6
    assert len(record["environment"]["commit"]) == 40
    shares = ", ".join(f"{name} {100 * share:.0f} %" for name, share in record["shares"].items())
    readable = record["readable_way"]
    page = "\n".join(path.read_text(encoding="utf-8") for path in (RECORD.parents[2] / "docs").rglob("*.md"))
    for line in (
        f"| payload per second of one core | {record['gigabytes_per_second_per_core']:.2f} GB |",
        f"| uploads per second of one core | {number(record['uploads_per_second'])} |",
        f"| one upload | {record['microseconds_per_upload']:.1f} µs: {shares} |",
        f"| one upload, median over batches of 64 | {record['median_microseconds_per_upload']:.1f} µs |",
        f"| the readable way | {readable['microseconds_per_upload']:.1f} µs, {times(readable['ratio'])} as long |",
        f"| peak memory above the imported package | {size(record['peak_memory_bytes'])} |",
        f"| largest error, as a share of the bound | {record['sums']['largest_share_of_bound']:.1g} |",
    ):
        assert line in page
