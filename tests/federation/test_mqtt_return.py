"""A client that leaves in the middle of a round and comes back: its answer still counts."""

from __future__ import annotations

from pathlib import Path

import pytest

from support_members import values_for
from support_mqtt import MqttFederation, mqtt_federation
from tinyproto.wire.frame import Kind, peek

DEADLINE = 1000.0


def trial(folder: Path) -> MqttFederation:
    folder.mkdir()
    return mqtt_federation(folder, values_for("tinyproto_fp", federation={"quorum": 1.0, "deadline": DEADLINE}))


def leave_in_round_2(federation: MqttFederation, *, restarts: bool) -> None:
    """Client 1 is gone when round 2 is asked for, and back some seconds later."""
    steps: list[float] = []

    def act() -> None:
        asked = [payload for topic, payload, _ in federation.broker.published if topic == "a" and payload[:1] != b"{"]
        if not any((peek(frame).kind, peek(frame).round_number) == (Kind.TRAIN, 2) for frame in asked):
            return
        steps.append(federation.now)
        if len(steps) == 1:
            left = federation.listeners.pop(1)
            left.leave(asleep=False)
            federation.broker.links.remove(left.link)  # type: ignore[arg-type]
            if not restarts:
                federation.listeners[-1] = left  # it works on, but nobody hears it yet
        elif len(steps) == 6:
            federation.listeners.pop(-1, None)
            federation.listener(1)

    federation.before_step = act


@pytest.mark.parametrize("restarts", [True, False])
def test_its_answer_completes_the_round_before_the_deadline(restarts: bool, tmp_path: Path) -> None:
    undisturbed = trial(tmp_path / "undisturbed")
    undisturbed.play()
    disturbed = trial(tmp_path / "disturbed")
    leave_in_round_2(disturbed, restarts=restarts)
    disturbed.play()
    assert disturbed.records() == undisturbed.records()
    assert disturbed.now < DEADLINE
    (silent,) = disturbed.events("silent")
    assert (silent["client"], silent["round"], silent["reason"]) == (1, 2, "it disconnected")
