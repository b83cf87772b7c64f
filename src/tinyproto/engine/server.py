"""The server side of a round: send frames, check and gather the answers, aggregate the uploads."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple, Protocol

from torch import Tensor

from tinyproto.algorithms.base import Algorithm, ClientInfo, Derived, Round, Update
from tinyproto.algorithms.defence import Defence, DefendedServer, defended, sizes_capped
from tinyproto.algorithms.streaming import Gathered, OrderedUploads, StreamingSide
from tinyproto.core.prototypes import Message
from tinyproto.core.streams import Streams
from tinyproto.core.task import State, Trainer
from tinyproto.engine.checks import (
    check_held,
    inspect_answer,
    is_suspect,
    length,
    not_finite,
    read_hello,
    settle,
    unsendable,
)
from tinyproto.engine.measure import Cost, Meter, Purpose, Stopwatch
from tinyproto.errors import WireError
from tinyproto.wire.codec import encode, encode_body, payload_bytes
from tinyproto.wire.frame import Body, Frames, Header, Kind
from tinyproto.wire.validate import LONGEST_DOWNLOAD, Expectation, lower
from tinyproto.wire.values import Coding

_TRAINING: Purpose = "training"
NO_DEFENCE = Defence()
NOBODY = -1
"""The id of no client."""


@dataclass(frozen=True)
class RoundPlan:
    """The clients of one round and what each of them does."""

    round: Round
    participants: Sequence[int]
    evaluated: frozenset[int]
    closing: bool = False
    dropped: frozenset[int] = frozenset()  # participants that receive the round and never answer
    late: frozenset[int] = frozenset()  # participants that train, but upload after the deadline


class Reply(NamedTuple):
    """A client's answer, or the reason why the channel has no valid upload of the client.

    A refused answer may still have a frame with the client's other contents, such as its scores.
    """

    client: int
    frame: bytes
    refused: WireError | None = None


class Channel(Protocol):
    """The connection to the clients: loopback in a simulation, a network in a federation."""

    def exchange(self, round_number: int, frames: Mapping[int, bytes]) -> Iterable[Reply]:
        """Deliver one frame to each client and return the answers, in any order.

        A frame is made when it is read, so a channel that serves clients in portions holds only some of the frames.
        """
        ...


class _Sent(NamedTuple):
    """The message sent last, which the next client may be sent, too."""

    message: Message
    versions: Sequence[object]  # of its tensors, which a method may change in place for the next client
    coding: Coding
    body: Body
    cost: Cost

    def is_good_for(self, message: Message, coding: Coding) -> bool:
        """Return True if a message would have the same body."""
        if coding.rounding is not None or coding != self.coding:
            return False
        return message.shares_all_with(self.message) and _versions(message) == self.versions


def _versions(message: Message) -> list[object]:
    """Return what differs after a tensor was changed in place; tensors of inference mode do not tell."""
    return [object() if tensor.is_inference() else tensor._version for tensor in message.all_tensors()]


class Answers(NamedTuple):
    """The answers: valid messages by client id, and for the other clients why they were refused.

    If the algorithm gathers uploads as they arrive, the rows are in `gathered` and not in the messages.
    """

    messages: dict[int, Message]
    refused: dict[int, WireError]
    gathered: Gathered | None = None
    trained: Sequence[int] = ()  # the clients whose uploads are valid, in order
    classes: Mapping[int, Tensor] = {}  # (K,) by client: classes of its upload, if only these are sent
    aside: Mapping[int, Message] = {}  # uploads kept out of `gathered`, since they may have to be dropped

    def after(self, evaluation: Answers) -> Answers:
        """Return the answers with the metrics and the refusals of an earlier evaluation."""
        metrics = {client: message.metrics for client, message in evaluation.messages.items()}
        messages = evaluation.messages | {
            client: message.with_metrics(metrics.get(client, {})) for client, message in self.messages.items()
        }
        return self._replace(messages=dict(sorted(messages.items())), refused=evaluation.refused | self.refused)


class ServerRuntime:
    """Runs the server side of an algorithm; holds its state and what it knows about the clients."""

    def __init__(
        self, algorithm: Algorithm, trainer: Trainer, streams: Streams, expectation: Expectation, stopwatch: Stopwatch,
        defence: Defence = NO_DEFENCE,
    ) -> None:  # fmt: skip
        self.algorithm = algorithm
        self.defence = defence
        self.side = defended(algorithm, defence)
        self.trainer = trainer
        self.streams = streams
        self.expectation = expectation
        self.stopwatch = stopwatch
        self.sends_held = expectation.wire.download == "held"
        travels = algorithm.row_width is not None
        self.evaluates_apart = self.sends_held and travels and algorithm.classifies_by_rows
        self.state: State = self.side.init(streams)
        self.infos: dict[int, ClientInfo] = {}
        self._believed: tuple[int, Mapping[int, ClientInfo]] = (0, {})  # for this many clients
        self._sent: _Sent | None = None  # in this exchange
        self.held: dict[int, Tensor] = {}  # (K,) by client: classes of its last upload, if only these are sent

    def greet(self, channel: Channel, clients: Sequence[int], meter: Meter) -> Mapping[int, WireError]:
        """Send the hello, from which the server learns the clients' sizes; return why clients were refused."""
        asked = dict.fromkeys(clients, Kind.HELLO)
        answers = self._exchange(channel, 0, asked, evaluated=(), purposes=dict.fromkeys(clients, "hello"), meter=meter)
        refused = dict(answers.refused)
        for client, message in answers.messages.items():
            try:
                self.infos[client] = read_hello(client, message, self.expectation.num_classes)
            except WireError as error:
                refused[client] = error
        return refused

    def ask(self, channel: Channel, plan: RoundPlan, meter: Meter) -> Answers:
        """Send this round's state to participants and to clients that only evaluate it; return the answers.

        Participants evaluate and train on one frame. If they train on some of the rows but are evaluated by all, a
        frame for evaluation comes first. Dropped participants are sent a frame to train on that they never answer;
        their evaluation is only a measurement and costs nothing. Late uploads cost, but do not count.
        """
        only: Purpose = "closing" if plan.closing else "evaluation"
        number, evaluated, dropped, late = plan.round.number, plan.evaluated, plan.dropped, plan.late
        training = [client for client in plan.participants if client not in dropped]
        evaluate, purposes = dict.fromkeys(evaluated, Kind.EVALUATE), dict.fromkeys(evaluated, only)
        train, trains = dict.fromkeys(training, Kind.TRAIN), dict.fromkeys(training, _TRAINING)
        for client in sorted(dropped):
            meter.count(_TRAINING, "down", client, self._frame(Kind.TRAIN, client, number, client in evaluated)[1])
        if not self.evaluates_apart or not evaluated:
            purposes = {client: purpose for client, purpose in purposes.items() if client not in dropped}
            return self._exchange(channel, number, evaluate | train, evaluated, purposes | trains, meter, late)
        evaluation = self._exchange(channel, number, evaluate, evaluated, purposes, meter)
        left = {client: kind for client, kind in train.items() if client not in evaluation.refused}
        return self._exchange(channel, number, left, (), trains, meter, late).after(evaluation) if left else evaluation

    def aggregate(self, round_: Round, answers: Answers) -> dict[int, WireError]:
        """Aggregate the uploads, or what was gathered of them, to the next state.

        Return why uploads were dropped: with them the state could not be sent.
        """
        with self.stopwatch.phase("server"):
            settled = settle(partial(self._aggregate, round_, answers), self._problem_of, self._suspects(answers))
        if settled.state is not None:
            self.state = settled.state
        dropped = settled.dropped if settled.state is not None else answers.trained
        self.held |= {client: classes for client, classes in answers.classes.items() if client not in dropped}
        return {
            client: WireError(
                f"upload of client {client} in round {round_.number}, dropped: with it, clients would refuse the "
                f"server's next broadcast ({settled.problem}); {lower(self.expectation.remedies)}"
            )
            for client in dropped
        }

    def _aggregate(self, round_: Round, answers: Answers, without: Collection[int]) -> State:
        """Return the next state as if the clients `without` had not answered."""
        gathered, side = answers.gathered, self.side
        if gathered is not None and isinstance(side, StreamingSide):
            kept = {client: message for client, message in answers.aside.items() if client not in without}
            if kept:
                alone, gathered = gathered, side.gather()
                gathered.merge(alone)
            for client, message in kept.items():
                assert message.rows is not None
                gathered.add(self.believed[client], message.rows)
            return side.conclude(self.state, gathered)
        heard = [client for client in answers.trained if client not in without]
        updates = [Update(self.believed[client], answers.messages[client]) for client in heard]
        return side.aggregate(self.state, updates, self.trainer, round_, self.streams)

    def _suspects(self, answers: Answers) -> Iterator[int]:
        """Yield the clients whose uploads can be dropped, the longest first."""
        uploads = answers.aside
        if answers.gathered is None:
            uploads = {client: answers.messages[client] for client in answers.trained}
        yield from sorted(uploads, key=lambda client: (-length(uploads[client]), client))

    def _problem_of(self, state: State) -> str | None:
        """Return why clients may refuse the next broadcast, or None; a client that never sent is sent most."""
        anyone = replace(next(iter(self.infos.values())), id=NOBODY)
        message = self.side.broadcast(state, anyone)
        return not_finite(state) or unsendable(message, self.expectation.down, LONGEST_DOWNLOAD)

    @property
    def believed(self) -> Mapping[int, ClientInfo]:
        """Return what clients reported about themselves, as far as the defence believes it."""
        if self._believed[0] != len(self.infos):
            self._believed = len(self.infos), sizes_capped(self.infos, self.defence.size_ratio)
        return self._believed[1]

    @property
    def distrusted(self) -> Mapping[int, int]:
        """Return how many rows, or networks, the defence left out of the last aggregation, by client."""
        return self.side.distrusted if isinstance(self.side, DefendedServer) else {}

    def derived(self, participants: Iterable[int]) -> Derived:
        """Return the hyper-parameters that the algorithm derives in a round with these participants."""
        return self.algorithm.derived([self.believed[client] for client in participants])

    def _exchange(
        self, channel: Channel, round_number: int, asked: Mapping[int, Kind], evaluated: Collection[int],
        purposes: Mapping[int, Purpose], meter: Meter, late: Collection[int] = (),
    ) -> Answers:  # fmt: skip
        """Exchange one frame with each client asked; a client without a purpose is not metered."""

        def frame_for(client: int) -> bytes:
            frame, cost = self._frame(asked[client], client, round_number, client in evaluated)
            if client in purposes and client not in counted:
                counted.add(client)
                meter.count(purposes[client], "down", client, cost)
            return frame

        clients = sorted(asked)
        counted: set[int] = set()
        for client in clients:
            if client in purposes:
                meter.announce(purposes[client], "down", client)
        frames = Frames(clients, frame_for)
        messages: dict[int, Message] = {}
        refused: dict[int, WireError] = {}
        classes: dict[int, Tensor] = {}
        self._sent = None
        aside: dict[int, Message] = {}
        in_time = {client for client, kind in asked.items() if kind is Kind.TRAIN and client not in late}
        ordered = self._ordered(in_time)
        for client, frame, no_answer in channel.exchange(round_number, frames):
            if client not in asked or client in messages or client in refused:
                continue  # the client was not asked, or this is its second answer
            uploads = ordered if client in in_time else None
            try:
                if no_answer is not None and not frame:
                    raise no_answer
                sections = inspect_answer(frame, self.expectation, client, round_number, kinds=(asked[client].answer,))
                if sections.rows is not None and asked[client] is Kind.TRAIN:
                    check_held(self.infos[client], sections.rows, round_number)
                if client in purposes:
                    cost = Cost(sections.parameters, sections.payload_bytes, len(frame))
                    meter.count(purposes[client], "up", client, cost)
                if no_answer is not None:  # the other contents of the answer, such as scores, still count
                    messages[client] = Message(metrics=sections.metrics)
                    raise no_answer
            except WireError as error:
                refused[client] = error
                if uploads is not None:
                    uploads.add(client, None)
                continue
            if self.sends_held and client in in_time and sections.rows is not None:
                classes[client] = sections.rows.present()
            if uploads is None:
                messages[client] = sections.message()
                continue
            messages[client] = Message(metrics=sections.metrics)
            with self.stopwatch.phase("server"):
                rows = sections.rows
                if rows is not None and is_suspect(rows):
                    aside[client], rows = sections.message(), None
                uploads.add(client, rows)
        self._sent = None
        return Answers(
            messages=dict(sorted(messages.items())),
            refused=refused,
            gathered=None if ordered is None else ordered.close(),
            trained=sorted(in_time & messages.keys() - refused.keys()),
            classes=classes,
            aside=dict(sorted(aside.items())),
        )

    def _frame(self, kind: Kind, client: int, round_number: int, evaluate: bool) -> tuple[bytes, Cost]:
        """Return the frame for a client and its cost."""
        message = Message() if kind is Kind.HELLO else self._broadcast(kind, client)
        header = Header(kind, round_number, client, self.expectation.digest, evaluate=evaluate)
        # A new generator for the rounding of each download, so that a frame that is made twice is equal.
        draws = partial(self.streams.generator, f"rounding/{client}", round_number=round_number)
        coding, sent = self.expectation.coding(kind, draws), self._sent
        if sent is None or not sent.is_good_for(message, coding):
            cost = Cost(message.parameters, payload_bytes(message, coding.values))
            self._sent = sent = _Sent(message, _versions(message), coding, encode_body(message, coding), cost)
        frame = encode(header, sent.body)
        return frame, sent.cost._replace(wire=len(frame))

    def _broadcast(self, kind: Kind, client: int) -> Message:
        """Return the message for a client; rows to train on may be limited to the classes of its last upload."""
        message = self.side.broadcast(self.state, self.infos[client])
        if kind is Kind.TRAIN and client in self.held:
            return message.of_classes(self.held[client])
        return message

    def _ordered(self, trained: Iterable[int]) -> OrderedUploads | None:
        """Return an accumulator of this exchange's uploads, or None if the method needs all of them at once."""
        clients = [self.believed[client] for client in trained]
        return OrderedUploads(clients, self.side.gather()) if clients and isinstance(self.side, StreamingSide) else None
