"""A federation of real processes over a real Mosquitto: hold a round open, and mistreat what takes part in it."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import support_mosquitto  # noqa: F401  # isort: skip

from paho.mqtt import client as paho

from support_federation import Federation, Running, eventually
from tinyproto.federation.key_making import make_keys
from tinyproto.federation.keys import ServerKeys
from tinyproto.federation.mqtt.broker import OwnBroker
from tinyproto.federation.processes import free_port

TRAINING, BROKER, COORDINATOR = "member_process", "mosquitto -c", "mqtt.coordinate"
LARGEST_FRAME = 4096


class RealMqtt(Federation):
    """A federation whose `serve` and `join` use MQTT."""

    def __init__(
        self, folder: Path, *, rounds: int, quorum: float = 1.0, deadline: float = 30, algorithm: str = "tinyproto_ft"
    ) -> None:
        super().__init__(folder, rounds=rounds, quorum=quorum, deadline=deadline)
        if algorithm != "tinyproto_ft":
            chosen = f"algorithms: [{{name: {algorithm}}}]"
            self.config.write_text(re.sub("(?m)^algorithms:.*$", chosen, self.config.read_text()))

    def make_keys(self, clients: int) -> None:
        make_keys(self.folder / "keys", clients, [])

    def serve(self, *arguments: str) -> Running:
        return super().serve("--transport", "mqtt", *arguments)

    def join(self, client: int, *arguments: str, **more: Any) -> Running:
        return super().join(client, "--transport", "mqtt", *arguments, **more)

    def start(self, *arguments: str) -> tuple[Running, list[Running]]:
        """Start the coordinator and all clients."""
        return self.serve(), [self.join(client, *arguments) for client in range(3)]

    @contextmanager
    def held_round(self, client: int, joined: Running, after: int = 1) -> Iterator[int]:
        """Stop the training process of a client, and yield the round that waits for it alone; then continue it."""
        self.wait_for("concluded", 150, round=after)
        coordinator = one(self.started[0], COORDINATOR)
        os.kill(coordinator, signal.SIGSTOP)  # on a busy machine all rounds might be over before the process is found
        try:
            (training,) = eventually(lambda: joined.find(TRAINING), 10, "the client trains")
            os.kill(training, signal.SIGSTOP)
        finally:
            os.kill(coordinator, signal.SIGCONT)
        try:
            yield int(eventually(lambda: self._waits_for_it_alone(client), 20, self.tail()))
        finally:
            if training in joined.all():
                os.kill(training, signal.SIGCONT)

    def _waits_for_it_alone(self, client: int) -> int | None:
        under_way = self.events("round")[-1]["round"]
        answered = {event["client"] for event in self.events("answered", round=under_way)}
        return under_way if answered == {0, 1, 2} - {client} else None

    def assert_completes(self, serve: Running, joins: list[Running], seconds: float = 240) -> None:
        """Wait for the end of all; each ends well, and nothing is left running."""
        assert serve.wait(seconds) == 0, self.tail()
        for join in joins:
            assert join.wait(90) == 0, join.said
        for running in self.started:
            running.assert_nothing_left()
            assert "Traceback" not in running.said


Start = Callable[..., RealMqtt]
"""Prepares a federation."""


def one(running: Running, program: str) -> int:
    """Return the process of a program, not the leash that it is on."""
    (found,) = eventually(lambda: {*running.find(program)} - {*running.find("leash.py")}, 20, running.said)
    return int(found)


def resident_bytes(process: int) -> int:
    (line,) = re.findall(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{process}/status").read_text())
    return int(line) * 1024


@contextmanager
def own_broker(folder: Path, keys: ServerKeys) -> Iterator[OwnBroker]:
    """A broker without a federation."""
    made = OwnBroker(folder / "mqtt", keys, ("127.0.0.1", free_port()), LARGEST_FRAME)
    try:
        yield made
    finally:
        made.stop()


@dataclass
class Stranger:
    """A plain MQTT client with whatever it was given, which remembers how the broker answers."""

    port: int
    authority: Path
    certificate: Path | None = None
    key: Path | None = None
    identity: str = "stranger"
    answers: dict[str, Any] = field(default_factory=dict)
    heard: list[tuple[str, bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._answered = threading.Condition()
        self.client = paho.Client(
            paho.CallbackAPIVersion.VERSION2, client_id=self.identity, protocol=paho.MQTTv5, reconnect_on_failure=False
        )
        files = [None if file is None else str(file) for file in (self.certificate, self.key)]
        self.client.tls_set(str(self.authority), *files)
        self.client.on_connect = lambda _, __, ___, reason, ____: self._note("connect", str(reason))
        self.client.on_disconnect = lambda _, __, ___, reason, ____: self._note("disconnect", str(reason))
        self.client.on_subscribe = lambda _, __, ___, reasons, ____: self._note("subscribe", [*map(str, reasons)])
        self.client.on_publish = lambda _, __, ___, reason, ____: self._note("publish", str(reason))
        self.client.on_message = lambda _, __, message: self.heard.append((message.topic, message.payload))

    @classmethod
    def with_keys(cls, port: int, folder: Path, **more: Any) -> Stranger:
        """Return one with the files of a client."""
        return cls(port, folder / "ca.crt", folder / "client.crt", folder / "tls.key", **more)

    def __enter__(self) -> Stranger:
        self.client.connect("127.0.0.1", self.port)
        self.client.loop_start()
        return self

    def __exit__(self, *_: object) -> None:
        self.client.disconnect()
        self.client.loop_stop()

    def answer(self, which: str) -> Any:
        """Wait for one of the broker's answers and return it."""
        with self._answered:
            assert self._answered.wait_for(lambda: which in self.answers, 15), f"no {which}; {self.answers}"
            return self.answers.pop(which)

    def publish(self, topic: str, payload: bytes) -> str:
        """Publish a message and return what the broker says of it."""
        self.client.publish(topic, payload, qos=1)
        return str(self.answer("publish"))

    def subscribe(self, *topics: str) -> list[str]:
        """Subscribe to topics and return what the broker says of each."""
        self.client.subscribe([(topic, paho.SubscribeOptions(qos=1)) for topic in topics])
        return list(self.answer("subscribe"))

    def wait_until_heard(self, messages: int) -> None:
        """Wait until so many messages have arrived, and a moment longer for those that should not."""
        eventually(lambda: len(self.heard) >= messages, 10, f"{messages} messages; {self.heard}")
        time.sleep(0.2)

    def _note(self, which: str, answer: object) -> None:
        with self._answered:
            self.answers.setdefault(which, answer)
            self._answered.notify_all()
