"""The soak itself: each part notices what it looks for, and a short one passes."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import torch

from benchmarks.soak import Verdict, disk, frames, kills, outage, resumes, rounds
from benchmarks.soak.command import PARTS, main
from benchmarks.soak.runs import scratch
from tinyproto.core.prototypes import Message
from tinyproto.errors import FederationError, WireError
from tinyproto.wire import values
from tinyproto.wire.codec import encode
from tinyproto.wire.frame import HEADER_BYTES, Kind, peek
from tinyproto.wire.validate import open_frame
from tinyproto.wire.values import VALUE_TYPES


def test_the_good_frames_cover_every_value_type_kind_and_section() -> None:
    kinds, types, sections = set(), set(), set()
    for good in frames.good_frames():
        kinds.add(peek(good.frame).kind)
        sections.add(good.frame[HEADER_BYTES])
        types |= {(kind.name, good.expected.wire.rounding) for kind, *_ in frames._matrices(good.frame)}
        assert frames.outcome(good.frame, good).startswith("accepted")
    assert kinds == set(Kind)
    assert sections == {1, 2, 3}
    assert types == {(name, rounding) for name in VALUE_TYPES for rounding in ("nearest", "stochastic")}


def test_two_thousand_mutated_frames_are_refused_or_sound_and_repeat_with_the_seed() -> None:
    first, second = (_outcomes("a", 2000) for _ in range(2))
    assert first == second
    assert first != _outcomes("b", 2000)
    assert {"refused: body", "refused: header", "refused: values", "accepted: encodes to the same bytes"} <= set(first)


def _outcomes(seed: str, count: int) -> list[str]:
    draws, goods = random.Random(seed), frames.good_frames()
    picked = [draws.choice(goods) for _ in range(count)]
    return [frames.outcome(frames.mutated(good.frame, draws), good) for good in picked]


def test_a_decoder_that_lets_a_second_encoding_pass_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def lenient(*_: object) -> None:
        return None

    monkeypatch.setattr(values, "_check_rows", lenient)
    with pytest.raises(AssertionError, match="encoded again it"):
        _outcomes("a", 2000)


def test_an_error_that_is_no_wire_error_is_no_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> Message:
        raise IndexError

    monkeypatch.setattr(frames, "open_frame", broken)
    with pytest.raises(IndexError):
        frames.outcome(frames.good_frames()[0].frame, frames.good_frames()[0])


def test_values_out_of_range_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    (good, *_) = [one for one in frames.good_frames() if peek(one.frame).kind is Kind.UPDATE]
    decoded = open_frame(good.frame, good.expected, frames.CLIENT, good.round_number, good.kinds)
    long = {**decoded.message.tensors, "bias": torch.full((3,), 2e9)}
    frame = encode(
        decoded.header, Message(decoded.message.rows, long), good.expected.coding(Kind.UPDATE, torch.Generator)
    )
    with pytest.raises(WireError):
        open_frame(frame, good.expected, frames.CLIENT, good.round_number, good.kinds)
    monkeypatch.setattr("tinyproto.wire.validate.tensor_problem", lambda *_: None)
    with pytest.raises(AssertionError, match=r"a norm above 1e\+08"):
        frames.outcome(frame, good)


def test_files_cut_off_are_noticed(tmp_path: Path) -> None:
    (tmp_path / "rounds.jsonl").write_text('{"a": 1}\n{"a"')
    (tmp_path / "summary.json").write_text("{")
    (tmp_path / "prototypes.safetensors").write_bytes(b"\1\0")
    (tmp_path / ".report.html.partial").write_text("<")
    (tmp_path / "config.yaml").write_text("a: 1")
    assert disk.half_written(tmp_path) == ["prototypes.safetensors", "rounds.jsonl", "summary.json"]


def test_what_a_full_disk_kept_from_being_written_is_read_from_the_sentence() -> None:
    assert disk.written("cannot write the state of client 1 to runs/trial/clients: No space left on device") == (
        "state of a client"
    )
    assert disk.written("1 cell failed (A: cannot write runs/trial/cells/001-a/rounds.jsonl: No space left)") == (
        "rounds.jsonl"
    )


def test_where_a_kill_fell_is_read_from_the_run_folder(tmp_path: Path) -> None:
    before = kills.state(tmp_path)
    assert kills.place(tmp_path, before) == "starting, or in its first round"
    cell = tmp_path / "cells" / "001-a"
    (cell / "checkpoint").mkdir(parents=True)
    assert kills.place(tmp_path, before) == "before the first checkpoint"
    (cell / "checkpoint" / "00000001.partial").touch()
    assert kills.place(tmp_path, before) == "writing a checkpoint"
    (cell / "summary.json").touch()
    assert kills.place(tmp_path, before) == "between two algorithms, or ending"


def test_the_runs_of_a_part_that_failed_are_kept() -> None:
    good, bad = Verdict(), Verdict()
    with scratch(good) as folder:
        pass
    assert not folder.exists()
    with scratch(bad) as folder:
        bad.failures.append("one")
    assert folder.is_dir()
    assert bad.failures == ["one", f"the runs are kept in {folder}"]
    folder.rmdir()


def test_a_part_that_fails_gives_status_1_and_its_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    parts = {"kills": lambda seed: Verdict({"kills": seed}), "frames": lambda seed: Verdict(failures=[f"at {seed}"])}
    monkeypatch.setattr("benchmarks.soak.command.PARTS", {**PARTS, **parts})
    assert main(["--only", "kills", "--seed", "3"]) == 0
    assert main(["--only", "kills", "frames", "--seed", "3", "--json", str(tmp_path / "soak.json")]) == 1
    assert "frames: at 3" in capsys.readouterr().out
    told = json.loads((tmp_path / "soak.json").read_text(encoding="utf-8"))
    assert told["seed"] == 3
    assert {name: part["verdict"] for name, part in told["parts"].items()} == {"kills": "passed", "frames": "failed"}


@pytest.mark.slow
@pytest.mark.skipif(not rounds.STATM.is_file(), reason="needs /proc")
def test_memory_that_grows_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    found = rounds.watched("tinyproto_fp", 120, 0)
    assert found["rounds"] == 120
    assert 0 <= found["growth"] < 0.05
    kept: list[bytes] = []
    sample = rounds.Watcher.played

    def leaking(self: rounds.Watcher, *arguments: object) -> None:
        kept.append(b"x" * 2_000_000)
        sample(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(rounds.Watcher, "played", leaking)
    assert rounds.watched("tinyproto_fp", 120, 0)["growth"] > 0.05


@pytest.mark.slow
def test_a_short_soak_of_processes_passes() -> None:
    verdicts = [kills.soak(0, kills=2, rounds=6), resumes.soak(0, times=1, rounds=6), disk.soak(0, 1, 1, rounds=2)]
    assert [verdict.failures for verdict in verdicts] == [[], [], []]


@pytest.mark.mqtt_slow
@pytest.mark.mqtt
def test_a_short_outage_of_a_broker_passes() -> None:
    assert outage.soak(0, seconds=5.0, rounds=5).failures == []


def test_without_mosquitto_the_outage_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_: str) -> None:
        raise FederationError("serve and join need paho-mqtt")

    monkeypatch.setattr(outage, "require_transport", missing)
    assert outage.soak(0).word == "skipped"
