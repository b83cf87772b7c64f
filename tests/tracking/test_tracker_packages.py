"""Each tracker with its real package: what it wrote is read back after an interrupted and resumed run."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from support_cli import jsonl
from support_grid import StopsAfter, make_experiment
from support_trackers import TRIAL
from tinyproto import grid
from tinyproto.tracking.trackers import PACKAGES

CONFIG = f"{TRIAL}algorithms: [local, fedproto]\n"
Curve = list[tuple[int, float]]  # steps and accuracies by head
Found = dict[str, tuple[Curve, float, Any]]  # by cell: its curve, a value of its summary, train.rounds as it was told


def in_tensorboard(folder: Path) -> Found:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    found: Found = {}
    for cell in folder.iterdir():
        events = EventAccumulator(str(cell), purge_orphaned_data=False).Reload()
        told = events.summary_metadata["_hparams_/session_start_info"].plugin_data.content
        settings = HParamsPluginData.FromString(told).session_start_info.hparams
        curve, last = ([(e.step, e.value) for e in events.Scalars(name)] for name in ("accuracy/head", SUMMARY))
        found[cell.name] = (curve, last[0][1], settings["train.rounds"].number_value)
        assert len(list(cell.iterdir())) == 1
    return found


def wandb_records(content: bytes) -> Iterator[Any]:
    """Yield the records of a run's file: blocks of 32 KiB, each part with a checksum, a length and a kind."""
    from wandb.proto.wandb_internal_pb2 import Record

    place, parts = 7, b""
    while place + 7 <= len(content):
        if (left := 32768 - place % 32768) < 7:
            place += left
            continue
        length, kind = int.from_bytes(content[place + 4 : place + 6], "little"), content[place + 6]
        parts += content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # a whole record, or the last part of one
            yield Record.FromString(parts)
            parts = b""


def in_wandb(folder: Path) -> Found:
    found: Found = {}
    for cell in folder.iterdir():
        (file,) = cell.glob("wandb/offline-run-*/run-*.wandb")
        curve, last, told = [], 0.0, None
        for record in wandb_records(file.read_bytes()):
            if record.WhichOneof("record_type") == "history":
                values = {"/".join(one.nested_key): json.loads(one.value_json) for one in record.history.item}
                curve.append((record.history.step.num, values["accuracy/head"]))
                last = values.get(SUMMARY, last)
            elif record.WhichOneof("record_type") == "run":
                assert (record.run.display_name, record.run.project) == (cell.name, "trial")
                settings = {one.key or "/".join(one.nested_key): one.value_json for one in record.run.config.update}
                told = json.loads(settings["train.rounds"])
        found[cell.name] = (curve, last, told)
    return found


def in_trackio(folder: Path) -> Found:
    with sqlite3.connect(folder / "trial.db") as database:
        rows = database.execute("SELECT run_name, step, metrics FROM metrics ORDER BY id").fetchall()
        configs = dict(database.execute("SELECT run_name, config FROM configs").fetchall())
    found: Found = {}
    for name in dict.fromkeys(row[0] for row in rows):
        logged = [(step, json.loads(values)) for run, step, values in rows if run == name]
        curve = [(step, values["accuracy/head"]) for step, values in logged if "accuracy/head" in values]
        found[name] = (curve, logged[-1][1][SUMMARY], json.loads(configs[name])["train.rounds"])
    return found


def in_mlflow(folder: Path) -> Found:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{folder / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("trial")
    assert experiment is not None
    found: Found = {}
    for run in client.search_runs([experiment.experiment_id]):
        assert run.info.status == "FINISHED"
        curve = [(one.step, one.value) for one in client.get_metric_history(run.info.run_id, "accuracy/head")]
        told = int(run.data.params["train.rounds"])
        found[str(run.info.run_name)] = (sorted(curve), run.data.metrics[SUMMARY], told)
    return found


SUMMARY = "summary/accuracy/last/head"
READ: dict[str, Callable[[Path], Found]] = {
    "tensorboard": in_tensorboard, "wandb": in_wandb, "trackio": in_trackio, "mlflow": in_mlflow,
}  # fmt: skip


@pytest.mark.parametrize("name", READ)
def test_what_a_package_wrote_is_the_record_also_after_an_interruption(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    if any(find_spec(package) is None for package in PACKAGES[name]):  # not imported, as trackio then fixes its folder
        pytest.skip(f"needs the extra {name}")
    monkeypatch.setenv("TRACKIO_DIR", "")  # restored afterwards
    experiment = make_experiment(tmp_path, CONFIG, f"tracking=[{name}]")
    with pytest.raises(KeyboardInterrupt):
        grid.run(experiment, tmp_path / "runs", observer=StopsAfter(2))
    folder = grid.resume(experiment, tmp_path / "runs" / "trial")
    found = READ[name](folder / "tracking" / name)
    assert found.keys() == {"local-0", "fedproto-0"}
    for label in ("local", "fedproto"):
        curve, last, told = found[f"{label}-0"]
        recorded = [
            (one["round"], one["accuracy"]["head"]) for one in jsonl(folder / "rounds.jsonl") if one["label"] == label
        ]
        assert [step for step, _ in curve] == [1, 2, 3, 4]
        assert [value for _, value in curve] == pytest.approx([value for _, value in recorded])
        assert last == pytest.approx(recorded[-1][1])
        assert told == 3
    assert capfd.readouterr().out == ""
