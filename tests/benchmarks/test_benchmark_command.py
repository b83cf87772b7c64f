"""`python -m benchmarks`: verbs, tables, one JSON value, and one line for an error."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support_benchmarks import benchmark
from tinyproto.cli.main import app

VERBS = (
    "round",
    "codec",
    "aggregate",
    "scale",
    "device",
    "peers",
    "soak",
    "transports",
    "attacks",
    "networks",
    "communication",
    "participation",
)
SMALL = (
    "models=[small_cnn_c]", "partition.num_clients=2", "prototypes.dim=20", "prototypes.cps_dim=2",
    "algorithms=[fedproto]", "train.device=cpu", "--samples=100", "--rounds=1",
)  # fmt: skip


def test_the_help_names_all_verbs_and_the_library_s_command_has_none_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert benchmark(monkeypatch, tmp_path, "--help") == 0
    words = capsys.readouterr().out.split()
    assert set(VERBS) <= set(words)
    assert "bench" not in {group.name for group in app.registered_groups}


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_shows_its_options(
    verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert benchmark(monkeypatch, tmp_path, verb, "--help") == 0
    out = capsys.readouterr().out
    assert f"python -m benchmarks {verb}" in out
    assert "--json" in out or "--seeds" in out


def test_the_table_has_trainers_phases_and_hardware(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert benchmark(monkeypatch, tmp_path, "round", *SMALL, "--verbose") == 0
    out = " ".join(capsys.readouterr().out.split())
    for words in ("synthetic, 3×32×32: 2 clients", "eager", "naive 1.0×", "rest", "three rules", "torch", "one thread"):
        assert words in out


def test_json_is_one_value_and_a_config_file_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "mine.yaml"
    config.write_text("models: [small_cnn_c]\nalgorithms: [local]\nprototypes: {dim: 20, cps_dim: 2}\n")
    arguments = (str(config), "train.batch_size=64", "partition.num_clients=4", "--json", "--naive=none", "--rounds=1")
    assert benchmark(monkeypatch, tmp_path, "round", *arguments) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["setting"]["dataset"] == "digits"
    assert found["setting"]["batch_size"] == 64
    assert [row["name"] for row in found["algorithms"][0]["contenders"]] == ["eager"]


def test_a_study_gets_options_with_several_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given: list[list[str]] = []
    monkeypatch.setattr("benchmarks.attacks.main", given.append)
    arguments = ["--seeds", "0", "1", "--methods", "fedproto", "--out", "there"]
    assert benchmark(monkeypatch, tmp_path, "attacks", *arguments) == 0
    assert given == [arguments]


@pytest.mark.parametrize(
    ("arguments", "facts"),
    [
        (("round", "--trainers=eagre"), ("--trainers", "'eagre'", "'eager'")),
        (("round", "no_such.yaml"), ("no_such.yaml",)),
        (("round", "--naive=no_such"), ("--naive", "no_such:NaiveFederation")),
        (("round", "trian.rounds=1"), ("'trian'", "'train'")),
        (("attacks", "--seeds", "x"), ("--seeds", "'x'")),
        (("networks", "--processes"), ("--processes",)),
        (("participation", "--no-such"), ("--no-such",)),
        (("soak", "--only", "naps"), ("--only", "'naps'")),
        (("transports", "--only", "pigeons"), ("--only", "'pigeons'")),
        (("transports", "--rounds", "1"), ("2 rounds",)),
    ],
)
def test_an_error_is_one_line_and_status_2(
    arguments: tuple[str, ...], facts: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    assert benchmark(monkeypatch, tmp_path, *arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("benchmarks: error: ")
    assert error.count("\n") == 1
    assert all(fact in error for fact in facts), error
