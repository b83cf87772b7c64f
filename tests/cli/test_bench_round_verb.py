"""`tinyproto bench round`: a table, one JSON value, and one line for what is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support_cli import in_process

SMALL = (
    "models=[small_cnn_c]", "partition.num_clients=2", "prototypes.dim=20", "prototypes.cps_dim=2",
    "algorithms=[fedproto]", "train.device=cpu", "--samples=100", "--rounds=1",
)  # fmt: skip


def test_the_table_has_trainers_phases_and_hardware(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert in_process(monkeypatch, tmp_path, "bench", "round", *SMALL, "--verbose") == 0
    out = " ".join(capsys.readouterr().out.split())
    for words in ("synthetic, 3×32×32: 2 clients", "eager", "naive 1.0×", "rest", "three rules", "torch", "one thread"):
        assert words in out


def test_json_is_one_value_and_a_config_file_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "mine.yaml"
    config.write_text("models: [small_cnn_c]\nalgorithms: [local]\nprototypes: {dim: 20, cps_dim: 2}\n")
    arguments = ("bench", "round", str(config), "train.batch_size=64", "--json", "--naive=none", "--rounds=1")
    assert in_process(monkeypatch, tmp_path, *arguments) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["setting"]["dataset"] == "digits"
    assert found["setting"]["batch_size"] == 64
    assert [row["name"] for row in found["algorithms"][0]["contenders"]] == ["eager"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--trainers=eagre",), "--trainers: unknown trainer 'eagre', did you mean 'eager'?"),
        (("--rounds=0",), "--rounds: a whole number from 1 to 100000 is needed, not '0'"),
        (("no_such.yaml",), "no config file at no_such.yaml"),
        (("--naive=no_such",), "--naive 'no_such:NaiveFederation': importing 'no_such' failed"),
        (("trian.rounds=1",), "bench: unknown key 'trian', did you mean 'train'?"),
    ],
)
def test_what_is_wrong_is_one_line_and_status_2(
    arguments: tuple[str, ...], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    assert in_process(monkeypatch, tmp_path, "bench", "round", *arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"tinyproto: error: {says}")
    assert error.count("\n") == 1
