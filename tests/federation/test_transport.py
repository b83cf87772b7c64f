"""A federation over a transport in memory: the coordinator and its clients know no other interface, and no Flower."""

from __future__ import annotations

from pathlib import Path

import pytest

import tinyproto.federation
from support_cli import jsonl
from support_members import TOKEN, play_in_memory, small_values
from support_trackers import remember


def test_a_transport_of_three_methods_carries_a_federation(tmp_path: Path) -> None:
    run_folder, folders = play_in_memory(tmp_path, small_values())
    records = jsonl(run_folder / "rounds.jsonl")
    assert [record["participants"] for record in records] == [[0, 1, 2], [0, 1, 2], []]
    assert [record["refused"] for record in records] == [{}, {}, {}]
    assert jsonl(run_folder / "progress.jsonl")[-1]["event"] == "finished"
    assert [jsonl(folder / "progress.jsonl")[-1]["event"] for folder in folders] == ["finished"] * 3


def test_a_coordinator_tells_its_trackers_each_round_and_warns_once_of_one_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing, tracked = remember(monkeypatch, "mlflow", fails_at=2), remember(monkeypatch, "wandb")
    run_folder, _ = play_in_memory(tmp_path, {**small_values(), "tracking": ["mlflow", "wandb"]})
    assert (tracked[0].steps, tracked[0].closed) == ([1, 2, 3], [True])
    assert tracked[0].cell.folder == run_folder / "tracking" / "wandb"
    assert TOKEN not in tracked[0].cell.settings.values()
    assert failing[0].steps == [1]
    (warned,) = (event for event in jsonl(run_folder / "progress.jsonl") if event["event"] == "warned")
    assert warned["reason"].startswith("tracking: mlflow failed at round 2")


def test_no_part_of_a_federation_knows_its_transport() -> None:
    folder = Path(tinyproto.federation.__file__).parent
    for file in folder.glob("*.py"):
        imports = [line for line in file.read_text().splitlines() if line.lstrip().startswith(("from ", "import "))]
        assert not [line for line in imports if "federation.flower" in line or "flwr" in line], file
