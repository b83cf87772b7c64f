"""The picture of accuracy against participation is that of its records."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks import participation
from benchmarks.participation import PICTURE, RECORDS, SETTINGS, Curves, Setting, draw, read_curves, table
from tinyproto.config import load_config
from tinyproto.report.compare import Spread
from tinyproto.report.runs import find_runs

CURVES: Curves = {
    ("Local", 0.0): {0.1: Spread(0.8, 0.01, 3), 1.0: Spread(0.9, 0.02, 3)},
    ("FedProto", 0.2): {0.1: Spread(0.4, 0.05, 3), 1.0: Spread(0.7, 0.0, 3)},
}


def test_every_setting_asks_for_the_same_number_of_client_rounds() -> None:
    for setting in SETTINGS:
        model = load_config(participation.CONFIG, setting.overrides([0, 1], 20)).model
        assert model.train.rounds * model.train.participation == pytest.approx(20)
        assert (model.train.dropout, model.seeds) == (setting.dropout, [0, 1])
    assert len({setting.name for setting in SETTINGS}) == len(SETTINGS) == 8


def test_a_picture_has_a_title_a_ground_and_a_curve_per_method_and_dropout() -> None:
    tree = ElementTree.fromstring(draw(CURVES))
    space = "{http://www.w3.org/2000/svg}"
    title = tree.findtext(f"{space}title") or ""
    assert "Local 80.0% with 10%, 90.0% with 100%" in title
    assert "FedProto and 20% dropouts 40.0% with 10%" in title
    ground = tree.find(f"{space}rect")
    assert ground is not None
    assert ground.get("fill") == "#ffffff"
    curves = {(path.get("stroke"), path.get("stroke-dasharray") is not None) for path in tree.iter(f"{space}path")}
    assert {dashed for _, dashed in curves} == {False, True}
    assert len({colour for colour, _ in curves}) == 2
    words = {text.text for text in tree.iter(f"{space}text")}
    assert {"Local", "FedProto", "20% of them drop out"} <= words


def test_the_table_has_mean_and_deviation_in_percent() -> None:
    assert table(CURVES)[2:] == [
        "| Local | 0% | 80.0 ± 1.0 | 90.0 ± 2.0 |",
        "| FedProto | 20% | 40.0 ± 5.0 | 70.0 ± 0.0 |",
    ]


@pytest.mark.slow
def test_one_command_trains_keeps_the_records_and_draws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(participation, "SETTINGS", [Setting(0.5, 0.2)])
    monkeypatch.setattr(participation, "ALGORITHMS", ("local", "fedproto"))
    records, picture = tmp_path / "records", tmp_path / "picture.svg"
    arguments = ["--seeds", "0", "--passes", "1", "--records", str(records), "--picture", str(picture)]
    participation.main(arguments)
    assert [path.name for path in find_runs([records])] == ["participation50_dropout20"]
    names = {path.name for path in (records / "participation50_dropout20").iterdir()}
    assert names == {"config.yaml", "environment.json", "rounds.jsonl.gz", "summary.json"}
    before = picture.read_text(encoding="utf-8")
    monkeypatch.setattr(participation, "train", None)
    participation.main(["--draw", *arguments])
    assert picture.read_text(encoding="utf-8") == before == draw(read_curves(records))


@pytest.mark.skipif(not RECORDS.is_dir(), reason="python -m benchmarks participation has not been run")
def test_the_committed_picture_is_that_of_the_committed_records() -> None:
    assert PICTURE.read_text(encoding="utf-8") == draw(read_curves(RECORDS)), "run with --draw"
