"""A client sends frames and short codes, never the text of an error."""

from __future__ import annotations

import errno
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("flwr")

from flwr.app import ConfigRecord, Context, Message, RecordDict

from support import same_tensors
from support_flower import NODE, Killed, small_federation
from support_members import small_values
from tinyproto.errors import ConfigError
from tinyproto.federation import member as member_module
from tinyproto.federation.flower import RECORD
from tinyproto.federation.flower.client_app import app as client_app
from tinyproto.federation.flower.server_app import app as server_app
from tinyproto.federation.member import Member
from tinyproto.federation.refusals import WORDS
from tinyproto.storage.tensor_files import save_sealed

pytestmark = pytest.mark.flower

SECRET = "the password of the database"


def ask(folder: Path, values: Mapping[str, Any]) -> dict[str, Any]:
    federation = small_federation(folder, small_values(rounds=1))
    message = Message(RecordDict({RECORD: ConfigRecord(dict(values))}), dst_node_id=NODE, message_type="query")
    federation.grid.push_messages([message])
    ((_, reply),) = federation.grid.waiting
    assert reply.has_content()
    return dict(reply.content[RECORD])


@pytest.mark.parametrize("values", [{}, {"words": "no code"}, {"frame": b""}])
def test_a_message_without_what_it_needs_is_answered_with_a_code(values: Mapping[str, Any], tmp_path: Path) -> None:
    assert ask(tmp_path, values) == {"error": "failed"}
    (told,) = map(json.loads, (tmp_path / "client-0" / "progress.jsonl").read_text().splitlines())
    assert "KeyError" in told["reason"]


def test_a_bug_travels_as_a_code_and_its_text_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(member: Member, text: str) -> str:
        raise RuntimeError(SECRET)

    monkeypatch.setattr(Member, "hello", fail)
    reply = ask(tmp_path, {"terms": "{}"})
    assert reply == {"error": "failed"}
    assert SECRET in (tmp_path / "client-0" / "progress.jsonl").read_text()
    assert SECRET in capsys.readouterr().err


def test_a_refusal_travels_as_a_code_and_its_sentence_stays(tmp_path: Path) -> None:
    assert ask(tmp_path, {"terms": SECRET}) == {"error": "terms", "client-id": 0}
    assert "not JSON" in (tmp_path / "client-0" / "progress.jsonl").read_text()


def test_a_folder_without_a_join_file_is_answered_with_a_code(tmp_path: Path) -> None:
    federation = small_federation(tmp_path, small_values(rounds=1))
    (federation.grid.folders[NODE] / "join.json").unlink()
    federation.play()
    assert federation.records()[0]["participants"] == [1, 2]
    (told,) = federation.events("refused")
    assert (told["client"], told["reason"]) == (0, WORDS["failed"])


def test_a_client_without_space_is_done_without_for_a_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    federation = small_federation(tmp_path / "full", small_values(rounds=3))
    full = federation.grid.folders[NODE + 1]
    times: list[int] = []

    def save(target: Path, *arguments: Any) -> int:
        if full in target.parents:
            times.append(1)
            if len(times) == 2:  # its second round
                raise OSError(errno.ENOSPC, "No space left on device")
        return save_sealed(target, *arguments)

    monkeypatch.setattr(member_module, "save_sealed", save)
    federation.play()
    assert [record["participants"] for record in federation.records()] == [[0, 1, 2], [0, 2], [0, 1, 2], []]
    assert federation.records()[1]["refused"] == {"1": f"client 1, round 2: {WORDS['no-space']}"}
    own = [json.loads(line) for line in (full / "progress.jsonl").read_text().splitlines()]
    assert [line["code"] for line in own if line["event"] == "refused"] == ["no-space"]


def test_a_client_tells_its_own_progress(tmp_path: Path) -> None:
    federation = small_federation(tmp_path, small_values(rounds=1))
    federation.play()
    told = [json.loads(line) for line in (tmp_path / "client-0" / "progress.jsonl").read_text().splitlines()]
    assert [line["event"] for line in told] == ["joined", "answered", "answered", "answered", "finished"]
    assert [line["kind"] for line in told if line["event"] == "answered"] == ["hello", "update", "evaluation"]


def test_the_server_app_plays_what_its_folder_says(tmp_path: Path) -> None:
    one, two = small_federation(tmp_path / "one"), small_federation(tmp_path / "two")
    state = one.play().server.state
    two.coordinator()  # writes serve.json
    server_app(two.grid, Context(1, 1, {}, RecordDict(), {"folder": str(two.run_folder)}))
    assert one.records() == two.records()
    assert state
    again = two.coordinator(resume=True)
    again._begin()
    assert same_tensors(again.server.state, state)


def test_the_server_app_tells_what_stops_it(tmp_path: Path) -> None:
    federation = small_federation(tmp_path)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "serve.json").write_text('{"config": {}}')
    with pytest.raises(ConfigError, match="federation: Field required"):
        server_app(federation.grid, Context(1, 1, {}, RecordDict(), {"folder": str(tmp_path / "run")}))
    (told,) = federation.events("failed")
    assert "serve.json: federation: Field required" in told["reason"]


def test_without_serve_the_run_config_names_the_config_and_changes_it(tmp_path: Path) -> None:
    federation = small_federation(tmp_path, small_values(rounds=5))
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(federation.config.resolved()))
    asked = {"folder": str(federation.run_folder), "config": str(file), "overrides": "train.rounds=1 seeds=[3]"}
    context = Context(1, 1, {}, RecordDict(), asked)
    grid = federation.grid
    grid.before_pull = federation_ends
    with pytest.raises(Killed):
        server_app(grid, context)
    token = json.loads((federation.run_folder / "serve.json").read_text())["federation"]
    grid.before_pull = lambda: None
    server_app(grid, context)
    served = json.loads((federation.run_folder / "serve.json").read_text())
    assert (served["federation"], served["resume"]) == (token, True)
    assert [(record["round"], record["seed"]) for record in federation.records()] == [(1, 3), (2, 3)]


def federation_ends() -> None:
    raise Killed


def test_in_flowers_simulation_a_client_is_its_partition(tmp_path: Path) -> None:
    federation = small_federation(tmp_path, small_values(rounds=1))
    terms = federation.coordinator().terms.text()
    message = Message(RecordDict({RECORD: ConfigRecord({"terms": terms})}), dst_node_id=7, message_type="query")
    message.metadata.__dict__["_message_id"] = message.object_id
    context = Context(1, 7, {"partition-id": 2, "num-partitions": 3}, RecordDict(), {"clients": str(tmp_path)})
    assert client_app(message, context).content[RECORD]["client-id"] == 2
