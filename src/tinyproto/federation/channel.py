"""The engine's channel to a real federation: hello, deadline, quorum, and the rules for replies, over any transport.

A transport implements the three methods of `Transport`; `federation/flower/server_app.py` has the one for Flower.
Replies are told apart by the message they answer. A late or double reply is counted and ignored.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from tinyproto.engine.checks import inspect_answer, read_hello
from tinyproto.engine.measure import WAYS, Direction
from tinyproto.engine.server import Reply
from tinyproto.errors import TinyProtoError, WireError
from tinyproto.federation.journal import Journal
from tinyproto.federation.refusals import WORDS, Values, notice, words
from tinyproto.federation.roster import Clock, Roster
from tinyproto.federation.terms import Terms
from tinyproto.wire.frame import Kind, peek
from tinyproto.wire.validate import Expectation

HELLO_SECONDS = 30.0
"""Time for a client that accepted the terms to send its sizes, unless a round's deadline is shorter."""

LARGEST_COUNT = 2**63
"""A count of bytes is smaller; the mean of larger ones is no float."""


class Outgoing(NamedTuple):
    """One message to a node: the terms, a frame or a notice."""

    node: int
    values: Values


class Incoming(NamedTuple):
    """One reply: a client's values, or the transport's word that none will come."""

    values: Mapping[str, object]
    failure: str | None = None
    is_away: bool = False  # with a failure: the node is offline, and nobody refused anything
    may_follow: bool = False  # with a failure: a reply may still come, if the node comes back


UNREADABLE = Incoming({"error": "unreadable"})


class Transport(Protocol):
    """Carries messages between the coordinator and nodes.

    A node is a client's process, known by a number until its reply to the hello says which client it is.
    """

    def nodes(self) -> Mapping[int, bytes]:
        """Return the nodes that are online, each with its public key (empty if the transport knows none)."""
        ...

    def send(self, messages: Sequence[Outgoing], lifetime: float) -> Sequence[str | None]:
        """Send messages whose replies are kept for `lifetime` seconds; return their ids, None for one not taken."""
        ...

    def replies(self, identities: Collection[str]) -> Iterable[tuple[str, Incoming]]:
        """Return the replies to these messages since the last call, each with its message's id.

        `UNREADABLE` stands for a reply that cannot be read. A transport may also return replies to other messages.
        """
        ...


@dataclass(frozen=True)
class Pace:
    """The passing of time; tests have their own."""

    clock: Clock = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    poll: float = 0.5
    look: float = 3.0  # between two looks at which nodes are online


class BelowQuorum(TinyProtoError):  # noqa: N818
    """Too few good answers by the deadline; nothing has changed, and the round is to be asked again."""


@dataclass(frozen=True)
class Sent:
    """A frame that may still be answered."""

    client: int
    node: int
    round_number: int
    kind: Kind
    until: float  # the transport forgets it then

    @property
    def prefix(self) -> str:
        """Return the start of a reason that stands alone."""
        return f"client {self.client}, round {self.round_number}: "


@dataclass
class Exchange:
    """One exchange under way."""

    round_number: int
    kinds: Mapping[int, Kind]
    needed: int
    good: set[int] = field(default_factory=set)
    bad: dict[int, WireError] = field(default_factory=dict)  # the last reason, by client without a good answer

    def asks(self, sent: Sent) -> bool:
        """Return whether a frame, which may be of an earlier attempt, asks for what this exchange does."""
        return sent.round_number == self.round_number and self.kinds.get(sent.client) is sent.kind

    def silent(self) -> list[int]:
        """Return the clients that have not been heard at all."""
        return [client for client in self.kinds if client not in self.good and client not in self.bad]

    def enough(self) -> bool:
        """Return whether the quorum is reached."""
        return len(self.good.intersection(_counted(self.kinds))) >= self.needed


def _counted(kinds: Mapping[int, Kind]) -> list[int]:
    """Return the clients that count for a quorum: those who train, or all if nobody trains."""
    return [client for client, kind in kinds.items() if kind is Kind.TRAIN] or list(kinds)


@dataclass
class FederationChannel:
    """The way to a federation's clients."""

    transport: Transport
    terms: Terms
    expectation: Expectation
    journal: Journal
    quorum: float
    deadline: float
    keys: Mapping[int, bytes]
    pace: Pace
    ignored: Counter[str] = field(default_factory=Counter)  # late and double replies
    participants: int = 0  # of the round under way; the quorum counts these, or all who are asked if more
    _hellos: dict[str, tuple[int, float]] = field(default_factory=dict)  # by message: node, and until when it is kept
    _sent: dict[str, Sent] = field(default_factory=dict)  # by message
    _kept: dict[tuple[int, Kind, int], bytes] = field(default_factory=dict)  # good answers of the round under way
    _looked: float = -math.inf

    def __post_init__(self) -> None:
        self.sockets = SocketCounts()
        self.roster = Roster(self.terms.clients, self.journal, self.pace.clock, self.deadline, self.keys)

    def needed(self, asked: int) -> int:
        """Return the number of good answers that conclude a round in which so many clients are asked."""
        return max(1, math.ceil(self.quorum * asked - 1e-9))

    def look_around(self) -> None:
        """See which nodes are online, say hello to new ones, and hear what they reply."""
        self._look()
        self._pull(None)

    def wait(self) -> None:
        """Let a moment pass."""
        self.pace.sleep(self.pace.poll)

    def exchange(self, round_number: int, frames: Mapping[int, bytes]) -> Iterator[Reply]:
        """Deliver frames; yield good answers as they arrive, then a refusal for each client without one.

        Raise BelowQuorum if too few are good at the deadline. Good answers are kept: when the same round is asked
        again, only clients without a good answer are asked.
        """
        if round_number:  # a hello in between belongs to no round
            self._kept = {key: frame for key, frame in self._kept.items() if key[0] == round_number}
        made = dict(frames)
        kinds = {client: peek(frame).kind for client, frame in made.items()}
        under_way = Exchange(round_number, kinds, self._quorum_of(round_number, kinds))
        for client, kind in kinds.items():
            known = self._kept.get((round_number, kind, client))
            if known is not None:
                under_way.good.add(client)
                yield Reply(client, known)
        self._ask({client: made[client] for client in under_way.silent()}, under_way)
        yield from self._collect(under_way)
        for client, error in under_way.bad.items():
            yield Reply(client, b"", error)

    def _push(self, messages: Sequence[Outgoing]) -> Sequence[str | None]:
        return self.transport.send(messages, self._lifetime) if messages else []

    @property
    def _lifetime(self) -> float:
        """Return the seconds for which replies are kept: past the deadline, so that late ones are seen."""
        return 2 * self.deadline + 60

    def _look(self) -> None:
        """See which nodes are online, at most every few seconds."""
        now = self.pace.clock()
        if now - self._looked < self.pace.look:
            return
        self._looked = now
        new = self.roster.see(self.transport.nodes())
        identities = self._push([Outgoing(node, {"terms": self.terms.text()}) for node in new])
        for node, identity in zip(new, identities, strict=True):
            if identity is not None:
                self._hellos[identity] = node, now + self._lifetime

    def _ask(self, frames: Mapping[int, bytes], under_way: Exchange) -> None:
        until = self.pace.clock() + self._lifetime
        nodes = {client: node for client, node in self.roster.nodes.items() if client in frames}
        federation = self.terms.federation
        messages = [
            Outgoing(node, {"federation": federation, "frame": frames[client]}) for client, node in nodes.items()
        ]
        identities = dict(zip(nodes, self._push(messages), strict=True))
        for client in frames:
            sent = Sent(client, nodes.get(client, 0), under_way.round_number, under_way.kinds[client], until)
            identity = identities.get(client)
            if identity is not None:
                self._sent[identity] = sent
            elif not any(under_way.asks(earlier) and earlier.client == client for earlier in self._sent.values()):
                self._bad(under_way, sent, WireError(f"{sent.prefix}it is not connected"), "silent")

    def _collect(self, under_way: Exchange) -> Iterator[Reply]:
        patience = self._patience(under_way)
        end = self.pace.clock() + patience
        number = under_way.round_number
        while True:
            for client, frame in self._pull(under_way):
                if number:
                    self._kept[number, under_way.kinds[client], client] = frame
                yield Reply(client, frame)
            if under_way.enough() and not under_way.silent():
                return
            if self.pace.clock() >= end:
                self._conclude_late(under_way, patience)
                return
            self.wait()
            self._look()

    def _quorum_of(self, round_number: int, kinds: Mapping[int, Kind]) -> int:
        """Return the good answers that this exchange needs; a hello needs none."""
        if round_number == 0:
            return 0
        asked = len(_counted(kinds))
        return self.needed(max(asked, self.participants) if Kind.TRAIN in kinds.values() else asked)

    def _patience(self, under_way: Exchange) -> float:
        """Return the seconds until an exchange ends without the clients that are silent.

        A hello keeps every client waiting, so it has less time; a client that stalled before gets twice as much.
        """
        if under_way.round_number:
            return self.deadline
        nodes = [self.roster.nodes.get(client) for client in under_way.kinds]
        failed = max((self.roster.stalls.get(node, 0) for node in nodes if node is not None), default=0)
        return min(self.deadline, HELLO_SECONDS * 2.0**failed)

    def _conclude_late(self, under_way: Exchange, patience: float) -> None:
        """Conclude an exchange without its silent clients; raise BelowQuorum if too few are left."""
        number = under_way.round_number
        for client in under_way.silent():
            sent = Sent(client, 0, number, under_way.kinds[client], 0.0)
            self._bad(under_way, sent, WireError(f"{sent.prefix}no answer within {patience:g} s"), "silent")
        if not under_way.enough():
            raise BelowQuorum(
                f"round {number}: {len(under_way.good)} of {len(under_way.kinds)} clients gave a good answer "
                f"within {patience:g} s, {under_way.needed} are needed; asking again"
            )

    def _pull(self, under_way: Exchange | None) -> list[tuple[int, bytes]]:
        """Hear what has arrived; return the good answers of the exchange under way."""
        now = self.pace.clock()
        self._sent = {identity: sent for identity, sent in self._sent.items() if sent.until - 30 > now}
        self._hellos = {identity: hello for identity, hello in self._hellos.items() if hello[1] - 30 > now}
        good = []
        for identity, reply in self.transport.replies([*self._hellos, *self._sent]):
            if identity in self._hellos:
                self._hear_hello(self._hellos.pop(identity)[0], reply)
                continue
            sent = self._sent.pop(identity, None)
            if sent is None:
                if reply.failure is None:
                    self._ignore("double", sent)
            elif under_way is not None and under_way.asks(sent):
                if reply.may_follow:
                    self._sent[identity] = sent
                answer = self._hear(sent, reply, under_way)
                good += [] if answer is None else [answer]
            elif reply.failure is None:  # else the transport gave up, as we did
                self._ignore("late", sent)
        return good

    def _ignore(self, which: str, sent: Sent | None) -> None:
        self.ignored[which] += 1
        client, number = (None, None) if sent is None else (sent.client, sent.round_number)
        self.journal.tell("ignored", client=client, round=number, reason=f"a {which} reply")

    def _hear_hello(self, node: int, reply: Incoming) -> None:
        if reply.failure is not None:
            self.journal.tell("silent", client=self.roster.owner(node), node=node, reason=f"hello: {reply.failure}")
        elif "error" in reply.values:
            claimed = reply.values.get("client-id")
            self.roster.refuse(node, claimed if isinstance(claimed, int) else None, words(reply.values["error"]))
        elif (client := self.roster.claim(node, reply.values.get("client-id"))) is None:
            self._push([Outgoing(node, {"code": "taken", "words": WORDS["taken"]})])
        else:
            self.sockets.note(client, reply.values)

    def _hear(self, sent: Sent, reply: Incoming, under_way: Exchange) -> tuple[int, bytes] | None:
        """Return a good answer; for any other note the reason and return None."""
        client, number = sent.client, sent.round_number
        if client in under_way.good:
            self._ignore("double", sent)
            return None
        try:
            frame = self._open(sent, reply)
        except WireError as error:
            self._bad(under_way, sent, error, "silent" if reply.is_away else "refused")
            if reply is UNREADABLE or (reply.failure is None and "error" not in reply.values):  # else the client knows
                self._push([Outgoing(sent.node, notice(sent.kind, number, error, sent.prefix))])
            return None
        under_way.good.add(client)
        under_way.bad.pop(client, None)
        self.journal.tell("answered", client=client, round=number, kind=sent.kind.answer.name.lower(), bytes=len(frame))
        return client, frame

    def _open(self, sent: Sent, reply: Incoming) -> bytes:
        """Return the frame of a reply; raise WireError if it is not good. Its size is checked before decoding."""
        if reply.failure is not None:
            raise WireError(f"{sent.prefix}{reply.failure}")
        values = reply.values
        if "error" in values:
            if values["error"] == "unknown":
                self.roster.forget(sent.node)
            raise WireError(f"{sent.prefix}{words(values['error'])}")
        frame = values.get("frame")
        if not isinstance(frame, bytes):
            raise WireError(f"{sent.prefix}its reply has no frame")
        sections = inspect_answer(frame, self.expectation, sent.client, sent.round_number, (sent.kind.answer,))
        if sent.kind is Kind.HELLO:
            read_hello(sent.client, sections.message(), self.expectation.num_classes)
        self.sockets.note(sent.client, values)
        return frame

    def _bad(self, under_way: Exchange, sent: Sent, error: WireError, event: str = "refused") -> None:
        under_way.bad[sent.client] = error
        reason = str(error).removeprefix(sent.prefix)
        self.journal.tell(event, client=sent.client, round=sent.round_number, reason=reason)


class SocketCounts:
    """Bytes at each client's socket since the last `take`.

    An answer carries the counts from before it was sent, so its own bytes appear with the next answer. A client's first
    count is the origin.
    """

    def __init__(self) -> None:
        self._last: dict[int, dict[Direction, int]] = {}  # as sent, by client
        self._used: dict[int, dict[Direction, int]] = {}

    def note(self, client: int, values: Mapping[str, object]) -> None:
        """Add the counters of an answer, if both are present and valid."""
        now: dict[Direction, int] = {}
        for way in WAYS:
            count = values.get(f"socket-{way}")
            if not isinstance(count, int) or not 0 <= count < LARGEST_COUNT:
                return
            now[way] = count
        before = self._last.get(client, now)
        self._last[client] = now
        used = self._used.setdefault(client, dict.fromkeys(WAYS, 0))
        for way in WAYS:  # a smaller counter has started again from 0
            used[way] += now[way] - before[way] if now[way] >= before[way] else now[way]

    def take(self) -> Mapping[int, Mapping[Direction, int]] | None:
        """Return the bytes by client since the last call; None if no client counts."""
        used, self._used = self._used, {}
        return dict(sorted(used.items())) if self._last else None
