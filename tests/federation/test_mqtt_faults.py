"""Federations over a real Mosquitto whose processes die and come back, and which end in the bits of a simulation."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from support_federation import NETWORKS, Federation, Running, assert_equal_to_the_simulation, eventually
from support_real_mqtt import BROKER, COORDINATOR, TRAINING, RealMqtt, Start, Stranger, one, resident_bytes
from tinyproto.config import load_config
from tinyproto.experiment import Experiment
from tinyproto.federation.member import MemberFiles
from tinyproto.federation.mqtt.connection import LEAVING_SECONDS
from tinyproto.federation.mqtt.listener import LINGER_SECONDS
from tinyproto.federation.mqtt.messages import with_counts
from tinyproto.tracking.run_folder import RunFolder
from tinyproto.wire.frame import HEADER_BYTES, Kind

pytestmark = pytest.mark.mqtt
slow = pytest.mark.mqtt_slow


def simulated_bytes(federation: Federation, folder: Path) -> bytes:
    """Return rounds.jsonl of a simulation of the same config."""
    experiment = Experiment(load_config(federation.config, ["robust.defence=guard"]))
    (cell,) = experiment.cells
    run = RunFolder.create(folder, overwrite=False)
    for round_ in experiment.simulation(cell, experiment.loopback(cell)).rounds():
        run.append_round(cell.identity, round_)
    return (folder / "rounds.jsonl").read_bytes()


@pytest.mark.parametrize("algorithm", ["tinyproto_ft", "anchors"])
def test_a_federation_ends_in_the_bytes_of_a_simulation(algorithm: str, start: Start, tmp_path: Path) -> None:
    federation = start(rounds=3, algorithm=algorithm)
    federation.assert_completes(*federation.start())
    records = (federation.run_folder / "rounds.jsonl").read_bytes()
    assert records == simulated_bytes(federation, tmp_path / "simulated")
    assert_equal_to_the_simulation(federation)
    for way in ("up", "down"):
        by_client = federation.result()["socket_bytes_per_round"]["clients"]
        assert all(0 < by_client[str(client)][way] < 10_000 for client in range(3))


def test_a_broker_that_is_killed_or_stopped_in_a_round_costs_nothing(start: Start) -> None:
    federation = start(rounds=12)
    serve, joins = federation.start()
    with federation.held_round(2, joins[2]) as number:
        os.kill(one(serve, BROKER), signal.SIGKILL)
        federation.wait_for("warned", 10, reason="Mosquitto ended with status 137; starting it again")
        federation.wait_for("warned", 10, reason="the broker is back")
        for join in joins:
            assert_small(join)
    federation.wait_for("concluded", 30, round=number)
    if number < 12:
        broker = one(serve, BROKER)
        os.kill(broker, signal.SIGSTOP)
        time.sleep(2)
        os.kill(broker, signal.SIGCONT)
    federation.assert_completes(serve, joins)
    assert not federation.events("left")
    assert not federation.events("silent")
    assert_equal_to_the_simulation(federation)


@slow
def test_a_broker_that_is_away_is_waited_for_and_all_say_so(start: Start) -> None:
    federation = start(rounds=12, deadline=60)
    serve, joins = federation.start()
    with federation.held_round(2, joins[2]):
        serve.process.send_signal(signal.SIGSTOP)  # so that it does not start another one
        os.kill(one(serve, BROKER), signal.SIGKILL)
        for join in joins:
            eventually(lambda: "waiting for localhost:" in join.said, 20, join.said)  # noqa: B023
        serve.process.send_signal(signal.SIGCONT)
        federation.wait_for("warned", 30, reason="the broker is back")
    federation.assert_completes(serve, joins)
    assert federation.events("warned")[0]["reason"].startswith("waiting for the broker: ")
    for join in joins:
        assert join.said.count("is connected to localhost:") == 2
    assert_equal_to_the_simulation(federation)


@slow
def test_a_client_and_a_training_process_that_are_killed_come_back(start: Start) -> None:
    federation = start(rounds=12, deadline=8)
    serve, joins = federation.start()
    with federation.held_round(2, joins[2]) as number:
        os.kill(one(joins[2], TRAINING), signal.SIGKILL)
        federation.wait_for("refused", 10, client=2, round=number)
        (failed,) = eventually(lambda: [line for line in joins[2].said.splitlines() if "failed" in line], 10, "words")
        assert failed == "client 2: failed: the training process was killed by signal 9"
        assert joins[2].process.poll() is None
    federation.wait_for("concluded", 30, round=number)  # asked again at the deadline, and trained by a new process
    with federation.held_round(2, joins[2], after=number) as number:
        joins[2].process.kill()
        joins[2].assert_nothing_left(5)  # its training process ends with it
        killed = time.monotonic()
        federation.wait_for("left", 30, client=2)
        assert time.monotonic() - killed < LEAVING_SECONDS + 5
        joins[2] = federation.join(2)
    federation.wait_for("concluded", 40, round=number)
    federation.assert_completes(serve, joins)
    assert {event["client"] for event in federation.events("left")} == {2}
    assert federation.events("silent", client=2, round=number, reason="it disconnected")
    assert_equal_to_the_simulation(federation)


def test_a_coordinator_that_is_killed_resumes_and_clients_answer_again(start: Start) -> None:
    federation = start(rounds=12)
    serve, joins = federation.start()
    with federation.held_round(2, joins[2]) as number:
        os.kill(one(serve, COORDINATOR), signal.SIGKILL)
        assert serve.wait(20) == 2
        assert "the coordinator ended; its log is" in serve.said
        assert "resume with: tinyproto serve" in serve.said
        serve.assert_nothing_left(10)
    serve = Federation.serve(federation, "--resume")  # it knows that it runs over MQTT
    federation.assert_completes(serve, joins)
    for join in joins:
        assert join.said.count(f"round {number}: answered") == 1  # the listener has its reply in memory
    assert [event["done"] for event in federation.events("started")] == [0, number - 1]
    assert_equal_to_the_simulation(federation)


def test_strangers_at_the_port_and_a_stolen_key_change_nothing_for_others(start: Start) -> None:
    federation = start(rounds=12)
    serve, joins = federation.start()
    with federation.held_round(2, joins[2]) as number, contextlib.ExitStack() as stack:
        for each in range(500):
            idle = stack.enter_context(socket.create_connection(("127.0.0.1", federation.port)))
            if each % 5 == 0:
                idle.send(b"\x16\x03\x01\x02\x00\x01")  # a ClientHello that ends here
        joins[1].process.send_signal(signal.SIGSTOP)  # else it would take its session back
        reply = replies_of(federation, 1)[number, Kind.TRAIN]
        again, larger = (with_counts(frame, None) for frame in (reply, reply[:HEADER_BYTES] + bytes(100_000)))
        with Stranger.with_keys(federation.port, federation.folder / "keys" / "client-1") as thief:
            for topic in ("u0", "u2", "d0", "a"):
                assert thief.publish(topic, again) == "Not authorized"
            for payload in (b"{", b"[]", b"{}", b"\x01garbage", b"{" + bytes(5000), bytes(100_000), again, larger):
                assert thief.publish("u1", payload) == "Success"
            eventually(lambda: len(federation.events("ignored", reason="a double reply")) >= 2, 10, federation.tail())
        joins[1].process.send_signal(signal.SIGCONT)
        assert {event["client"] for event in federation.events("refused")} == {1}
    federation.assert_completes(serve, joins)
    assert {event["client"] for event in federation.events("left")} <= {1}
    assert_equal_to_the_simulation(federation)


def replies_of(federation: RealMqtt, client: int) -> Mapping[tuple[int, Kind], bytes]:
    """Return what a client has answered in its last two rounds."""
    (folder,) = (federation.client_folder(client) / "state").iterdir()
    saved = MemberFiles(folder, client).load(NETWORKS[client])
    assert saved is not None
    return saved.replies


def assert_small(join: Running) -> None:
    assert resident_bytes(join.process.pid) < 60e6
    assert "torch" not in Path(f"/proc/{join.process.pid}/maps").read_text()


@slow
def test_a_training_process_ends_when_it_has_no_work_unless_it_is_resident(start: Start) -> None:
    federation = start(rounds=12, deadline=90)
    serve = federation.serve()
    joins = [federation.join(0), federation.join(1, "--resident"), federation.join(2)]
    with federation.held_round(2, joins[2]) as number:
        answered = time.monotonic()
        eventually(lambda: not joins[0].has(TRAINING), LINGER_SECONDS + 5, "it ends")
        assert time.monotonic() - answered > LINGER_SECONDS / 2
        assert joins[1].has(TRAINING)
        assert joins[2].has(TRAINING)  # it has work
        for join in joins:
            assert_small(join)
    federation.assert_completes(serve, joins)
    assert federation.events("answered", client=0, round=number + 1)
    assert_equal_to_the_simulation(federation)
