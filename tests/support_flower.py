"""A Flower Grid in this process, with the real ClientApp behind it, and federations that run on it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from support_members import TOKEN, small_values, write_arrays, write_join
from tinyproto.config import Config, parse_config
from tinyproto.federation.channel import Pace
from tinyproto.federation.coordinator import Coordinator
from tinyproto.federation.flower import RECORD
from tinyproto.federation.flower.client_app import app
from tinyproto.federation.flower.server_app import GridTransport
from tinyproto.wire.frame import Kind, peek

NODE = 1000  # client i is at node NODE + i


TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1  # as in a ServerApp's process


class Killed(BaseException):
    """The coordinator's process ends here."""


@dataclass
class FakeClock:
    """A clock that only sleeping moves."""

    now: float = 0.0
    alarms: list[tuple[float, Callable[[], object]]] = field(default_factory=list)

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        for alarm in [alarm for alarm in self.alarms if alarm[0] <= self.now]:
            self.alarms.remove(alarm)
            alarm[1]()


Change = Callable[[Message, Message], Iterable[tuple[float, Message]]]
"""What becomes of a reply to a message: replies, and after how many seconds each can be pulled."""


def as_it_is(asked: Message, reply: Message) -> Iterable[tuple[float, Message]]:
    return [(0.0, reply)]


@dataclass
class InProcessGrid(Grid):
    """Hands every message to the ClientApp with a context of its own, as a new process would, and keeps the replies.

    Real messages and contexts of Flower; only the transport is missing. `changes` says by node what becomes of replies.
    """

    folders: dict[int, Path]  # by node
    clock: FakeClock = field(default_factory=FakeClock)
    changes: dict[int, Change] = field(default_factory=dict)
    client_ids: dict[int, int] = field(default_factory=dict)  # where it is not the node's own
    keys: dict[int, bytes] = field(default_factory=dict)
    before_push: Callable[[Message], None] = lambda message: None
    before_pull: Callable[[], None] = lambda: None
    asked: list[Message] = field(default_factory=list)
    offline: set[int] = field(default_factory=set)
    closed: set[int] = field(default_factory=set)  # nodes that Flower takes no messages for
    waiting: list[tuple[float, Message]] = field(default_factory=list)

    def set_run(self, run: Any) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Any:
        raise NotImplementedError

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        raise NotImplementedError

    def send_and_receive(self, *args: Any, **kwargs: Any) -> Iterable[Message]:
        raise NotImplementedError

    def get_node_ids(self) -> list[int]:
        return [node for node in self.folders if node not in self.offline]

    def get_nodes(self) -> list[NodeInfo]:
        return [NodeInfo(node_id=node, public_key=self.keys.get(node, b"")) for node in self.get_node_ids()]

    def push_messages(self, messages: Iterable[Message]) -> list[str | None]:
        identities: list[str | None] = []
        for message in messages:
            self.before_push(message)
            message.metadata.__dict__["_message_id"] = message.object_id
            if message.metadata.dst_node_id in self.closed:
                identities.append(None)
                continue
            self.asked.append(message)
            identities.append(message.metadata.message_id)
            node = message.metadata.dst_node_id
            reply = self._reply(node, message)
            for delay, changed in self.changes.get(node, as_it_is)(message, reply):
                self.waiting.append((self.clock.now + delay, changed))
        return identities

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        self.before_pull()
        wanted = set(message_ids)
        due: list[tuple[float, Message]] = []
        later: list[tuple[float, Message]] = []
        for when, message in self.waiting:
            ready = when <= self.clock.now and message.metadata.reply_to_message_id in wanted
            (due if ready else later).append((when, message))
        self.waiting = later
        return [message for _, message in due]

    def _reply(self, node: int, message: Message) -> Message:
        if node in self.offline:
            return Message(Error(5, "Node Unavailable"), reply_to=message)
        config: dict[str, Any] = {
            "client-id": self.client_ids.get(node, node - NODE),
            "folder": str(self.folders[node]),
        }
        return app(message, Context(1, node, config, RecordDict(), {}))


def kind_of(message: Message) -> Kind | str:
    """Return the kind of a frame, or what else the coordinator sends."""
    values = message.content[RECORD]
    return peek(frame_of(message)).kind if "frame" in values else "terms" if "terms" in values else "notice"


def frame_of(message: Message) -> bytes:
    frame = message.content[RECORD]["frame"]
    assert isinstance(frame, bytes)
    return frame


@dataclass
class Federation:
    """A run folder, clients' folders, and the Grid between them."""

    config: Config
    run_folder: Path
    grid: InProcessGrid

    def coordinator(self, *, resume: bool = False, **more: Any) -> Coordinator:
        serve = {"config": self.config.resolved(), "federation": TOKEN, "resume": resume, **more}
        self.run_folder.mkdir(exist_ok=True)
        (self.run_folder / "serve.json").write_text(json.dumps(serve))
        clock = self.grid.clock
        return Coordinator(self.run_folder, GridTransport(self.grid), Pace(clock, clock.sleep, poll=1.0))

    def play(self, **more: Any) -> Coordinator:
        coordinator = self.coordinator(**more)
        coordinator.run()
        return coordinator

    def events(self, event: str) -> list[dict[str, Any]]:
        lines = (self.run_folder / "progress.jsonl").read_text().splitlines()
        return [told for told in map(json.loads, lines) if told["event"] == event]

    def records(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.run_folder / "rounds.jsonl").read_text().splitlines()]


def small_federation(folder: Path, values: Mapping[str, Any] | None = None) -> Federation:
    """Clients with files of their own."""
    config = parse_config(small_values() if values is None else values)
    models = config.model.models
    clients = config.model.partition.num_clients
    assert clients is not None
    folders = {}
    for client in range(clients):
        own = folder / f"client-{client}"
        arrays = write_arrays(own / "data.npz", client)
        folders[NODE + client] = write_join(own, models[client % len(models)], {"path": str(arrays)})
    return Federation(config, folder / "run", InProcessGrid(folders))


def in_round(number: int, change: Change) -> Change:
    """Change replies to train messages of this round only."""

    def changed(asked: Message, reply: Message) -> Iterable[tuple[float, Message]]:
        if kind_of(asked) is not Kind.TRAIN or peek(frame_of(asked)).round_number != number:
            return [(0.0, reply)]
        return change(asked, reply)

    return changed


def silent(asked: Message, reply: Message) -> Iterable[tuple[float, Message]]:
    return []


def doubled(asked: Message, reply: Message) -> Iterable[tuple[float, Message]]:
    return [(0.0, reply), (0.0, reply), (5.0, reply)]


def after(seconds: float) -> Change:
    return lambda asked, reply: [(seconds, reply)]


def doing(action: Callable[[], object], change: Change = as_it_is) -> Change:
    """Something happens when the client is asked."""

    def changed(asked: Message, reply: Message) -> Iterable[tuple[float, Message]]:
        action()
        return change(asked, reply)

    return changed


def framed(asked: Message, values: Mapping[str, Any]) -> Message:
    return Message(RecordDict({RECORD: ConfigRecord(dict(values))}), reply_to=asked)


def make_federation(folder: Path, values: Mapping[str, Any]) -> Federation:
    """Clients with the data and the networks that a simulation of this config would give them."""
    config = parse_config(values)
    model = config.model
    share = {"share": {"data": model.data.model_dump(), "partition": model.partition.model_dump()}}
    assert model.partition.num_clients is not None
    folders = {
        NODE + client: write_join(folder / f"client-{client}", model.models[client % len(model.models)], share)
        for client in range(model.partition.num_clients)
    }
    return Federation(config, folder / "run", InProcessGrid(folders))
