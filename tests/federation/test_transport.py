"""A federation over a transport in memory: the coordinator and its clients know no other interface, and no Flower."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

import tinyproto.federation
from support_cli import jsonl
from support_members import TOKEN, small_values, write_arrays, write_join
from support_trackers import remember
from tinyproto.config import parse_config
from tinyproto.federation.channel import Incoming, Outgoing, Pace
from tinyproto.federation.coordinator import Coordinator
from tinyproto.federation.member import respond


class InMemory:
    """Hands each message to a client's folder at once, and keeps the reply until it is asked for."""

    def __init__(self, folders: Mapping[int, Path]) -> None:
        self.folders = folders
        self.waiting: dict[str, list[Incoming]] = {}

    def nodes(self) -> dict[int, bytes]:
        return dict.fromkeys(self.folders, b"")

    def send(self, messages: Sequence[Outgoing], lifetime: float) -> list[str | None]:
        identities: list[str | None] = []
        for node, values in messages:
            identities.append(f"message {len(self.waiting)}")
            self.waiting[f"message {len(self.waiting)}"] = [Incoming(respond(self.folders[node], node, values))]
        return identities

    def replies(self, identity: str) -> list[Incoming]:
        found, self.waiting[identity] = self.waiting[identity], []
        return found


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    (tmp_path / "run").mkdir()
    config = parse_config(small_values()).resolved()
    (tmp_path / "run" / "serve.json").write_text(json.dumps({"config": config, "federation": TOKEN}))
    return tmp_path / "run"


def test_a_transport_of_three_methods_carries_a_federation(run_folder: Path) -> None:
    folders = {}
    for client, model in enumerate(("small_cnn_a", "small_cnn_b", "small_cnn_a")):
        place = run_folder.parent / f"client-{client}"
        folders[client] = write_join(place, model, {"path": str(write_arrays(place / "data.npz", client))})
    Coordinator(run_folder, InMemory(folders), Pace(poll=0.01)).run()
    records = jsonl(run_folder / "rounds.jsonl")
    assert [record["participants"] for record in records] == [[0, 1, 2], [0, 1, 2], []]
    assert [record["refused"] for record in records] == [{}, {}, {}]
    assert jsonl(run_folder / "progress.jsonl")[-1]["event"] == "finished"
    assert [jsonl(folder / "progress.jsonl")[-1]["event"] for folder in folders.values()] == ["finished"] * 3


def test_a_coordinator_tells_its_trackers_each_round_and_warns_once_of_one_that_fails(
    run_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing, tracked = remember(monkeypatch, "mlflow", fails_at=2), remember(monkeypatch, "wandb")
    config = parse_config({**small_values(), "tracking": ["mlflow", "wandb"]}).resolved()
    (run_folder / "serve.json").write_text(json.dumps({"config": config, "federation": TOKEN}))
    folders = {}
    for client in range(3):
        place = run_folder.parent / f"client-{client}"
        folders[client] = write_join(place, "small_cnn_a", {"path": str(write_arrays(place / "data.npz", client))})
    Coordinator(run_folder, InMemory(folders), Pace(poll=0.01)).run()
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
