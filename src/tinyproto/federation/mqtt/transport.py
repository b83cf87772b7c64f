"""The coordinator's end of MQTT: which clients are there, messages to them, and replies as they arrive.

A node is a client id, since the broker, or the code of each message, binds a client to its topic.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from tinyproto.errors import WireError
from tinyproto.federation.channel import UNREADABLE, Incoming, Outgoing
from tinyproto.federation.mqtt.messages import (
    SESSION_SECONDS,
    Allowance,
    Happened,
    Seal,
    Topics,
    from_json,
    is_json,
    refusal_of,
    split_counts,
    to_json,
)
from tinyproto.federation.refusals import Values
from tinyproto.wire.frame import EVERYONE, HEADER_BYTES, Kind, peek, readdressed

ASKS = {kind.answer: kind for kind in (Kind.HELLO, Kind.TRAIN, Kind.EVALUATE)}
"""The kind of frame that each kind of answer is for."""

WHO_SECONDS = 60.0
"""The question who is there is forgotten after this time: who connects later says so by itself.

A client that has not answered by then has left.
"""

SHARED_SECONDS = 30.0
"""The broker forgets a frame for all clients after this time.

A client that was asked and comes back later gets a frame of its own; one that was not asked gets none.
"""

LONGEST_JSON = 4096
"""Bytes of a client's JSON."""

LONGEST_WORD = 64
"""Characters of a connection's name and of a nonce."""

MOST_RESENT = 20
"""A message is sent again this often: a client that asks for it all the time must not fill the broker's memory."""


class Link(Protocol):
    """A connection to a broker, as `connection.Connection`."""

    def publish(self, topic: str, payload: bytes, expiry: float | None = None) -> None:
        """Send a message."""
        ...

    def step(self, seconds: float) -> Sequence[Happened]:
        """Wait until something happens, but at most so long; return what happened."""
        ...


@dataclass
class Presence:
    """A client that is there, or asleep: then its messages wait at the broker."""

    connection: str
    nonce: str
    asleep_since: float | None = None

    @property
    def asleep(self) -> bool:
        """Return True for a client that sleeps."""
        return self.asleep_since is not None


@dataclass
class Unanswered:
    """A message without a reply, and until when it is kept."""

    values: Values
    until: float
    at_broker_until: float  # a client that comes back later has missed it
    refusal: bytes = b""  # its context
    resent: int = 0


@dataclass
class MqttTransport:
    """Carries messages over a broker: everything happens in `wait`, in the coordinator's own thread."""

    link: Link
    token: str
    digest: bytes
    keys: Mapping[int, bytes]  # public keys by client; other clients do not exist
    topics: Topics = field(default_factory=Topics)
    seals: Mapping[int, Seal] = field(default_factory=dict)  # by client, on a broker that is not ours
    tell: Callable[..., None] = lambda *_, **__: None
    clock: Callable[[], float] = time.monotonic
    _present: dict[int, Presence] = field(default_factory=dict)
    _open: dict[int, dict[str, Unanswered]] = field(default_factory=dict)  # by client and identity
    _unheard: set[int] = field(default_factory=set)  # clients that have not answered who is there
    _unheard_until: float = 0.0
    _allowances: dict[int, Allowance] = field(default_factory=dict)  # for lines in the journal, by client
    _warnings: Allowance = field(default_factory=Allowance)
    _arrived: list[tuple[str, Incoming]] = field(default_factory=list)
    _is_lost: bool = False

    def __post_init__(self) -> None:
        self._senders = {self.topics.up(client): client for client in self.keys}

    def nodes(self) -> dict[int, bytes]:
        """Return the clients that are there or asleep, with their public keys."""
        for client, presence in list(self._present.items()):
            if presence.asleep_since is not None and self.clock() - presence.asleep_since > SESSION_SECONDS:
                self._remove(client)  # the broker has forgotten its session
        return {client: self.keys[client] for client in sorted(self._present)}

    def send(self, messages: Sequence[Outgoing], lifetime: float) -> list[str | None]:
        """Publish messages, once where all clients get the same; None stands for a client that has left."""
        identities: list[str | None] = []
        now = self.clock()
        until = now + lifetime
        to_all = self._same_for_all(messages)
        for client, values in messages:
            if client not in self._present:
                identities.append(None)
                continue
            identity = _identity(client, values)
            identities.append(identity)
            is_notice, is_shared = "code" in values, to_all is not None and "frame" in values
            if self._is_lost and not is_notice:  # it is sent when the client says that it is there
                message = Unanswered(values, until, at_broker_until=now)
            elif is_shared:
                message = Unanswered(values, until, at_broker_until=now + SHARED_SECONDS)
            else:
                message = Unanswered(values, until, until, self._publish(client, values, lifetime))
            if not is_notice:  # it has no reply
                self._open.setdefault(client, {})[identity] = message
        if to_all is not None:
            self.link.publish(self.topics.everyone, to_all, SHARED_SECONDS)
        return identities

    def replies(self, identities: Collection[str]) -> list[tuple[str, Incoming]]:  # noqa: ARG002
        """Return all that has arrived, each with the identity of the message it answers."""
        now = self.clock()
        for waiting in self._open.values():
            for identity in [one for one, message in waiting.items() if message.until < now]:
                del waiting[identity]
        if now >= self._unheard_until and not self._is_lost:
            for client in self._unheard & self._present.keys():
                self._remove(client)
            self._unheard = set()
        arrived, self._arrived = self._arrived, []
        return arrived

    def wait(self, seconds: float) -> None:
        """Let messages arrive until there is one for the coordinator, but at most so long."""
        give_up = self.clock() + seconds
        while not self._arrived:
            for happened in self.link.step(max(give_up - self.clock(), 0.0)):
                self._hear(happened)
            if self.clock() >= give_up:
                return

    def finish(self) -> None:
        """Tell all clients that the federation is over; another broker tells it those that are away, too."""
        self._to_everyone(to_json(over=self.token), SESSION_SECONDS)

    def _same_for_all(self, messages: Sequence[Outgoing]) -> bytes | None:
        """Return one frame for every client if all get the same one and no other client would get it."""
        frames = [values["frame"] for _, values in messages if "frame" in values]
        asked = {client for client, values in messages if "frame" in values}
        if self.seals or self._is_lost or len(frames) < 2 or asked != self._present.keys():
            return None
        if any(presence.asleep for presence in self._present.values()):  # a shared message would be gone when it wakes
            return None
        first, *others = (frame for frame in frames if isinstance(frame, bytes))
        if any(_but_for_the_client(frame) != _but_for_the_client(first) for frame in others):
            return None
        return readdressed(first, self.digest, EVERYONE)

    def _payload(self, client: int, values: Values) -> bytes:
        frame = values.get("frame")
        if isinstance(frame, bytes):
            return self._closed(client, frame, self.digest)
        return self._closed(client, to_json(**values), self._present[client].nonce.encode())

    def _closed(self, client: int, content: bytes, context: bytes) -> bytes:
        seal = self.seals.get(client)
        return content if seal is None else seal.close("d", content, context)

    def _publish(self, client: int, values: Values, lifetime: float) -> bytes:
        """Send a message; return the context of its refusal."""
        payload, asleep = self._payload(client, values), self._present[client].asleep
        self.link.publish(self.topics.down(client), payload, lifetime if asleep else None)
        return refusal_of(payload)

    def _to_everyone(self, content: bytes, seconds: float) -> None:
        if not self.seals:
            self.link.publish(self.topics.everyone, content, seconds)
        for client in self.seals:
            self.link.publish(self.topics.down(client), self._closed(client, content, b""), seconds)

    def _hear(self, happened: Happened) -> None:
        if happened.lost is not None:
            if not self._is_lost:
                self._warn(f"waiting for the broker: {happened.lost}")
            self._is_lost = True
        elif happened.warned is not None:
            self._warn(happened.warned)
        elif happened.resumed is not None:
            if self._is_lost:
                self._warn("the broker is back")
            self._is_lost = False
            self._unheard_until = self.clock() + WHO_SECONDS
            self._unheard = {client for client, presence in self._present.items() if not presence.asleep}
            # Also with a session: a broker that was killed tells of nobody who left meanwhile. If it is ours, it has
            # lost the messages since it last saved them, too.
            self._to_everyone(to_json(who=0 if happened.resumed and self.seals else 1), WHO_SECONDS)
        elif (client := self._senders.get(happened.topic or "")) is not None:
            try:
                self._take(client, happened.payload)
            except WireError as error:
                if self._allowances.setdefault(client, Allowance()).take(self.clock()):
                    self.tell("refused", client=client, reason=str(error))

    def _warn(self, reason: str) -> None:
        if self._warnings.take(self.clock()):
            self.tell("warned", reason=reason)

    def _take(self, client: int, payload: bytes) -> None:
        """Take in one message of a client; raise WireError if it is none of ours."""
        content, seal = payload, self.seals.get(client)
        if seal is not None:
            refusals = (message.refusal for message in self._open.get(client, {}).values())
            content = seal.open("u", payload, self.digest, self.token.encode(), b"", *refusals)
        self._unheard.discard(client)
        if not is_json(content):
            self._take_frame(client, content)
            return
        if len(content) > LONGEST_JSON:
            raise WireError(f"message of client {client}, refused: {len(content)} bytes of JSON")
        values = from_json(content)
        if "here" in values:
            self._arrive(client, values)
        elif "gone" in values or "asleep" in values:
            self._leave(client, values)
        else:
            self._take_values(client, values)

    def _take_frame(self, client: int, content: bytes) -> None:
        frame, counts = split_counts(content)
        try:
            header = peek(frame)
        except WireError:  # whatever it answers, it cannot be read
            for identity in list(self._open.get(client, {})):
                self._answer(client, identity, UNREADABLE)
            return
        kind = ASKS.get(header.kind, header.kind)
        self._answer(client, _frame_identity(client, header.round_number, kind), Incoming({"frame": frame, **counts}))

    def _take_values(self, client: int, values: dict[str, Any]) -> None:
        """Take in a reply to the terms, or a refusal of a frame."""
        if values.get("federation", self.token) != self.token:
            return  # it answers another federation at this broker
        self._note_nonce(client, values.pop("nonce", None))
        number, kind = values.pop("round", None), values.pop("kind", None)
        kinds = {known.name.lower(): known for known in ASKS.values()}
        identity = _terms_identity(client)
        if isinstance(number, int) and isinstance(kind, str) and kind in kinds:
            identity = _frame_identity(client, number, kinds[kind])
        self._answer(client, identity, Incoming(values))

    def _answer(self, client: int, identity: str, incoming: Incoming) -> None:
        """Note a reply; of those that nobody waits for, such as repeats, only some are told."""
        is_open = self._open.get(client, {}).pop(identity, None) is not None
        if is_open or self._allowances.setdefault(client, Allowance()).take(self.clock()):
            self._arrived.append((identity, incoming))

    def _arrive(self, client: int, values: Mapping[str, Any]) -> None:
        """Note that a client is there; send it again what it may have lost of the messages without a reply."""
        self._present[client] = Presence(_word(values["here"]), _word(values.get("nonce")))
        now = self.clock()
        for message in self._open.get(client, {}).values():
            missed = values.get("fresh") or now >= message.at_broker_until
            if missed and now < message.until and message.resent < MOST_RESENT:
                message.resent += 1
                message.at_broker_until = message.until
                message.refusal = self._publish(client, message.values, message.until - now)

    def _leave(self, client: int, values: Mapping[str, Any]) -> None:
        """Note that a client sleeps or has left, unless it is about an earlier connection.

        One that comes and goes all the time counts as there, so that its lines fill no disk.
        """
        known = self._present.get(client)
        if known is None or known.connection not in (values.get("gone"), values.get("asleep")):
            return
        if "asleep" in values:
            known.asleep_since = self.clock()
        elif self._allowances.setdefault(client, Allowance()).take(self.clock()):
            self._remove(client)

    def _remove(self, client: int) -> None:
        """Report that a client has left; it may still answer a frame, if it comes back in time."""
        del self._present[client]
        waiting = self._open.get(client, {})
        waiting.pop(_terms_identity(client), None)
        gone = Incoming({}, "it disconnected", is_away=True, may_follow=True)
        self._arrived += [(identity, gone) for identity in waiting]

    def _note_nonce(self, client: int, nonce: object) -> None:
        if nonce is not None and client in self._present:
            self._present[client].nonce = _word(nonce)


def _word(value: object) -> str:
    """Return a short text of a client; raise WireError for anything else."""
    if not isinstance(value, str) or not value.isascii() or len(value) > LONGEST_WORD:
        raise WireError("a connection's name or nonce is no short text")
    return value


def _identity(client: int, values: Values) -> str:
    frame = values.get("frame")
    if isinstance(frame, bytes):
        header = peek(frame)
        return _frame_identity(client, header.round_number, header.kind)
    return _terms_identity(client)


def _terms_identity(client: int) -> str:
    return f"{client} terms"


def _frame_identity(client: int, round_number: int, kind: Kind) -> str:
    return f"{client} {round_number} {kind.name}"


def _but_for_the_client(frame: bytes) -> tuple[bytes, bytes]:
    """Return the kind, flags and round of a frame, and its body."""
    return frame[:6], frame[HEADER_BYTES:]
