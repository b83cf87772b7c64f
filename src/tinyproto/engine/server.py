"""The server side of a round: what to send, and what to make of the answers."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from tinyproto.algorithms.base import Algorithm, ClientInfo, Round, Update
from tinyproto.core.messages import Message
from tinyproto.core.streams import Streams
from tinyproto.core.task import State, Trainer
from tinyproto.engine.stopwatch import Stopwatch
from tinyproto.wire.codec import encode
from tinyproto.wire.frame import Header, Kind
from tinyproto.wire.meter import Meter, Purpose
from tinyproto.wire.validate import Expectation, open_frame


class Reply(NamedTuple):
    """A client's answer."""

    client: int
    frame: bytes


class Channel(Protocol):
    """The way to the clients: loopback in a simulation, a network in a federation."""

    def exchange(self, round_number: int, frames: Mapping[int, bytes]) -> Iterable[Reply]:
        """Deliver one frame to each client named, and return what comes back, in any order."""
        ...


class ServerRuntime:
    """Runs the server side of an algorithm; holds its state and what it knows of the clients."""

    def __init__(
        self, algorithm: Algorithm, trainer: Trainer, streams: Streams, expectation: Expectation, stopwatch: Stopwatch
    ) -> None:
        self.side = algorithm.server
        self.trainer = trainer
        self.streams = streams
        self.expectation = expectation
        self.stopwatch = stopwatch
        self.state: State = self.side.init(streams)
        self.infos: dict[int, ClientInfo] = {}

    def greet(self, channel: Channel, clients: Sequence[int], meter: Meter) -> None:
        """The one-off hello, from which the server learns the clients' sizes."""
        asked = dict.fromkeys(clients, Kind.HELLO)
        replies = self._ask(channel, 0, asked, evaluated=(), purposes=dict.fromkeys(clients, "hello"), meter=meter)
        for client, message in replies.items():
            self.infos[client] = ClientInfo(id=client, **{name: int(value) for name, value in message.metrics.items()})

    def ask(
        self, channel: Channel, round_: Round, participants: Sequence[int], evaluated: Collection[int], closing: bool,
        meter: Meter,
    ) -> dict[int, Message]:  # fmt: skip
        """Send this round's state to participants and to those who only evaluate it; their answers by client id."""
        asked = dict.fromkeys(evaluated, Kind.EVALUATE) | dict.fromkeys(participants, Kind.TRAIN)
        only: Purpose = "closing" if closing else "evaluation"
        purposes: dict[int, Purpose] = dict.fromkeys(evaluated, only) | dict.fromkeys(participants, "training")
        return self._ask(channel, round_.number, asked, evaluated, purposes, meter)

    def aggregate(self, round_: Round, replies: Mapping[int, Message]) -> None:
        """Take the answers in; only now does the state change."""
        updates = [Update(self.infos[client], message) for client, message in sorted(replies.items())]
        with self.stopwatch.phase("server"):
            self.state = self.side.aggregate(self.state, updates, self.trainer, round_, self.streams)

    def _ask(
        self, channel: Channel, round_number: int, asked: Mapping[int, Kind], evaluated: Collection[int],
        purposes: Mapping[int, Purpose], meter: Meter,
    ) -> dict[int, Message]:  # fmt: skip
        frames = {}
        for client, kind in sorted(asked.items()):
            message = Message() if kind is Kind.HELLO else self.side.broadcast(self.state, self.infos[client])
            header = Header(kind, round_number, client, self.expectation.digest, evaluate=client in evaluated)
            frames[client] = encode(header, message)
            meter.count(purposes[client], "down", client, message, frames[client])
        replies = {}
        for client, frame in channel.exchange(round_number, frames):
            decoded = open_frame(frame, self.expectation, client, round_number, kinds=(asked[client].answer,))
            meter.count(purposes[client], "up", client, decoded.message, frame)
            replies[client] = decoded.message
        return replies
