"""A broker that drops, repeats and reorders messages: rounds take longer, and their records are the same."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from support_mqtt import MqttFederation, small_mqtt_federation
from tinyproto.federation.mqtt.messages import Happened

SECRETS = {client: bytes([client]) * 32 for client in range(2)}
PATIENCE = 20_000.0


class Chaos:
    """Delivers some messages, in another order and some of them twice; drops others, and brings back earlier ones."""

    def __init__(self, federation: MqttFederation, seed: int) -> None:
        self.federation, self.draws = federation, random.Random(seed)
        self.waiting: list[tuple[str, bytes]] = []
        self.known: list[tuple[str, bytes]] = []
        self.dropped = 0
        federation.broker.change = self.keep
        federation.before_step = self.deliver

    def keep(self, topic: str, payload: bytes) -> None:
        copies = self.draws.choice((0, 1, 1, 1, 2))
        self.dropped += copies == 0
        self.known.append((topic, payload))
        self.waiting += copies * [(topic, payload)]

    def deliver(self) -> None:
        assert self.federation.now < PATIENCE
        self.draws.shuffle(self.waiting)
        number = self.draws.randint(0, len(self.waiting))
        now, self.waiting = self.waiting[:number], self.waiting[number:]
        if self.known and self.draws.random() < 0.3:
            now.append(self.draws.choice(self.known))
        for topic, payload in now:
            for link in self.federation.broker.links:
                if topic in link.topics:
                    link.waiting.append(Happened(topic, payload))


def results(federation: MqttFederation) -> list[Any]:
    return [(record["round"], record["participants"], record["accuracy"]) for record in federation.records()]


@pytest.mark.parametrize("sealed", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_dropped_repeated_and_reordered_messages_change_no_record(seed: int, sealed: bool, tmp_path: Path) -> None:
    secrets = SECRETS if sealed else {}
    honest = small_mqtt_federation(tmp_path / "honest", quorum=1.0, secrets=secrets)
    honest.play()
    mistreated = small_mqtt_federation(tmp_path / "mistreated", quorum=1.0, secrets=secrets)
    chaos = Chaos(mistreated, seed)
    mistreated.play()
    assert chaos.dropped
    assert results(mistreated) == results(honest)
    assert mistreated.now > honest.now
