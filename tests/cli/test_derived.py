"""A run reports and records the s of its byte budget and the scale of its hello."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support_cli import in_process, jsonl
from support_report import without_terms
from tinyproto.algorithms.base import FederationSpec
from tinyproto.algorithms.tinyproto_hyper import exchanged_bytes
from tinyproto.config import load_config
from tinyproto.experiment import Experiment
from tinyproto.wire.values import WireSettings

BUDGET = "{name: tinyproto_ft, label: budget, server_epochs: 2, byte_budget: 400B, wire: {up: int8, down: int8}}"
GIVEN = "{name: tinyproto_fp, label: given, cps_dim: 4, aggregation: sum, global_scale: 0.01}"
SHORT = (f"algorithms=[{BUDGET}, {GIVEN}]", "seeds=[0]", "train.participation=0.6", "models=[small_cnn_c]")


def test_what_a_run_derived_is_in_its_words_its_summary_and_its_report(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert in_process(monkeypatch, project, "run", "trial.yaml", *SHORT, "--json") == 0
    captured, folder = capsys.readouterr(), project / "runs" / "trial"

    counts = Experiment(load_config(folder / "config.yaml")).data.train_counts
    rounds = [line["participants"] for line in jsonl(folder / "rounds.jsonl") if line["label"] == "budget"]
    assert len(rounds[0]) == 3
    assert rounds[0] != rounds[1]
    first, last = (3.0 * int((counts[who] > 0).sum()) / int(counts[who].sum()) for who in rounds[:2])
    federation = FederationSpec(10, 20, 0.01, wire=WireSettings("int8", "int8"))
    s = max(width for width in range(1, 21) if exchanged_bytes(federation, width) <= 400)
    assert 1 < s < 20

    budget, given = json.loads((folder / "summary.json").read_text())["results"]
    assert budget["derived"] == {"cps_dim": s, "global_scale": pytest.approx(last)}
    assert given["derived"] == {}
    assert f"budget, seed 0: derived s = {s}, μ = {first:.4g} (round 1)\n" in captured.err
    assert "given, seed 0: derived" not in captured.err
    sentence = f"Derived: budget s = {s}, μ = {last:.4g}."
    assert f"\n{sentence}\n" in captured.err
    assert f"<p>{sentence}</p>" in without_terms((folder / "report.html").read_text())
    rows = json.loads(captured.out)["rows"]
    assert [row["derived"] for row in rows] == [{name: [value] for name, value in budget["derived"].items()}, {}]
