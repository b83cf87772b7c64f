"""A broker in this process, and a federation over it: the real transport and listeners, without sockets."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support_members import TOKEN, small_values, write_arrays, write_join
from tinyproto.config import Config, parse_config
from tinyproto.federation.channel import Pace
from tinyproto.federation.coordinator import Coordinator
from tinyproto.federation.member import respond
from tinyproto.federation.mqtt.listener import Listener
from tinyproto.federation.mqtt.messages import Happened, HasFileno, Seal, Topics
from tinyproto.federation.mqtt.transport import MqttTransport


@dataclass
class FakeBroker:
    """Delivers each message to those who read its topic; sessions last, and `published` is all that was sent."""

    links: list[FakeLink] = field(default_factory=list)
    published: list[tuple[str, bytes, float | None]] = field(default_factory=list)
    copies: int = 1  # of each message that is delivered
    change: Callable[[str, bytes], bytes | None] = lambda topic, payload: payload  # what a dishonest broker does

    def deliver(self, topic: str, payload: bytes, expiry: float | None) -> None:
        self.published.append((topic, payload, expiry))
        changed = self.change(topic, payload)
        for link in self.links:
            if topic in link.topics and changed is not None:
                link.waiting += self.copies * [Happened(topic, changed)]

    def link(self, topics: Sequence[str]) -> FakeLink:
        made = FakeLink(self, list(topics))
        self.links.append(made)
        return made


@dataclass
class FakeLink:
    """One end of it; open from the start."""

    broker: FakeBroker
    topics: list[str]
    waiting: list[Happened] = field(default_factory=lambda: [Happened(resumed=False)])
    is_open: bool = True
    counted: dict[str, int] | None = None

    def publish(self, topic: str, payload: bytes, expiry: float | None = None) -> None:
        self.broker.deliver(topic, payload, expiry)

    def step(self, seconds: float, others: Sequence[HasFileno] = ()) -> list[Happened]:
        if not self.is_open:
            return []
        happened, self.waiting = self.waiting, []
        return happened

    def counts(self) -> dict[str, int] | None:
        return self.counted


@dataclass
class DirectWorker:
    """The member in this process instead of one of its own."""

    folder: Path
    client: int
    asked: list[Mapping[str, Any]] = field(default_factory=list)
    is_closed: bool = False
    _answer: dict[str, Any] | None = None

    def ask(self, values: Mapping[str, Any]) -> None:
        self.asked.append(values)
        self._answer = dict(respond(self.folder, self.client, values))

    def answer(self) -> dict[str, Any] | None:
        found, self._answer = self._answer, None
        return found

    def waits_for(self) -> Sequence[HasFileno]:
        return ()

    def close(self) -> None:
        self.is_closed = True


@dataclass
class MqttFederation:
    """A coordinator and its listeners at one broker; listeners act while the coordinator waits."""

    config: Config
    run_folder: Path
    folders: dict[int, Path]
    broker: FakeBroker = field(default_factory=FakeBroker)
    topics: Topics = field(default_factory=Topics)
    secrets: Mapping[int, bytes] = field(default_factory=dict)
    listeners: dict[int, Listener] = field(default_factory=dict)
    workers: dict[int, list[DirectWorker]] = field(default_factory=dict)
    now: float = 0.0
    token: str = TOKEN
    before_step: Callable[[], None] = lambda: None

    def listener(self, client: int) -> Listener:
        """A device, from its start on; its folder may remember an earlier life."""
        folder = self.folders[client]

        def start() -> DirectWorker:
            self.workers.setdefault(client, []).append(DirectWorker(folder, client))
            return self.workers[client][-1]

        seal = Seal(self.secrets[client], client) if self.secrets else None
        shared = [] if self.secrets else [self.topics.everyone]
        link = self.broker.link([self.topics.down(client), *shared])
        made = Listener(
            client, folder, link, start, self.topics, f"connection-{client}-{len(self.broker.links)}", seal,
            clock=lambda: self.now,
        )  # fmt: skip
        self.listeners[client] = made
        return made

    def coordinator(self, *, resume: bool = False) -> Coordinator:
        serve = {"config": self.config.resolved(), "federation": self.token, "resume": resume}
        self.run_folder.mkdir(exist_ok=True)
        (self.run_folder / "serve.json").write_text(json.dumps(serve))
        link = self.broker.link([self.topics.up(client) for client in self.folders])
        seals = {client: Seal(secret, client) for client, secret in self.secrets.items()}
        self.transport = MqttTransport(
            link, self.token, b"", dict.fromkeys(self.folders, b""), self.topics, seals, self._tell, lambda: self.now
        )
        made = Coordinator(self.run_folder, self.transport, Pace(lambda: self.now, self._wait, poll=1.0, look=0.0))
        self.transport.digest = made.setup.expectation.digest
        return made

    def play(self, **more: Any) -> Coordinator:
        for client in self.folders:
            if client not in self.listeners:
                self.listener(client)
        coordinator = self.coordinator(**more)
        coordinator.run()
        self.transport.finish()
        self.settle()
        return coordinator

    def settle(self) -> None:
        """Let every listener handle all that waits for it."""
        for _ in range(20):
            for listener in self.listeners.values():
                listener.step(0.0)

    def _wait(self, seconds: float) -> None:
        self.now += seconds
        self.before_step()
        for listener in list(self.listeners.values()):
            listener.step(0.0)
            listener.step(0.0)
        self.transport.wait(0.0)

    def _tell(self, event: str, **facts: Any) -> None:
        self.told = [*getattr(self, "told", []), (event, facts)]

    def records(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.run_folder / "rounds.jsonl").read_text().splitlines()]

    def events(self, event: str) -> list[dict[str, Any]]:
        lines = (self.run_folder / "progress.jsonl").read_text().splitlines()
        return [told for told in map(json.loads, lines) if told["event"] == event]


def mqtt_federation(folder: Path, values: Mapping[str, Any], **more: Any) -> MqttFederation:
    """Clients with the data and the networks that a simulation of this config would give them."""
    config = parse_config(values)
    model = config.model
    share = {"share": {"data": model.data.model_dump(), "partition": model.partition.model_dump()}}
    assert model.partition.num_clients is not None
    folders = {
        client: write_join(folder / f"client-{client}", model.models[client % len(model.models)], share)
        for client in range(model.partition.num_clients)
    }
    return MqttFederation(config, folder / "run", folders, **more)


def small_mqtt_federation(folder: Path, clients: int = 2, quorum: float = 0.5, **more: Any) -> MqttFederation:
    """Clients with a few samples of their own, for two rounds."""
    config = parse_config(small_values(clients=clients, quorum=quorum))
    folders = {}
    for client in range(clients):
        place = folder / f"client-{client}"
        folders[client] = write_join(place, "small_cnn_a", {"path": str(write_arrays(place / "data.npz", client))})
    return MqttFederation(config, folder / "run", folders, **more)
