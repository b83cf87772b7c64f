"""A coordinator killed at any point and resumed ends in the bytes of one that was left alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from flwr.app import Message

from support import same_tensors
from support_flower import NODE, Federation, Killed, in_round, silent, small_federation
from support_members import TOKEN, small_values
from tinyproto.config import parse_config
from tinyproto.core.task import State
from tinyproto.errors import CheckpointError, RunFolderError
from tinyproto.federation.coordinator import Coordinator
from tinyproto.tracking.recorder import CellRecorder
from tinyproto.tracking.run_folder import RunFolder
from tinyproto.tracking.summary import RoundResult

pytestmark = pytest.mark.flower

CALLS = 30
NAME = "tinyproto_ft"  # whose server has a state and trains it
Undisturbed = tuple[State, bytes, int]


def values() -> dict[str, Any]:
    found = small_values(NAME)
    found["algorithms"] = [{"name": NAME, "server_epochs": 3}]
    return found


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    federation = small_federation(tmp_path_factory.mktemp("undisturbed"), values())
    calls = Calls()
    calls.watch(federation)
    coordinator = federation.play()
    return coordinator.server.state, (federation.run_folder / "rounds.jsonl").read_bytes(), calls.made


class Calls:
    """Counts what the coordinator asks of the Grid, and kills it at one of these calls."""

    def __init__(self, last: int = -1) -> None:
        self.made = 0
        self.last = last

    def watch(self, federation: Federation) -> None:
        federation.grid.before_push = lambda message: self.count()
        federation.grid.before_pull = self.count

    def count(self) -> None:
        self.made += 1
        if self.made == self.last:
            raise Killed


def assert_goes_on(federation: Federation, undisturbed: Undisturbed) -> Coordinator:
    """Resumed on a new Grid, as after the SuperLink's death."""
    state, records, _ = undisturbed
    kept = federation.run_folder / "rounds.jsonl"
    before = kept.read_bytes() if kept.exists() else b""
    done = len([line for line in before.splitlines() if not json.loads(line)["closing"]])
    grid = type(federation.grid)(federation.grid.folders)
    again = Federation(federation.config, federation.run_folder, grid)
    coordinator = again.play(resume=True)
    assert same_tensors(coordinator.server.state, state)
    assert kept.read_bytes() == records
    assert json.loads((federation.run_folder / "summary.json").read_text())["results"][0]["rounds"] == 2
    started = again.events("started")[-1]
    assert started["done"] >= done - 1  # a round whose checkpoint was not written yet is played again
    return coordinator


def calls_to_kill_at() -> list[Any]:
    """Three hellos and four exchanges, pushed to and pulled from three clients: some always, all if there is time."""
    often = {2, 5, 8, 11, 14, 17, 20, 24, 27, 30}
    return [
        pytest.param(call, marks=[] if call in often else pytest.mark.flower_slow, id=f"call {call}")
        for call in range(1, CALLS + 1)
    ]


@pytest.mark.parametrize("call", calls_to_kill_at())
def test_killed_at_any_call_it_goes_on_to_the_same_bytes(call: int, tmp_path: Path, undisturbed: Undisturbed) -> None:
    federation = small_federation(tmp_path, values())
    Calls(call).watch(federation)
    with pytest.raises(Killed):
        federation.play()
    assert_goes_on(federation, undisturbed)


def test_all_calls_are_among_those_that_it_is_killed_at(undisturbed: Undisturbed) -> None:
    assert undisturbed[2] == CALLS


def kill_around(
    monkeypatch: pytest.MonkeyPatch, owner: type, name: str, when: Callable[..., bool], before: bool
) -> None:
    """Before or after a method did its work, once."""
    original = getattr(owner, name)
    armed = [True]

    def killing(*arguments: Any, **more: Any) -> Any:
        now = armed[0] and when(*arguments)
        if now:
            armed[0] = False
        if now and before:
            raise Killed
        done = original(*arguments, **more)
        if now:
            raise Killed
        return done

    monkeypatch.setattr(owner, name, killing)


def second_round(folder: RunFolder, identity: Any, played: RoundResult) -> bool:
    return played.record.round == 2


def second_checkpoint(recorder: CellRecorder) -> bool:
    return recorder.done == 2


def closing(folder: RunFolder, identity: Any, played: RoundResult) -> bool:
    return played.record.closing


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
@pytest.mark.parametrize(
    ("owner", "name", "when"),
    [
        (RunFolder, "append_round", second_round),
        (CellRecorder, "checkpoint", second_checkpoint),
        (RunFolder, "append_round", closing),
        (RunFolder, "write_results", lambda *arguments: True),
    ],
    ids=["the record", "the checkpoint", "the last record", "the results"],
)
def test_killed_around_what_it_writes_it_goes_on_to_the_same_bytes(
    owner: type, name: str, when: Callable[..., bool], before: bool, tmp_path: Path, undisturbed: Undisturbed,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    federation = small_federation(tmp_path, values())
    kill_around(monkeypatch, owner, name, when, before)
    with pytest.raises(Killed):
        federation.play()
    if name == "write_results" and not before:  # it had ended already
        federation.play(resume=True)
        assert federation.events("finished")
        assert (federation.run_folder / "rounds.jsonl").read_bytes() == undisturbed[1]
        return
    assert_goes_on(federation, undisturbed)


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-2] ^= 1
    file.write_bytes(content)


def killed_after_round_2(federation: Federation, monkeypatch: pytest.MonkeyPatch, *, asked: bool) -> Path:
    """Kill it when its second checkpoint is written, or when clients have answered the exchange after it."""
    if asked:
        kill_around(monkeypatch, RunFolder, "append_round", closing, True)
    else:
        kill_around(monkeypatch, CellRecorder, "checkpoint", second_checkpoint, False)
    with pytest.raises(Killed):
        federation.play()
    _, newest = sorted((federation.run_folder / "checkpoint").iterdir())
    flip(newest)
    return newest


@pytest.mark.parametrize("asked", [False, True], ids=["clients in that round", "clients in the next"])
def test_a_damaged_checkpoint_is_told_and_the_one_before_leads_to_the_same_bytes(
    tmp_path: Path, undisturbed: Undisturbed, monkeypatch: pytest.MonkeyPatch, asked: bool
) -> None:
    federation = small_federation(tmp_path, values())
    newest = killed_after_round_2(federation, monkeypatch, asked=asked)
    Calls(100).watch(federation)  # it must not ask for ever
    federation.play(resume=True)
    assert (federation.run_folder / "rounds.jsonl").read_bytes() == undisturbed[1]
    (told,) = federation.events("damaged")
    assert told["round"] == 2
    assert told["reason"].startswith(f"{newest} is damaged")
    assert "resuming from round 2" in told["reason"]


def test_when_every_checkpoint_is_damaged_a_federation_says_to_start_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    federation = small_federation(tmp_path, values())
    killed_after_round_2(federation, monkeypatch, asked=False)
    flip(min((federation.run_folder / "checkpoint").iterdir()))
    with pytest.raises(CheckpointError, match=r"no checkpoint in .* is intact: .*; start another federation$"):
        federation.play(resume=True)


def test_killed_again_and_again_it_gets_there(tmp_path: Path, undisturbed: Undisturbed) -> None:
    federation = small_federation(tmp_path, values())
    for calls in (18, 20, 9, 9, 15):  # in round 1, in round 2 three times, in the closing exchange
        Calls(calls).watch(federation)
        with pytest.raises(Killed):
            federation.play(resume=True)
    assert [told["done"] for told in federation.events("started")] == [0, 0, 1, 1, 1]
    Calls().watch(federation)
    federation.play(resume=True)
    assert (federation.run_folder / "rounds.jsonl").read_bytes() == undisturbed[1]
    assert [told["round"] for told in federation.events("concluded")] == [1, 2, 3]


def test_resumed_clients_say_what_they_said_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each client had trained round 2 when the coordinator died; none trains it twice."""
    federation = small_federation(tmp_path, values())
    said: dict[int, list[bytes]] = {client: [] for client in range(3)}

    def note(client: int) -> None:
        def change(asked: Message, reply: Message) -> list[tuple[float, Message]]:
            frame = reply.content["tinyproto"]["frame"]
            assert isinstance(frame, bytes)
            said[client].append(frame)
            return [(0.0, reply)]

        federation.grid.changes[NODE + client] = in_round(2, change)

    for client in range(3):
        note(client)
    after_round_2 = RunFolder.append_round

    def die(folder: RunFolder, identity: Any, played: RoundResult) -> None:
        if played.record.round == 2:
            raise Killed
        after_round_2(folder, identity, played)

    monkeypatch.setattr(RunFolder, "append_round", die)
    with pytest.raises(Killed):
        federation.play()
    states = [file.read_bytes() for file in sorted(tmp_path.rglob(f"state/{TOKEN}/*.safetensors"))]
    with pytest.raises(Killed):
        federation.play(resume=True)
    assert all(len(replies) == 2 and replies[0] == replies[1] for replies in said.values())
    assert states == [file.read_bytes() for file in sorted(tmp_path.rglob(f"state/{TOKEN}/*.safetensors"))]
    assert len(states) == 3


def test_what_is_under_way_is_not_begun_anew(tmp_path: Path) -> None:
    federation = small_federation(tmp_path, values())
    Calls(26).watch(federation)
    with pytest.raises(Killed):
        federation.play()
    assert list((federation.run_folder / "checkpoint").iterdir())
    with pytest.raises(RunFolderError, match="--resume"):
        federation.play()


def test_it_goes_on_with_the_config_it_began_with_or_not_at_all(tmp_path: Path) -> None:
    federation = small_federation(tmp_path, values())
    Calls(26).watch(federation)
    with pytest.raises(Killed):
        federation.play()
    changed = {**values(), "seeds": [5]}
    other = Federation(parse_config(changed), federation.run_folder, federation.grid)
    with pytest.raises(CheckpointError, match="seeds"):
        other.play(resume=True)


def test_it_goes_on_with_the_token_it_began_with_or_not_at_all(tmp_path: Path) -> None:
    federation = small_federation(tmp_path, values())
    Calls(26).watch(federation)
    with pytest.raises(Killed):
        federation.play()
    records = (federation.run_folder / "rounds.jsonl").read_bytes()
    with pytest.raises(CheckpointError, match="token"):
        federation.play(resume=True, federation="f" * 32)
    assert (federation.run_folder / "rounds.jsonl").read_bytes() == records


def test_who_was_not_heard_before_the_kill_is_heard_after_it(tmp_path: Path, undisturbed: Undisturbed) -> None:
    federation = small_federation(tmp_path, values())
    federation.grid.changes[NODE + 1] = in_round(2, silent)

    def die() -> None:
        raise Killed

    federation.grid.clock.alarms.append((30.0, die))
    with pytest.raises(Killed):
        federation.play()
    assert_goes_on(federation, undisturbed)
