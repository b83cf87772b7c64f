"""Devices that sleep: `join --once` takes part in the round that waits for it, and ends."""

from __future__ import annotations

import pytest

from support_cli import jsonl
from support_federation import assert_equal_to_the_simulation
from support_real_mqtt import RealMqtt, Start

pytestmark = pytest.mark.mqtt


def trained(federation: RealMqtt, client: int) -> list[int]:
    """Return the rounds that a client has trained, as its own journal has them."""
    events = jsonl(federation.client_folder(client) / "progress.jsonl")
    return [event["round"] for event in events if event["event"] == "answered" and event["kind"] == "update"]


def test_a_device_that_sleeps_between_rounds_takes_part_in_each(start: Start) -> None:
    federation = start(rounds=2, deadline=60)
    serve, joins = federation.serve(), [federation.join(client) for client in (0, 1)]
    naps = []
    for number in (1, 2, 3):  # the last one evaluates
        naps.append(federation.join(2, "--once"))
        assert naps[-1].wait(150) == 0, federation.tail()
        naps[-1].assert_nothing_left(5)
        federation.wait_for("answered", 10, client=2, round=number)
    federation.assert_completes(serve, [*joins, *naps])
    for nap in naps[:-1]:
        assert "client 2: answered 1 round; messages wait at localhost:" in nap.said
    assert "client 2: the federation is over after 2 rounds" in naps[-1].said
    assert not federation.events("left")
    assert not federation.events("silent")
    assert trained(federation, 2) == [1, 2]
    assert_equal_to_the_simulation(federation)


@pytest.mark.mqtt_slow
def test_a_device_that_wakes_trains_only_the_newest_of_the_rounds_that_wait(start: Start) -> None:
    federation = start(rounds=6, quorum=0.6, deadline=6)
    serve, joins = federation.serve(), [federation.join(client) for client in (0, 1)]
    assert federation.join(2, "--once").wait(150) == 0
    (asleep_after,) = trained(federation, 2)
    federation.wait_for("round", 120, round=asleep_after + 3)
    awake = federation.join(2, "--once")
    assert awake.wait(150) == 0, awake.said
    assert "refused" not in awake.said
    assert "answered 1 round" in awake.said
    assert len(trained(federation, 2)) == 2
    assert trained(federation, 2)[1] >= asleep_after + 3
    federation.assert_completes(serve, joins)
    records = {record["round"]: record for record in federation.records()}
    assert not records[asleep_after]["refused"]
    for number in range(asleep_after + 1, asleep_after + 3):
        assert "no answer within 6 s" in records[number]["refused"]["2"]


@pytest.mark.mqtt_slow
def test_an_answer_after_the_deadline_is_counted_as_late_and_changes_nothing(start: Start) -> None:
    federation = start(rounds=12, quorum=0.6, deadline=6)
    serve, joins = federation.start()
    with federation.held_round(2, joins[2]) as number:
        federation.wait_for("concluded", 60, round=number)
        record = federation.records()[-1]
    federation.wait_for("ignored", 30, client=2, round=number, reason="a late reply")
    federation.assert_completes(serve, joins)
    assert federation.records()[number - 1] == record
    assert list(record["refused"]) == ["2"]
    assert "no answer within 6 s" in record["refused"]["2"]
