"""Rounds with a quorum and a deadline; members who come late, go away, come back, or claim to be another."""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from flwr.app import Message

from support import same_tensors
from support_flower import (
    NODE,
    Federation,
    InProcessGrid,
    Killed,
    after,
    doing,
    frame_of,
    framed,
    in_round,
    kind_of,
    silent,
    small_federation,
)
from support_members import small_values, write_arrays, write_join
from support_report import without_terms
from tinyproto.config import parse_config
from tinyproto.federation.refusals import WORDS
from tinyproto.report.page import make_report
from tinyproto.report.runs import read_run
from tinyproto.report.words import size
from tinyproto.wire.frame import Kind, peek

pytestmark = pytest.mark.flower


def trained(grid: InProcessGrid, client: int) -> list[int]:
    """The rounds that a client was asked to train in."""
    asked = [
        message
        for message in grid.asked
        if message.metadata.dst_node_id == NODE + client and kind_of(message) is Kind.TRAIN
    ]
    return [peek(frame_of(message)).round_number for message in asked]


def test_a_client_that_never_answers_costs_a_deadline_and_is_named(tmp_path: Path) -> None:
    federation = small_federation(tmp_path)
    federation.grid.changes[NODE + 2] = in_round(1, silent)
    start = federation.grid.clock.now
    coordinator = federation.play()
    first, second, _ = federation.records()
    assert (first["participants"], second["participants"]) == ([0, 1], [0, 1, 2])
    assert first["refused"] == {"2": "client 2, round 1: no answer within 60 s"}
    assert 60 <= federation.grid.clock.now - start < 75
    assert [(event["client"], event["round"]) for event in federation.events("silent")] == [(2, 1)]
    assert not coordinator.channel.ignored


def test_a_reply_after_the_deadline_is_ignored_and_counted(tmp_path: Path) -> None:
    late, never = small_federation(tmp_path / "late"), small_federation(tmp_path / "never")
    late.grid.changes[NODE + 2] = in_round(1, after(61.5))
    late.grid.changes[NODE + 1] = in_round(2, after(20.0))  # so that the late one comes while round 2 is under way
    never.grid.changes[NODE + 2] = in_round(1, silent)
    one, two = late.play(), never.play()
    assert one.channel.ignored == {"late": 1}
    assert [(told["client"], told["round"], told["reason"]) for told in late.events("ignored")] == [
        (2, 1, "a late reply")
    ]
    assert same_tensors(one.server.state, two.server.state)
    assert late.records() == never.records()


def test_below_the_quorum_a_round_is_asked_again_of_those_who_have_not_answered(tmp_path: Path) -> None:
    undisturbed, disturbed = small_federation(tmp_path / "one"), small_federation(tmp_path / "two")
    times = {1: 0, 2: 0}

    def mute_at_first(client: int) -> None:
        def change(asked: Message, reply: Message) -> Iterable[tuple[float, Message]]:
            times[client] += 1
            return [] if times[client] <= 2 else [(0.0, reply)]

        disturbed.grid.changes[NODE + client] = in_round(2, change)

    mute_at_first(1)
    mute_at_first(2)
    one, two = undisturbed.play(), disturbed.play()
    assert same_tensors(one.server.state, two.server.state)
    assert undisturbed.records() == disturbed.records()
    assert trained(disturbed.grid, 0) == [1, 2]
    assert trained(disturbed.grid, 1) == trained(disturbed.grid, 2) == [1, 2, 2, 2]
    again = disturbed.events("again")
    assert [told["reason"] for told in again] == [
        "round 2: 1 of 3 clients gave a good answer within 60 s, 2 are needed; asking again"
    ] * 2


def test_a_slow_client_asked_again_may_answer_what_it_was_asked_first(tmp_path: Path) -> None:
    values = small_values(quorum=1.0, rounds=3)
    undisturbed, slow = small_federation(tmp_path / "one", values), small_federation(tmp_path / "two", values)
    slow.grid.changes[NODE + 1] = in_round(1, after(90.0))  # longer than the deadline, each time
    slow.grid.changes[NODE] = in_round(3, after(59.0))
    slow.grid.changes[NODE + 2] = in_round(2, after(59.0))
    one, two = undisturbed.play(), slow.play()
    assert same_tensors(one.server.state, two.server.state)
    assert [record["participants"] for record in slow.records()] == [[0, 1, 2]] * 3 + [[]]
    assert trained(slow.grid, 1) == [1, 1, 2, 3]
    assert two.channel.ignored == {"late": 1}  # the second reply to the same question


def test_a_bad_answer_is_no_part_of_the_quorum(tmp_path: Path) -> None:
    federation = small_federation(tmp_path, small_values(quorum=1.0))
    spoilt: list[int] = []

    def spoil_once(asked: Message, reply: Message) -> Iterable[tuple[float, Message]]:
        spoilt.append(1)
        return [(0.0, framed(asked, {"frame": b"garbage"}) if len(spoilt) == 1 else reply)]

    federation.grid.changes[NODE] = in_round(2, spoil_once)
    federation.play()
    assert len(federation.events("again")) == 1
    assert trained(federation.grid, 0) == [1, 2, 2]
    assert [record["participants"] for record in federation.records()] == [[0, 1, 2], [0, 1, 2], []]
    assert federation.records()[1]["refused"] == {}


def test_a_client_killed_in_a_round_is_done_without_and_taken_back(tmp_path: Path) -> None:
    """Flower says that its node went offline; it is back for the next round, on the same node."""
    federation = small_federation(tmp_path, small_values(rounds=3))
    grid = federation.grid

    def kill(asked: Message, reply: Message) -> Iterable[tuple[float, Message]]:
        grid.offline.add(NODE + 2)
        return [(40.0, Message(flower_error(5), reply_to=asked))]

    grid.changes[NODE + 2] = in_round(1, kill)
    grid.changes[NODE + 1] = in_round(2, doing(grid.offline.clear, after(10.0)))
    federation.play()
    assert [record["participants"] for record in federation.records()] == [[0, 1], [0, 1], [0, 1, 2], []]
    assert federation.records()[0]["refused"] == {"2": "client 2, round 1: its node went offline"}
    assert [told["client"] for told in federation.events("left")] == [2]
    assert federation.events("refused") == []
    (silent_one,) = federation.events("silent")
    assert (silent_one["client"], silent_one["round"], silent_one["reason"]) == (2, 1, "its node went offline")
    assert [told["client"] for told in federation.events("joined")] == [0, 1, 2, 2]


def flower_error(code: int) -> object:
    from flwr.app import Error

    return Error(code, "Node Unavailable")


def test_a_client_that_comes_late_is_greeted_then(tmp_path: Path) -> None:
    federation = small_federation(tmp_path)
    grid = federation.grid
    grid.offline.add(NODE + 2)
    grid.changes[NODE] = in_round(1, doing(grid.offline.clear, after(10.0)))
    federation.play()
    first, second, closing = federation.records()
    assert (first["participants"], second["participants"]) == ([0, 1], [0, 1, 2])
    assert first["traffic"]["hello"]["up"]["wire"] == 2 * second["traffic"]["hello"]["up"]["wire"] > 0
    assert closing["clients"]["id"] == [0, 1, 2]
    assert federation.events("waiting")[0]["missing"] == [2]
    summary = json.loads((federation.run_folder / "summary.json").read_text())
    assert summary["results"][0]["hello_bytes"]["up"] == 3 * second["traffic"]["hello"]["up"]["wire"]


def test_it_does_not_begin_below_the_quorum(tmp_path: Path) -> None:
    federation = small_federation(tmp_path)
    grid = federation.grid
    grid.offline |= {NODE + 1, NODE + 2}

    grid.clock.alarms.append((200.0, grid.offline.clear))
    federation.play()
    assert grid.clock.now >= 200
    assert federation.records()[0]["participants"] == [0, 1, 2]


def waited(federation: Federation) -> list[tuple[list[int], list[int], int | None]]:
    return [(told["present"], told["missing"], told.get("seconds")) for told in federation.events("waiting")]


def test_it_says_anew_whom_it_waits_for_once_there_are_enough_and_once_time_is_up(tmp_path: Path) -> None:
    federation = small_federation(tmp_path, small_values(rounds=1))
    grid = federation.grid
    grid.offline |= {NODE, NODE + 1, NODE + 2}
    grid.clock.alarms += [
        (10.0, lambda: grid.offline.discard(NODE)), (40.0, lambda: grid.offline.discard(NODE + 1)),
    ]  # fmt: skip
    federation.play()
    first, second = waited(federation)
    assert first == ([], [0, 1, 2], 60)
    assert second[:2] == ([0, 1], [2])
    assert second[2] is not None
    assert 10 <= second[2] <= 20
    assert 60 <= grid.clock.now < 70
    assert {told["needed"] for told in federation.events("waiting")} == {2}

    late = small_federation(tmp_path / "late", small_values(rounds=1))
    late.grid.offline |= {NODE + 1, NODE + 2}
    late.grid.clock.alarms.append((100.0, late.grid.offline.clear))
    late.play()
    assert waited(late) == [([0], [1, 2], 60), ([0], [1, 2], None)]


def test_what_goes_on_does_not_wait_for_who_never_had_a_part_in_it(tmp_path: Path) -> None:
    federation = small_federation(tmp_path, small_values(rounds=2))
    grid = federation.grid
    grid.offline.add(NODE + 2)

    def killed(message: Message) -> None:
        if kind_of(message) is Kind.TRAIN and peek(frame_of(message)).round_number == 2:
            raise Killed

    grid.before_push = killed
    with pytest.raises(Killed):
        federation.play()
    assert waited(federation) == [([0, 1], [2], 60)]
    grid.before_push = lambda message: None
    began = grid.clock.now
    federation.play(resume=True)
    assert len(waited(federation)) == 1
    assert grid.clock.now - began < 30
    assert [record["participants"] for record in federation.records()] == [[0, 1], [0, 1], []]


@pytest.mark.parametrize("comes", [True, False])
def test_there_is_no_formula_without_the_classes_of_who_never_came(comes: bool, tmp_path: Path) -> None:
    values = small_values(rounds=1)
    values["prototypes"]["counted_samples"] = "all"
    federation = small_federation(tmp_path, values)
    federation.grid.offline |= set() if comes else {NODE + 2}
    federation.play()
    (result,) = json.loads((federation.run_folder / "summary.json").read_text())["results"]
    assert (result["params_per_round_formula"] is not None) == comes


def test_of_two_nodes_with_one_client_id_the_first_keeps_it_while_it_is_online(tmp_path: Path) -> None:
    federation = small_federation(tmp_path, small_values(rounds=3))
    grid = federation.grid
    other = NODE + 7
    grid.folders[other] = write_join(
        tmp_path / "other", "small_cnn_a", {"path": str(tmp_path / "client-1" / "data.npz")}
    )
    grid.client_ids[other] = 1
    grid.changes[NODE + 1] = in_round(2, doing(lambda: grid.offline.add(NODE + 1)))
    grid.changes[NODE] = in_round(2, after(59.0))
    grid.changes[NODE + 2] = in_round(3, after(55.0))
    federation.play()
    refused = federation.events("refused")
    assert [(told["client"], told["node"], told["reason"]) for told in refused] == [(1, other, WORDS["taken"])]
    told = [json.loads(line) for line in (tmp_path / "other" / "progress.jsonl").read_text().splitlines()]
    assert [line["code"] for line in told if line["event"] == "refused"] == ["taken"]
    assert [(told["client"], told["node"]) for told in federation.events("joined")][-1] == (1, other)


def test_with_keys_a_client_id_belongs_to_its_key(tmp_path: Path) -> None:
    federation = small_federation(tmp_path, small_values(rounds=1))
    grid = federation.grid
    grid.keys |= {NODE: b"zero", NODE + 1: b"one", NODE + 2: b"two"}
    thief = NODE - 5  # which is asked before the others
    grid.folders = {thief: grid.folders[NODE + 1], **grid.folders}
    grid.client_ids[thief], grid.keys[thief] = 1, b"zero"
    keys = {str(client): grid.keys[NODE + client].hex() for client in range(3)}
    coordinator = federation.play(keys=keys)
    assert coordinator.channel.roster.nodes == {client: NODE + client for client in range(3)}
    (told,) = federation.events("refused")
    assert (told["client"], told["node"]) == (0, thief)
    assert told["reason"] == "it claims to be client 1, but its key belongs to client 0"


def test_with_keys_a_client_is_named_by_its_key_whatever_it_calls_itself(tmp_path: Path) -> None:
    federation = small_federation(tmp_path, small_values(rounds=1))
    grid = federation.grid
    grid.keys |= {NODE + client: f"key {client}".encode() for client in range(3)}
    grid.client_ids[NODE + 2] = 5
    keys = {str(client): grid.keys[NODE + client].hex() for client in range(3)}
    federation.play(keys=keys)
    (told,) = federation.events("refused")
    assert (told["client"], told["node"], told["reason"]) == (2, NODE + 2, WORDS["member"])


def test_with_keys_a_node_that_goes_away_at_the_hello_is_named_by_its_key(tmp_path: Path) -> None:
    federation = small_federation(tmp_path, small_values(rounds=1))
    grid = federation.grid
    grid.keys |= {NODE + client: f"key {client}".encode() for client in range(3)}

    def gone(asked: Message, reply: Message) -> Iterable[tuple[float, Message]]:
        return [(0.0, Message(flower_error(5), reply_to=asked))]

    grid.changes[NODE + 2] = gone
    federation.play(keys={str(client): grid.keys[NODE + client].hex() for client in range(3)})
    told = federation.events("silent")[0]
    assert (told["client"], told["node"], told["reason"]) == (2, NODE + 2, "hello: its node went offline")


def test_where_keys_are_known_a_client_without_one_is_nobody_and_not_waited_for(tmp_path: Path) -> None:
    federation = small_federation(tmp_path, small_values(quorum=1.0))
    grid = federation.grid
    grid.keys = {NODE + client: f"key {client}".encode() for client in range(3)}
    keys = {str(client): grid.keys[NODE + client].hex() for client in (0, 1)}
    coordinator = federation.play(keys=keys)
    assert [record["participants"] for record in federation.records()[:2]] == [[0, 1], [0, 1]]
    (told,) = federation.events("refused")
    assert told["reason"] == "it claims to be client 2, but its key is not in this federation"
    assert (told.get("client"), told["node"]) == (None, NODE + 2)
    assert list(coordinator.channel.roster.missing()) == []
    assert grid.clock.now < 60  # nobody waited for it


def test_a_client_that_accepts_but_never_tells_its_sizes_delays_the_others_ever_more_seldom(tmp_path: Path) -> None:
    federation = small_federation(tmp_path, small_values(rounds=9, deadline=600.0, quorum=0.6))
    grid = federation.grid
    asked_at: list[float] = []

    def stalls(asked: Message, reply: Message) -> Iterable[tuple[float, Message]]:
        if kind_of(asked) is not Kind.HELLO:
            return [(0.0, reply)]
        asked_at.append(grid.clock.now)
        return []

    grid.changes[NODE + 2] = stalls
    grid.changes[NODE] = lambda asked, reply: [(500.0 if kind_of(asked) is Kind.TRAIN else 0.0, reply)]
    federation.play()
    assert all(record["participants"] == [0, 1] for record in federation.records()[:9])
    reasons = [event["reason"] for event in federation.events("silent")]
    assert reasons[:3] == [f"no answer within {seconds} s" for seconds in (30, 60, 120)]
    pauses = [later - sooner for sooner, later in pairwise(asked_at)]
    assert len(pauses) == 3
    assert all(pause >= 600 * 2**time for time, pause in enumerate(pauses))


def test_refused_at_the_hello_a_client_is_named_on_both_ends_and_the_others_go_on(tmp_path: Path) -> None:
    federation = small_federation(tmp_path)
    write_arrays(tmp_path / "client-1" / "data.npz", 1, classes=9)
    federation.play()
    assert [record["participants"] for record in federation.records()] == [[0, 2], [0, 2], []]
    (told,) = federation.events("refused")
    assert (told["client"], told["node"], told["reason"]) == (1, NODE + 1, WORDS["classes"])
    own, *_ = map(json.loads, (tmp_path / "client-1" / "progress.jsonl").read_text().splitlines())
    assert own["code"] == "classes"
    assert "label 8, the federation has labels 0 … 3" in own["reason"]


def test_a_client_that_lost_its_folder_is_greeted_again_and_starts_anew(tmp_path: Path) -> None:
    federation = small_federation(tmp_path, small_values(rounds=3))
    grid = federation.grid

    def lose(message: Message) -> None:
        about_to_train = kind_of(message) is Kind.TRAIN and message.metadata.dst_node_id == NODE + 2
        if about_to_train and peek(frame_of(message)).round_number == 2:
            for file in sorted((tmp_path / "client-2" / "state").rglob("*"), reverse=True):
                file.rmdir() if file.is_dir() else file.unlink()

    grid.before_push = lose
    grid.changes[NODE + 1] = in_round(2, after(10.0))
    federation.play()
    assert [record["participants"] for record in federation.records()] == [[0, 1, 2], [0, 1], [0, 1, 2], []]
    assert federation.records()[1]["refused"] == {"2": f"client 2, round 2: {WORDS['unknown']}"}


def test_a_node_that_flower_takes_no_messages_for_is_not_waited_for(tmp_path: Path) -> None:
    federation = small_federation(tmp_path)
    grid = federation.grid
    grid.changes[NODE] = in_round(1, doing(lambda: grid.closed.add(NODE + 2)))  # once the others have been asked
    grid.changes[NODE + 1] = in_round(2, doing(grid.closed.clear))
    federation.play()
    assert grid.clock.now < 60
    assert federation.records()[0]["refused"] == {"2": "client 2, round 1: it is not connected"}
    assert [record["participants"] for record in federation.records()] == [[0, 1], [0, 1, 2], []]


def test_a_share_of_the_members_takes_part(tmp_path: Path) -> None:
    values = small_values(clients=4, rounds=2)
    values["train"]["participation"] = 0.5
    federation = small_federation(tmp_path, values)
    federation.play()
    assert [len(record["participants"]) for record in federation.records()] == [2, 2, 0]
    assert federation.records()[-1]["clients"]["id"] == [0, 1, 2, 3]


def test_bytes_at_the_socket_are_counted_by_client_and_round(tmp_path: Path) -> None:
    federation = small_federation(tmp_path)
    counted = dict.fromkeys(range(3), 0)

    def count(message: Message) -> None:
        client = message.metadata.dst_node_id - NODE
        counted[client] += 1000 + client
        told = {"up": counted[client], "down": 2 * counted[client]}
        (tmp_path / f"client-{client}" / "socket.json").write_text(json.dumps(told))

    federation.grid.before_push = count
    federation.play()
    lines = [json.loads(line) for line in (federation.run_folder / "timings.jsonl").read_text().splitlines()]
    assert lines[1]["socket_bytes"] == {"id": [0, 1, 2], "up": [1000, 1001, 1002], "down": [2000, 2002, 2004]}
    (result,) = json.loads((federation.run_folder / "summary.json").read_text())["results"]
    assert result["socket_bytes_per_round"] == {
        "up": 3003,
        "down": 6006,
        "clients": {str(client): {"up": 1000 + client, "down": 2000 + 2 * client} for client in range(3)},
    }
    page = make_report([read_run(federation.run_folder)]).html
    assert ">socket<" in page
    assert f">{size(9009)}<" in page


def test_a_coordinator_says_what_was_derived_and_keeps_that_of_the_last_round(tmp_path: Path) -> None:
    federation = small_federation(
        tmp_path, {**small_values(), "algorithms": [{"name": "tinyproto_fp", "aggregation": "sum"}]}
    )
    federation.grid.changes[NODE + 2] = in_round(1, silent)
    coordinator = federation.play()
    classes, samples = 4, [info.counted_samples for info in coordinator.server.infos.values()]
    (told,) = federation.events("derived")
    assert (told["round"], told["values"]) == (1, {"global_scale": pytest.approx(0.9 * classes / sum(samples[:2]))})
    (result,) = json.loads((federation.run_folder / "summary.json").read_text())["results"]
    assert result["derived"] == {"global_scale": pytest.approx(0.9 * classes / sum(samples))}
    assert "Derived: TinyProto-FP μ = " in without_terms(make_report([read_run(federation.run_folder)]).html)


def test_without_a_counter_there_are_no_socket_bytes(tmp_path: Path) -> None:
    federation = small_federation(tmp_path, small_values(rounds=1))
    (federation.grid.folders[NODE] / "socket.json").write_text("{torn")
    federation.play()
    (result,) = json.loads((federation.run_folder / "summary.json").read_text())["results"]
    assert result["socket_bytes_per_round"] is None


def test_one_message_per_client_and_round(tmp_path: Path) -> None:
    federation = small_federation(tmp_path)
    federation.play()
    kinds = [kind_of(message) for message in federation.grid.asked]
    assert {kind: kinds.count(kind) for kind in kinds} == {
        "terms": 3, Kind.HELLO: 3, Kind.TRAIN: 6, Kind.EVALUATE: 3
    }  # fmt: skip
    assert all(peek(frame_of(message)).kind is Kind.TRAIN for message in federation.grid.asked[6:12])


def test_a_simulation_ignores_the_section() -> None:
    values = small_values()
    plain = parse_config({**values, "federation": {}})
    assert parse_config(values).algorithms == plain.algorithms
