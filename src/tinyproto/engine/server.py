"""The server side of a round: what to send, and what to make of the answers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from tinyproto.algorithms.base import Algorithm, ClientInfo, Derived, Round, Update
from tinyproto.algorithms.defence import Defence, DefendedServer, defended, sizes_capped
from tinyproto.algorithms.streaming import Gathered, StreamingSide
from tinyproto.core.messages import Message
from tinyproto.core.streams import Streams
from tinyproto.core.task import State, Trainer
from tinyproto.engine.intake import MOST_SAMPLES, InTurn, check_held, inspect_answer, is_count
from tinyproto.engine.state_check import is_suspect, length, not_finite, settle, unsendable
from tinyproto.engine.stopwatch import Stopwatch
from tinyproto.errors import WireError
from tinyproto.wire.codec import encode, payload_bytes
from tinyproto.wire.frame import Header, Kind
from tinyproto.wire.meter import Cost, Meter, Purpose
from tinyproto.wire.validate import LONGEST_DOWNLOAD, Expectation, lower

_TRAINING: Purpose = "training"
NO_DEFENCE = Defence()


class Reply(NamedTuple):
    """A client's answer; or, from a channel that knows that there is no good upload, why not.

    A refused answer may still have a frame: of what else the client says, such as its scores.
    """

    client: int
    frame: bytes
    refused: WireError | None = None


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
    """What came back: good messages by client id, and for the others why they were refused.

    Where the algorithm gathers uploads as they arrive, the rows are in `gathered` and no longer in the messages.
    """

    messages: dict[int, Message]
    refused: dict[int, WireError]
    gathered: Gathered | None = None
    trained: Sequence[int] = ()  # the clients whose uploads are among them, in order
    classes: Mapping[int, Tensor] = {}  # (K,) by client: which classes its upload has rows of, where that matters
    aside: Mapping[int, Message] = {}  # uploads that are not in `gathered`, since they may have to be dropped

    def after(self, evaluation: Answers) -> Answers:
        """With the metrics of an evaluation that came before; who was refused there is not heard here."""
        metrics = {client: message.metrics for client, message in evaluation.messages.items()}
        messages = evaluation.messages | {
            client: message.with_metrics(metrics.get(client, {})) for client, message in self.messages.items()
        }
        return self._replace(messages=dict(sorted(messages.items())), refused=evaluation.refused | self.refused)


class ServerRuntime:
    """Runs the server side of an algorithm; holds its state and what it knows of the clients."""

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
        self.evaluates_apart = self.sends_held and algorithm.classifies_by_rows
        self.state: State = self.side.init(streams)
        self.infos: dict[int, ClientInfo] = {}
        self._believed: tuple[int, Mapping[int, ClientInfo]] = (0, {})  # for so many clients
        self.held: dict[int, Tensor] = {}  # (K,) by client: the classes of its last upload, where that matters

    def greet(
        self, channel: Channel, clients: Sequence[int], meter: Meter, *, tolerant: bool = False
    ) -> Mapping[int, WireError]:
        """The one-off hello, from which the server learns the clients' sizes; who was refused, and why.

        The first refusal raises, unless it is tolerated: then that client is left out.
        """
        asked = dict.fromkeys(clients, Kind.HELLO)
        answers = self._ask(channel, 0, asked, evaluated=(), purposes=dict.fromkeys(clients, "hello"), meter=meter)
        refused = dict(answers.refused)
        for client, message in answers.messages.items():
            try:
                self.infos[client] = read_hello(client, message, self.expectation.num_classes)
            except WireError as error:
                refused[client] = error
        if not tolerant:
            for reason in refused.values():
                raise reason
        return refused

    def ask(
        self, channel: Channel, round_: Round, participants: Sequence[int], evaluated: Collection[int], closing: bool,
        meter: Meter, dropped: Collection[int] = (), late: Collection[int] = (),
    ) -> Answers:  # fmt: skip
        """Send this round's state to participants and to those who only evaluate it; their answers by client id.

        Participants evaluate and train on one frame. Where they train on some of the rows but are evaluated by all,
        these come first, in a frame of their own. Dropped participants are sent a frame to train on that they never
        answer; their evaluation is a measurement of ours and costs nothing. Late uploads cost, but do not count.
        """
        only: Purpose = "closing" if closing else "evaluation"
        training = [client for client in participants if client not in dropped]
        evaluate, for_it = dict.fromkeys(evaluated, Kind.EVALUATE), dict.fromkeys(evaluated, only)
        train, for_that = dict.fromkeys(training, Kind.TRAIN), dict.fromkeys(training, _TRAINING)
        number = round_.number
        for client in sorted(dropped):
            meter.count(_TRAINING, "down", client, self._frame(Kind.TRAIN, client, number, client in evaluated)[1])
        if not self.evaluates_apart or not evaluated:
            purposes = {client: purpose for client, purpose in for_it.items() if client not in dropped}
            return self._ask(channel, number, evaluate | train, evaluated, purposes | for_that, meter, late)
        evaluation = self._ask(channel, number, evaluate, evaluated, for_it, meter)
        left = {client: kind for client, kind in train.items() if client not in evaluation.refused}
        return self._ask(channel, number, left, (), for_that, meter, late).after(evaluation) if left else evaluation

    def aggregate(self, round_: Round, answers: Answers) -> dict[int, WireError]:
        """Take in the uploads, or what was gathered of them; only now does the state change.

        Return the clients whose uploads were dropped, and why: with them the state could not be sent.
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
        """The next state, as if these clients had not answered."""
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

    def _suspects(self, answers: Answers) -> list[int]:
        """Clients whose uploads can be dropped, the longest first."""
        uploads = answers.aside
        if answers.gathered is None:
            uploads = {client: answers.messages[client] for client in answers.trained}
        return sorted(uploads, key=lambda client: (-length(uploads[client]), client))

    def _problem_of(self, state: State) -> str | None:
        """Why clients may refuse what they would be sent; the methods here send the same to all."""
        anyone = next(iter(self.infos.values()))
        message = self.side.broadcast(state, anyone)
        return not_finite(state) or unsendable(message, self.expectation.down, LONGEST_DOWNLOAD)

    @property
    def believed(self) -> Mapping[int, ClientInfo]:
        """What clients said of themselves, as far as it is believed."""
        if self._believed[0] != len(self.infos):
            self._believed = len(self.infos), sizes_capped(self.infos, self.defence.size_ratio)
        return self._believed[1]

    @property
    def distrusted(self) -> Mapping[int, int]:
        """Rows, or networks, of the last aggregation that the defence set aside, by client."""
        return self.side.distrusted if isinstance(self.side, DefendedServer) else {}

    def derived(self, participants: Iterable[int]) -> Derived:
        """What the algorithm chose by itself in a round with these participants."""
        return self.algorithm.derived([self.believed[client] for client in participants])

    def _ask(
        self, channel: Channel, round_number: int, asked: Mapping[int, Kind], evaluated: Collection[int],
        purposes: Mapping[int, Purpose], meter: Meter, late: Collection[int] = (),
    ) -> Answers:  # fmt: skip
        """Exchange one frame with each client asked; one without a purpose is not metered."""

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
        frames = _Frames(clients, frame_for)
        messages: dict[int, Message] = {}
        refused: dict[int, WireError] = {}
        classes: dict[int, Tensor] = {}
        aside: dict[int, Message] = {}
        in_time = {client for client, kind in asked.items() if kind is Kind.TRAIN and client not in late}
        turns = self._turns(in_time)
        for client, frame, no_answer in channel.exchange(round_number, frames):
            if client not in asked or client in messages or client in refused:
                continue  # nobody asked, or this is the second answer
            turn = turns if client in in_time else None
            try:
                if no_answer is not None and not frame:
                    raise no_answer
                sections = inspect_answer(frame, self.expectation, client, round_number, kinds=(asked[client].answer,))
                if sections.rows is not None and asked[client] is Kind.TRAIN:
                    check_held(self.infos[client], sections.rows, round_number)
            except WireError as error:
                refused[client] = error
                if turn is not None:
                    turn.arrived(client, None)
                continue
            if client in purposes:
                cost = Cost(sections.parameters, sections.payload_bytes, len(frame))
                meter.count(purposes[client], "up", client, cost)
            if no_answer is not None:  # what it says beside its upload, such as its scores, counts all the same
                refused[client] = no_answer
                messages[client] = Message(metrics=sections.metrics)
                if turn is not None:
                    turn.arrived(client, None)
                continue
            if self.sends_held and client in in_time and sections.rows is not None:
                classes[client] = sections.rows.present()
            if turn is None:
                messages[client] = sections.message()
                continue
            messages[client] = Message(metrics=sections.metrics)
            with self.stopwatch.phase("server"):
                rows = sections.rows
                if rows is not None and is_suspect(rows):
                    aside[client], rows = sections.message(), None
                turn.arrived(client, rows)
        return Answers(
            messages=dict(sorted(messages.items())),
            refused=refused,
            gathered=None if turns is None else turns.close(),
            trained=sorted(in_time & messages.keys() - refused.keys()),
            classes=classes,
            aside=dict(sorted(aside.items())),
        )

    def _frame(self, kind: Kind, client: int, round_number: int, evaluate: bool) -> tuple[bytes, Cost]:
        """Return the frame that a client is sent, and what it costs."""
        message = Message() if kind is Kind.HELLO else self._broadcast(kind, client)
        header = Header(kind, round_number, client, self.expectation.digest, evaluate=evaluate)
        coding = self.expectation.coding(kind, partial(self._draws, client, round_number))
        frame = encode(header, message, coding)
        return frame, Cost(message.parameters, payload_bytes(message, coding.values), len(frame))

    def _broadcast(self, kind: Kind, client: int) -> Message:
        """What a client is sent; of rows that it trains on perhaps those of its own classes alone."""
        message = self.side.broadcast(self.state, self.infos[client])
        if kind is Kind.TRAIN and client in self.held:
            return message.of_classes(self.held[client])
        return message

    def _draws(self, client: int, round_number: int) -> torch.Generator:
        """For the rounding of a download; made anew for a frame that is made twice, so that both are equal."""
        return self.streams.generator(f"rounding/{client}", round_number=round_number)

    def _turns(self, trained: Iterable[int]) -> InTurn | None:
        """Where uploads of this exchange are gathered as they arrive."""
        clients = [self.believed[client] for client in trained]
        return InTurn(clients, self.side.gather()) if clients and isinstance(self.side, StreamingSide) else None


def read_hello(client: int, message: Message, num_classes: int) -> ClientInfo:
    """What a client says of itself, held to what can be."""
    said = dict(message.metrics)
    names = ("train_samples", "counted_samples", "counted_classes")
    if sorted(said) != sorted(names) or not all(is_count(value) for value in said.values()):
        raise WireError(
            f"hello of client {client}, refused: it has to tell {', '.join(names)} in whole numbers from 0 and "
            f"below {MOST_SAMPLES}"
        )
    train, counted, classes = (int(said[name]) for name in names)
    if not (train <= counted and classes <= min(num_classes, counted)):
        raise WireError(
            f"hello of client {client}, refused: {train} training samples, {counted} counted samples and {classes} of "
            f"{num_classes} classes do not go together"
        )
    return ClientInfo(client, train, counted, classes)
