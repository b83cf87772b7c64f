"""The server side of a round: what to send, and what to make of the answers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from tinyproto.algorithms.base import Algorithm, ClientInfo, Round, Update
from tinyproto.core.messages import Message
from tinyproto.core.streams import Streams
from tinyproto.core.task import State, Trainer
from tinyproto.engine.evaluate import RULES
from tinyproto.engine.stopwatch import Stopwatch
from tinyproto.errors import WireError
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
        """Deliver one frame to each client named, and return what comes back, in any order.

        A frame is made when it is read, so a channel that hands over many clients in parts holds a part of the frames.
        """
        ...


class _Frames(Mapping[int, bytes]):
    """Frames by client, each made when it is read."""

    def __init__(self, clients: Sequence[int], make: Callable[[int], bytes]) -> None:
        self._clients = dict.fromkeys(clients)
        self._make = make

    def __len__(self) -> int:
        return len(self._clients)

    def __iter__(self) -> Iterator[int]:
        return iter(self._clients)

    def __contains__(self, client: object) -> bool:
        return client in self._clients

    def __getitem__(self, client: int) -> bytes:
        if client not in self._clients:
            raise KeyError(client)
        return self._make(client)


class Answers(NamedTuple):
    """What came back: good messages by client id, and for the others why they were refused."""

    messages: dict[int, Message]
    refused: dict[int, WireError]


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
        answers = self._ask(channel, 0, asked, evaluated=(), purposes=dict.fromkeys(clients, "hello"), meter=meter)
        for error in answers.refused.values():
            raise error
        for client, message in answers.messages.items():
            self.infos[client] = read_hello(client, message, self.expectation.num_classes)

    def ask(
        self, channel: Channel, round_: Round, participants: Sequence[int], evaluated: Collection[int], closing: bool,
        meter: Meter,
    ) -> Answers:  # fmt: skip
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
    ) -> Answers:  # fmt: skip
        def frame_for(client: int) -> bytes:
            kind = asked[client]
            message = Message() if kind is Kind.HELLO else self.side.broadcast(self.state, self.infos[client])
            header = Header(kind, round_number, client, self.expectation.digest, evaluate=client in evaluated)
            frame = encode(header, message)
            if client not in counted:
                counted.add(client)
                meter.count(purposes[client], "down", client, message, frame)
            return frame

        clients = sorted(asked)
        counted: set[int] = set()
        for client in clients:
            meter.announce(purposes[client], "down", client)
        frames = _Frames(clients, frame_for)
        answers = Answers({}, {})
        for client, frame in channel.exchange(round_number, frames):
            if client not in asked or client in answers.messages or client in answers.refused:
                continue  # nobody asked, or this is the second answer
            try:
                decoded = open_frame(frame, self.expectation, client, round_number, kinds=(asked[client].answer,))
                check_scores(client, decoded.message)
            except WireError as error:
                answers.refused[client] = error
                continue
            meter.count(purposes[client], "up", client, decoded.message, frame)
            answers.messages[client] = decoded.message
        return Answers(dict(sorted(answers.messages.items())), answers.refused)


def read_hello(client: int, message: Message, num_classes: int) -> ClientInfo:
    """What a client says of itself, held to what can be."""
    said = dict(message.metrics)
    names = ("train_samples", "counted_samples", "counted_classes")
    if sorted(said) != sorted(names) or any(value != int(value) for value in said.values()):
        raise WireError(f"hello of client {client}, refused: it has to tell {', '.join(names)} in whole numbers")
    train, counted, classes = (int(said[name]) for name in names)
    if not (0 <= train <= counted and 0 <= classes <= min(num_classes, counted)):
        raise WireError(
            f"hello of client {client}, refused: {train} training samples, {counted} counted samples and {classes} of "
            f"{num_classes} classes do not go together"
        )
    return ClientInfo(client, train, counted, classes)


def check_scores(client: int, message: Message) -> None:
    """No client can be right more often than it has test samples."""
    samples = message.metrics.get("test_samples", 0.0)
    for rule in RULES:
        correct = message.metrics.get(f"correct_{rule}", 0.0)
        if not 0 <= correct <= samples or correct != int(correct) or samples != int(samples):
            raise WireError(f"frame of client {client}, refused: {correct:g} of {samples:g} test samples correct")
