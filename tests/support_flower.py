"""A Flower Grid in this process, with the real ClientApp behind it, and federations that run on it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from tinyproto.config import Config, parse_config
from tinyproto.flower.client_app import app
from tinyproto.flower.coordinator import Coordinator, Pace
from tinyproto.flower.record import RECORD

TOKEN = "0123456789abcdef" * 2
NODE = 1000  # client i is at node NODE + i


TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1  # as in a ServerApp's process


class Killed(BaseException):
    """The coordinator's process ends here."""


@dataclass
class FakeClock:
    """A clock that only sleeping moves."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


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

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        identities = []
        for message in messages:
            self.before_push(message)
            message.metadata.__dict__["_message_id"] = message.object_id
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
        return Coordinator(self.run_folder, self.grid, Pace(clock, clock.sleep, poll=1.0))

    def play(self, **more: Any) -> Coordinator:
        coordinator = self.coordinator(**more)
        coordinator.run()
        return coordinator

    def events(self, event: str) -> list[dict[str, Any]]:
        lines = (self.run_folder / "progress.jsonl").read_text().splitlines()
        return [told for told in map(json.loads, lines) if told["event"] == event]

    def records(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.run_folder / "rounds.jsonl").read_text().splitlines()]


def write_join(folder: Path, model: str, data: Mapping[str, Any]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "join.json").write_text(json.dumps({"data": data, "model": model, "device": "cpu"}))
    return folder


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
