"""`python -m benchmarks codec` and `device`, in small."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import codec, device
from benchmarks.codec import CodecSettings, measure_codec
from benchmarks.device import DeviceSettings, measure_device
from benchmarks.scale import PAPER
from support_benchmarks import benchmark
from tinyproto.wire.values import VALUE_TYPES

ROOT = Path(__file__).parents[2]
SMALL = DeviceSettings(networks=("resnet8",), steps=1, batch_size=8, passes=1)


@pytest.fixture(autouse=True)
def _little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "BULK", {"1 MB": 20_000, "16 MB": 40_000})


def test_every_type_is_measured_with_every_rounding_and_says_its_bytes() -> None:
    found = measure_codec(CodecSettings(passes=1, megabytes=0.01))
    cases = [(one["type"], one["rounding"]) for one in found["types"]]
    assert cases[:3] == [("float32", "nearest"), ("float16", "nearest"), ("float16", "stochastic")]
    assert len(cases) == 2 * len(VALUE_TYPES) - 1
    for one in found["types"]:
        values = VALUE_TYPES[one["type"]]
        assert one["bytes_per_row"] == {"50": values.payload(2, 50) / 2, "500": values.payload(2, 500) / 2}
        assert one["frames"]["46 x 50"]["payload_bytes"] == values.payload(46, 50)
        assert one["frames"]["46 x 50"]["wire_bytes"] == values.payload(46, 50) + 14 + 8 + 6
        for rates in one["bulk"].values():
            assert rates["encode_gigabytes_per_second"] > 0
            assert (rates["decode_gigabytes_per_second"] is None) == (values.name == "float32")  # which is a view
    assert found["environment"]["packages"]["numpy"]


def test_a_pass_repeats_the_work_and_the_best_one_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 8.0, 10.0, 14.0])
    monkeypatch.setattr("benchmarks.codec.time.process_time", lambda: next(clock))
    calls: list[int] = []
    assert codec.best_seconds(CodecSettings(passes=2, megabytes=4), 10**6, lambda: calls.append(1)) == 1.0
    assert len(calls) == 8


def test_the_exchange_is_held_to_a_round_of_the_quickest_network() -> None:
    found = measure_device(SMALL)
    (training,) = found["training"]
    assert found["steps_per_round"] == 281  # 2 250 samples in eights, the last two with the eight before
    assert training["seconds_per_round"] == pytest.approx(training["seconds_per_step"] * 281)
    for one in found["exchange"]:
        values = VALUE_TYPES[one["type"]]
        assert one["wire_bytes"]["up"] == values.payload(46, 50) + 14 + 8 + 13
        assert one["wire_bytes"]["down"] == values.payload(100, 50) + 14 + 8 + 13
        spent = sum(one["microseconds"].values()) / 1e6
        assert one["share_of_quickest_round"] == pytest.approx(spent / training["seconds_per_round"])
        assert 4 * 100 * 500 < one["memory_bytes"] < training["memory_bytes"]
    assert found["largest_share_of_a_round"] == max(one["share_of_quickest_round"] for one in found["exchange"])


def test_both_verbs_print_tables_and_one_json_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    few = ("--passes", "1")
    assert benchmark(monkeypatch, tmp_path, "codec", *few, "--megabytes", "1") == 0
    said = capsys.readouterr().out
    for words in ("bfloat16", "stochastic", "27, 252", "46 x 50", "numpy"):
        assert words in said
    assert benchmark(monkeypatch, tmp_path, "codec", *few, "--megabytes", "1", "--json") == 0
    assert json.loads(capsys.readouterr().out)["settings"] == {"passes": 1, "megabytes": 1.0}
    small = ("--networks", "resnet8", "--samples", "64", "--steps", "1", *few)
    benchmark(monkeypatch, tmp_path, "device", *small)
    said = capsys.readouterr().out
    for words in ("resnet8", "a round is 2 steps", "largest share", "int4", "numpy"):
        assert words in said


def test_an_exchange_that_takes_too_much_of_a_round_is_the_exit_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small = ("device", "--networks", "resnet8", "--steps", "1", "--passes", "1", "--json")
    monkeypatch.setattr(device, "LIMIT", 1.0)
    assert benchmark(monkeypatch, tmp_path, *small) == 0
    monkeypatch.setattr(device, "LIMIT", 0.0)
    capsys.readouterr()
    assert benchmark(monkeypatch, tmp_path, *small) == 1
    assert json.loads(capsys.readouterr().out)["within_limit"] is False


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("codec", "--passes", "0"), "--passes"),
        (("device", "--networks", "resnet9"), "networks: unknown network 'resnet9', did you mean 'resnet8'?"),
    ],
)
def test_what_cannot_be_measured_is_refused_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: Any, words: str
) -> None:
    assert benchmark(monkeypatch, tmp_path, *arguments) == 2
    assert words in capsys.readouterr().err


def back(rate: dict[str, float | None]) -> str:
    decoded = rate["decode_gigabytes_per_second"]
    return "a view" if decoded is None else f"{decoded:.1f}"


def test_the_docs_quote_the_records_which_meet_their_limits() -> None:
    page = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "docs").rglob("*.md"))
    record = json.loads((ROOT / "results" / "codec" / "codec.json").read_text(encoding="utf-8"))
    for one in record["types"]:
        rates = [one["bulk"][amount] for amount in ("1 MB", "16 MB")]
        if one["rounding"] == "nearest":
            assert min(rate["encode_gigabytes_per_second"] for rate in rates) > 0.5
        told = [f"{rate['encode_gigabytes_per_second']:.1f} / {back(rate)}" for rate in rates]
        frames = (one["frames"][frame] for frame in ("46 x 50", "100 x 500"))
        told += [f"{frame['encode_microseconds']:.0f} / {frame['open_microseconds']:.0f}" for frame in frames]
        line = f"| {one['type']}, {one['rounding']} | {' | '.join(told)} |"
        assert line.replace("float32, nearest", "float32") in page
    cost = json.loads((ROOT / "results" / "codec" / "device.json").read_text(encoding="utf-8"))
    assert cost["within_limit"]
    assert cost["settings"]["networks"] == list(PAPER)
    for one in cost["exchange"]:
        told = [f"{one['milliseconds']:.2f} ms", f"{100 * one['share_of_quickest_round']:.3f} %"]
        assert f"| {one['type']} | {' | '.join(told)} |" in page
