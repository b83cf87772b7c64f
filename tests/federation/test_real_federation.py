"""A federation of real processes, with TLS and registered keys, that survives faults with the same results.

Its quorum is everyone, so that each round waits for each client, and the end can be held against a simulation.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from support_federation import Federation, assert_equal_to_the_simulation, eventually

pytestmark = pytest.mark.flower

ROUNDS, CLIENTS = 4, (0, 1, 2)


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[Federation]:
    made = Federation(tmp_path, rounds=ROUNDS, quorum=1.0, deadline=30)
    yield made
    made.clean_up()


def test_a_federation_lives_through_a_kill_a_silence_and_a_new_coordinator(federation: Federation) -> None:
    serve = federation.serve()
    joins = {client: federation.join(client) for client in CLIENTS}

    # A client is killed, with all its processes, while it works on round 2; it comes back by itself.
    federation.wait_for("round", 120, round=2)
    eventually(lambda: joins[2].has("flwr-clientapp"), 30, "client 2 works")
    joins[2].kill_all()
    joins[2] = federation.join(2)
    federation.wait_for("concluded", 240, round=2)

    # A client falls silent in round 3 until the round is asked again.
    joins[1].signal_all(signal.SIGSTOP)
    federation.wait_for("again", 120, round=3)
    joins[1].signal_all(signal.SIGCONT)
    federation.wait_for("concluded", 120, round=3)

    # The coordinator is killed, with all its processes, in round 4; a new one goes on, and the clients find it.
    federation.wait_for("round", 60, round=4)
    waited = {client: join.said.count("waiting for") for client, join in joins.items()}
    serve.kill_all()
    for client, join in joins.items():
        eventually(lambda: join.said.count("waiting for") == waited[client] + 1, 60, join.said)  # noqa: B023
    serve = federation.serve("--resume")
    assert serve.wait(240) == 0, federation.tail()
    for join in joins.values():
        assert join.wait(90) == 0, join.said
        join.assert_nothing_left()
    serve.assert_nothing_left()

    said = "".join(running.said for running in federation.started)
    assert "Traceback" not in said
    assert {event["client"] for event in federation.events("silent", round=3)} == {1}
    assert [event["done"] for event in federation.events("started")] == [0, 3]
    assert f"resuming after round 3 of {ROUNDS}" in serve.said
    assert_equal_to_the_simulation(federation)
    for way in ("up", "down"):
        by_client = federation.result()["socket_bytes_per_round"]["clients"]
        assert all(1_000 < by_client[str(client)][way] < 1_000_000 for client in CLIENTS)
