"""The engine's channel on Flower's Grid: one message per client and exchange, a deadline, a quorum.

Messages are pushed and pulled, never waited for one by one; what comes back is told apart by the message that it
replies to, since Flower's own errors name no node. A reply that is late, double or unasked is counted and ignored.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import httpx
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from tinyproto.engine.checks import inspect_answer
from tinyproto.engine.server import Reply
from tinyproto.errors import TinyProtoError, WireError
from tinyproto.federation.flower.socket_bytes import SocketCounts
from tinyproto.federation.journal import Journal
from tinyproto.federation.refusal import NOTICE, RECORD, WORDS, Values, notice, words
from tinyproto.federation.roster import Clock, Roster
from tinyproto.federation.terms import Terms
from tinyproto.wire.frame import Kind, unpack
from tinyproto.wire.validate import Expectation

_TYPES = {Kind.HELLO: "query.frame", Kind.TRAIN: "train", Kind.EVALUATE: "evaluate"}
_FLOWER_SAYS = {
    1: "Flower could not load its app",
    2: "its app failed",
    3: "Flower gave the message up",
    4: "its reply expired",
    5: "its node went offline",
    8: "its app crashed",
}
_AWAY = {3, 4, 5}
_UNREADABLE = "its reply is no message that can be read"
HELLO_SECONDS = 30.0
"""For a client that accepted the terms to tell its sizes, unless a round's deadline is shorter."""

LOOK_EVERY = 3.0
"""Seconds between two looks at who is online."""


class BelowQuorum(TinyProtoError):  # noqa: N818
    """Too few good answers by the deadline: nothing has changed, and the round is to be asked again."""


class FlowerChannel:
    """The way to the clients of a federation over a Grid."""

    def __init__(
        self, grid: Grid, terms: Terms, expectation: Expectation, journal: Journal, *, quorum: float, deadline: float,
        keys: Mapping[int, bytes] | None = None, clock: Clock = time.monotonic,
        sleep: Callable[[float], None] = time.sleep, poll: float = 0.5,
    ) -> None:  # fmt: skip
        self.grid = grid
        self.terms = terms
        self.expectation = expectation
        self.journal = journal
        self.quorum = quorum
        self.deadline = deadline
        self.clock = clock
        self.sleep = sleep
        self.poll = poll
        self.ignored: Counter[str] = Counter()  # late, double and unasked replies
        self.roster = Roster(terms.clients, journal, clock, deadline, keys or {})
        self.participants = 0  # of the round under way; the quorum is counted by them, or by all whom it asks
        self._hellos: dict[str, tuple[int, float]] = {}  # node, and when Flower gives it up, by message
        self._waiting: dict[str, Sent] = {}  # of the exchange under way
        self._given_up: dict[str, Sent] = {}
        self._answered: set[str] = set()
        self._kept: dict[tuple[int, Kind], dict[int, bytes]] = {}  # good answers of the round under way
        self._good: set[int] = set()  # clients with a good answer in the last exchange
        self._untold: dict[int, Values] = {}  # notices for clients whose last answer was refused
        self.sockets = SocketCounts()
        self._looked = -math.inf

    def needed(self, asked: int) -> int:
        """How many good answers of so many conclude a round."""
        return max(1, math.ceil(self.quorum * asked - 1e-9))

    def look_around(self) -> None:
        """See who is online, say hello to those who are new, and hear what they say."""
        self._look()
        self._pull(None)

    def wait(self) -> None:
        """Let a moment pass."""
        self.sleep(self.poll)

    def exchange(self, round_number: int, frames: Mapping[int, bytes]) -> Iterator[Reply]:
        """Deliver, and yield good answers as they come; at the end those that were not good, with the reason.

        Raises BelowQuorum where too few are good at the deadline. What was answered until then is kept: asked for the
        same round again, only those are asked who have not answered.
        """
        if round_number:  # who is greeted in between has no part in it
            self._kept = {key: answers for key, answers in self._kept.items() if key[0] == round_number}
        made = {client: frames[client] for client in frames}
        kinds = {client: unpack(frame)[0].kind for client, frame in made.items()}
        under_way = Exchange(kinds, self._quorum_of(round_number, kinds))
        self._good = under_way.good
        for client in made:
            known = self._kept.get((round_number, kinds[client]), {}).get(client)
            if known is not None:
                under_way.good.add(client)
                yield Reply(client, known)
        left = {client: frame for client, frame in made.items() if client not in under_way.good}
        self._ask(round_number, left, under_way)
        if round_number:
            self.tell_refused()
        yield from self._collect(round_number, under_way)
        for client, error in under_way.bad.items():
            yield Reply(client, b"", error)

    def tell_refused(self, errors: Mapping[int, WireError] | None = None) -> None:
        """Send a notice to each client that does not know yet that its answer was refused.

        A notice travels beside the client's next frame; this is for clients who are not asked anything now. `errors`
        are of hellos, which may have been good for the channel and not for the server.
        """
        for client, error in (errors or {}).items():
            if client in self._good:
                self._untold[client] = notice(Kind.HELLO, 0, str(error))
        nodes = {client: self.roster.nodes[client] for client in self._untold if client in self.roster.present}
        identities = self._push([(node, "query.notice", self._untold[client]) for client, node in nodes.items()])
        self._told(dict(zip(nodes, identities, strict=True)))

    def _told(self, identities: Mapping[int, str | None]) -> None:
        """Forget the notices of clients whose messages Flower took."""
        self._untold = {client: told for client, told in self._untold.items() if identities.get(client) is None}

    def _look(self) -> None:
        """At most every few seconds."""
        now = self.clock()
        if now - self._looked < LOOK_EVERY:
            return
        self._looked = now
        online = {int(node.node_id): bytes(node.public_key) for node in self.grid.get_nodes()}
        new = self.roster.see(online)
        identities = self._push([(node, "query.hello", {"terms": self.terms.text()}) for node in new])
        for node, identity in zip(new, identities, strict=True):
            if identity is not None:
                self._hellos[identity] = node, now + self._lifetime

    def _ask(self, round_number: int, frames: Mapping[int, bytes], under_way: Exchange) -> None:
        kinds = under_way.kinds
        again = {
            identity: sent
            for identity, sent in self._given_up.items()
            if sent.round_number == round_number and kinds.get(sent.client) is sent.kind and sent.client in frames
        }
        self._given_up = {identity: sent for identity, sent in self._given_up.items() if identity not in again}
        self._waiting |= again  # a client that is still at it may answer what it was asked before
        until = self.clock() + self._lifetime
        nodes = {client: node for client, node in self.roster.nodes.items() if client in frames}
        asked: list[tuple[int, str, Values]] = [
            (node, _TYPES[kinds[client]], {
                "federation": self.terms.federation, "frame": frames[client],
                **{f"{NOTICE}{name}": value for name, value in self._untold.get(client, {}).items()},
            })
            for client, node in nodes.items()
        ]  # fmt: skip
        identities = dict(zip(nodes, self._push(asked), strict=True))
        self._told(identities)
        for client in frames:
            sent = Sent(client, nodes.get(client, 0), round_number, kinds[client], until)
            identity = identities.get(client)
            if identity is not None:
                self._waiting[identity] = sent
            elif not any(earlier.client == client for earlier in again.values()):
                self._bad(under_way, sent, self._refusal(sent, "Flower takes no message for its node"))

    def _collect(self, round_number: int, under_way: Exchange) -> Iterator[Reply]:
        patience = self._patience(round_number, under_way)
        end = self.clock() + patience
        try:
            while True:
                for client, frame in self._pull(under_way):
                    if round_number:
                        self._kept.setdefault((round_number, under_way.kinds[client]), {})[client] = frame
                    yield Reply(client, frame)
                if under_way.enough() and not under_way.open():
                    break
                if self.clock() >= end:
                    self._conclude_late(round_number, under_way, patience)
                    break
                self.wait()
                self._look()
        finally:
            self._given_up |= self._waiting
            self._waiting = {}

    def _quorum_of(self, round_number: int, kinds: Mapping[int, Kind]) -> int:
        """Good answers without which this exchange is not concluded; a hello waits for nobody."""
        if round_number == 0:
            return 0
        asked = len(counted(kinds))
        return self.needed(max(asked, self.participants) if Kind.TRAIN in kinds.values() else asked)

    def _patience(self, round_number: int, under_way: Exchange) -> float:
        """Seconds until an exchange ends without those who do not answer.

        Everyone waits while sizes are asked for, so that may take less; twice as much where it did not suffice.
        """
        if round_number:
            return self.deadline
        nodes = [self.roster.nodes.get(client) for client in under_way.kinds]
        failed = max((self.roster.stalls.get(node, 0) for node in nodes if node is not None), default=0)
        return min(self.deadline, HELLO_SECONDS * 2.0**failed)

    def _conclude_late(self, round_number: int, under_way: Exchange, patience: float) -> None:
        """The deadline has passed: without those who are not heard, or not at all."""
        for client, kind in under_way.kinds.items():
            if client not in under_way.good and client not in under_way.bad:
                sent = Sent(client, 0, round_number, kind, 0.0)
                self._bad(under_way, sent, self._refusal(sent, f"no answer within {patience:g} s"), "silent")
        if not under_way.enough():
            raise BelowQuorum(
                f"round {round_number}: {len(under_way.good)} of {len(under_way.kinds)} clients answered well within "
                f"{patience:g} s, {under_way.needed} have to; it is asked again"
            )

    def _push(self, asked: Sequence[tuple[int, str, Values]]) -> list[str | None]:
        """Node, type and values of messages; how each is known, or None where Flower did not take it."""
        messages = [
            Message(RecordDict({RECORD: ConfigRecord(values)}), dst_node_id=node, message_type=kind, ttl=self._lifetime)
            for node, kind, values in asked
        ]
        identities = [identity or None for identity in self.grid.push_messages(messages)] if messages else []
        return identities if len(identities) == len(messages) else [None] * len(messages)

    @property
    def _lifetime(self) -> float:
        """Seconds for which Flower keeps a message and its reply: beyond the deadline, so that late ones are seen."""
        return 2 * self.deadline + 60

    def _pull(self, under_way: Exchange | None) -> list[tuple[int, bytes]]:
        """Hear what has come; the good answers of the exchange under way."""
        now = self.clock()
        self._given_up = {identity: sent for identity, sent in self._given_up.items() if sent.until - 30 > now}
        self._hellos = {identity: hello for identity, hello in self._hellos.items() if hello[1] - 30 > now}
        wanted = dict.fromkeys((*self._hellos, *self._given_up, *(self._waiting if under_way is not None else ())))
        good = []
        for identity, message in ((one, reply) for one in wanted for reply in self._replies(one)):
            if identity in self._hellos:
                self._hear_hello(self._hellos.pop(identity)[0], message)
            elif identity in self._waiting and under_way is not None:
                answer = self._hear(self._waiting.pop(identity), message, under_way)
                good += [] if answer is None else [answer]
            else:
                self._ignore(identity, message)
            self._answered.add(identity)
        return good

    def _replies(self, identity: str) -> list[Message | None]:
        """What has come in reply to one message; None stands for what is no reply to it, or none at all.

        Each is pulled on its own: Flower hands a reply out once, and one that it cannot read would take those that are
        pulled with it along.
        """
        try:
            replies = list(self.grid.pull_messages([identity]))
        except (httpx.HTTPError, OSError):
            return []  # the way was blocked; it is tried again
        except Exception:  # whatever garbage of a client makes Flower raise
            return [None]
        return [reply if _is_reply(reply, identity) else None for reply in replies]

    def _ignore(self, identity: str, message: Message | None) -> None:
        sent = self._given_up.pop(identity, None)
        if sent is not None and message is not None and message.has_error():
            return  # Flower gave it up, as we did
        which = "late" if sent is not None else "double" if identity in self._answered else "unasked"
        self.ignored[which] += 1
        client = None if sent is None else sent.client
        number = None if sent is None else sent.round_number
        self.journal.tell("ignored", client=client, round=number, reason=f"a {which} reply")

    def _hear_hello(self, node: int, message: Message | None) -> None:
        if message is None:
            self.roster.refuse(node, None, _UNREADABLE)
            return
        if message.has_error():
            self.journal.tell(
                "silent", client=self.roster.owner(node), node=node, reason=f"hello: {_flower_error(message)}"
            )
            return
        values = _values(message)
        if "error" in values:
            said = values.get("client-id")
            self.roster.refuse(node, said if isinstance(said, int) else None, words(values["error"]))
        elif not self.roster.claim(node, values.get("client-id")):
            self._push([(node, "query.notice", {"code": "taken", "words": WORDS["taken"]})])
        else:
            client = self.roster.client_of(node)
            assert client is not None
            self.sockets.note(client, values)

    def _hear(self, sent: Sent, message: Message | None, under_way: Exchange) -> tuple[int, bytes] | None:
        """A good answer, or the reason noted why it is none."""
        client, number = sent.client, sent.round_number
        if client in under_way.good:
            self.ignored["double"] += 1
            self.journal.tell("ignored", client=client, round=number, reason="a double reply")
            return None
        try:
            frame = self._open(sent, message)
        except WireError as error:
            self._bad(under_way, sent, error, "silent" if _is_away(message) else "refused")
            if not _is_own_refusal(message):
                self._untold[client] = notice(sent.kind, number, str(error).removeprefix(_whose(sent)))
            return None
        under_way.good.add(client)
        under_way.bad.pop(client, None)
        self._untold.pop(client, None)  # of an earlier answer in the same round
        self.journal.tell("answered", client=client, round=number, kind=sent.kind.answer.name.lower(), bytes=len(frame))
        return client, frame

    def _open(self, sent: Sent, message: Message | None) -> bytes:
        """The frame of a reply, once all of it was found good; its size is looked at before anything is decoded."""
        if message is None:
            raise self._refusal(sent, _UNREADABLE)
        if message.has_error():
            raise self._refusal(sent, _flower_error(message))
        values = _values(message)
        if "error" in values:
            if values["error"] == "unknown":
                self.roster.forget(sent.node)
            raise self._refusal(sent, words(values["error"]))
        frame = values.get("frame")
        if not isinstance(frame, bytes):
            raise self._refusal(sent, "its reply has no frame")
        inspect_answer(frame, self.expectation, sent.client, sent.round_number, (sent.kind.answer,))
        self.sockets.note(sent.client, values)
        return frame

    def _refusal(self, sent: Sent, reason: str) -> WireError:
        return WireError(f"{_whose(sent)}{reason}")

    def _bad(self, under_way: Exchange, sent: Sent, error: WireError, event: str = "refused") -> None:
        under_way.bad[sent.client] = error
        reason = str(error).removeprefix(_whose(sent))
        self.journal.tell(event, client=sent.client, round=sent.round_number, reason=reason)


def _whose(sent: Sent) -> str:
    """How a reason begins where nothing else says of whom it is."""
    return f"client {sent.client}, round {sent.round_number}: "


def _is_away(message: Message | None) -> bool:
    """Whether Flower says that no answer will come, which is nobody's refusal."""
    return message is not None and message.has_error() and int(message.error.code) in _AWAY


def _is_own_refusal(message: Message | None) -> bool:
    """Return whether the client or Flower says that there is no answer, rather than that we refuse it."""
    return message is not None and (message.has_error() or "error" in _values(message))


def _is_reply(reply: object, identity: str) -> bool:
    """Whether this is a whole message of Flower, in reply to that one; what a client uploads may be anything."""
    if not isinstance(reply, Message) or reply.metadata.reply_to_message_id != identity:
        return False
    return bool(reply.has_error() or reply.has_content())


def _values(message: Message) -> Mapping[str, object]:
    """What is in our record; nothing where the message has none."""
    record = message.content.get(RECORD)
    return dict(record) if isinstance(record, ConfigRecord) else {}


def _flower_error(message: Message) -> str:
    return _FLOWER_SAYS.get(int(message.error.code), "Flower reports an error")


@dataclass
class Sent:
    """A message that may still be answered."""

    client: int
    node: int
    round_number: int
    kind: Kind
    until: float  # after which Flower no longer knows it


@dataclass
class Exchange:
    """One exchange under way."""

    kinds: Mapping[int, Kind]
    needed: int
    good: set[int] = field(default_factory=set)
    bad: dict[int, WireError] = field(default_factory=dict)  # the last reason, by client without a good answer

    def open(self) -> bool:
        """Whether anyone has not been heard at all."""
        return any(client not in self.good and client not in self.bad for client in self.kinds)

    def enough(self) -> bool:
        """Whether it could be concluded: of those who train where anyone does."""
        return sum(client in self.good for client in self._counted) >= self.needed

    @property
    def _counted(self) -> list[int]:
        return counted(self.kinds)


def counted(kinds: Mapping[int, Kind]) -> list[int]:
    """The clients by whom a quorum is counted: those who train; where nobody does, all who are asked."""
    training = [client for client, kind in kinds.items() if kind is Kind.TRAIN]
    return training or list(kinds)
