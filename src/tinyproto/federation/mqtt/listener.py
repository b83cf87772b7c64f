"""A device's listener: it waits for rounds and starts a process for each, so that no network fills memory meanwhile.

It checks a frame (checksum, round, code) before it starts a process, answers from its memory what it has answered
before, and does the newest round first: a device that slept finds its round waiting. Torch is not imported here.
"""

from __future__ import annotations

import json
import math
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from tinyproto.errors import FederationError, WireError
from tinyproto.federation.journal import Journal, writing
from tinyproto.federation.mqtt.messages import (
    Allowance,
    Happened,
    HasFileno,
    Seal,
    Topics,
    from_json,
    is_json,
    refusal_of,
    to_json,
    with_counts,
)
from tinyproto.federation.refusals import record_notice
from tinyproto.storage.atomic import write_atomic
from tinyproto.wire.frame import EVERYONE, Header, Kind, peek, readdressed, unpack

LINGER_SECONDS = 20.0
"""A training process without work is kept for this long: the hello, the first round and an evaluation come together."""

ONCE_SECONDS = 60.0
"""`join --once` sleeps again if no message comes for this long."""

SETTLE_SECONDS = 0.5
"""Messages that waited at the broker arrive within this time; only the newest round among them is trained."""

STEP_SECONDS = 0.5
KEPT_ROUNDS = 2
"""Rounds whose replies are kept in memory."""


class Link(Protocol):
    """A connection to a broker, as `connection.Connection`."""

    is_open: bool

    def publish(self, topic: str, payload: bytes, expiry: float | None = None) -> None:
        """Send a message."""
        ...

    def step(self, seconds: float, others: Sequence[HasFileno] = ()) -> Sequence[Happened]:
        """Wait until something happens, but at most so long; return what happened."""
        ...

    def counts(self) -> dict[str, int] | None:
        """Return the bytes at the socket."""
        ...


class Worker(Protocol):
    """The process that trains; `federation.member.respond` behind a pipe."""

    def ask(self, values: Mapping[str, Any]) -> None:
        """Give it a message to respond to."""
        ...

    def answer(self) -> dict[str, Any] | None:
        """Return its response once it has arrived; None before."""
        ...

    def waits_for(self) -> Sequence[HasFileno]:
        """Return where the response arrives."""
        ...

    def close(self) -> None:
        """End it."""
        ...


@dataclass(frozen=True)
class Agreement:
    """The terms that were accepted last, as far as a listener needs them."""

    token: str
    digest: bytes
    rounds: int


@dataclass
class Job:
    """A message that the training process responds to."""

    values: dict[str, Any]
    asked: Header | None = None  # of a frame
    context: bytes = b""  # of a refusal

    @property
    def key(self) -> tuple[int, Kind] | None:
        """Return round and kind of a frame that is answered once."""
        if self.asked is None or self.asked.kind is Kind.HELLO:
            return None
        return self.asked.round_number, self.asked.kind


class Memory:
    """`mqtt.json` in a client's folder: the federation whose terms were accepted last, and the number drawn for it."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "mqtt.json"
        self._folder = folder
        try:
            found = json.loads(self._file.read_text(encoding="utf-8"))
            self.nonce, self.token = str(found["nonce"]), found["federation"]
        except (OSError, ValueError, KeyError, TypeError):
            self.nonce, self.token = secrets.token_hex(8), None
            self._write(self.nonce, None)

    def accept(self, token: str) -> None:
        """Remember a federation, and draw another number: no earlier message of a coordinator is valid from now on."""
        nonce = secrets.token_hex(8)
        self._write(nonce, token)
        self.nonce, self.token = nonce, token

    def agreement(self) -> Agreement | None:
        """Return the accepted terms; None without any."""
        try:
            file = self._folder / "state" / str(self.token) / "terms.json"
            terms = json.loads(file.read_text(encoding="utf-8"))
            return Agreement(terms["federation"], bytes.fromhex(terms["digest"]), int(terms["train"]["rounds"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _write(self, nonce: str, token: str | None) -> None:
        with writing(self._folder):
            write_atomic(self._file, json.dumps({"nonce": nonce, "federation": token}), 0o600)


@dataclass
class Listener:
    """One client at a broker."""

    client: int
    folder: Path
    link: Link
    start_worker: Callable[[], Worker]
    topics: Topics
    connection: str  # names this process; its will has the same
    seal: Seal | None = None
    resident: bool = False
    once: bool = False  # nothing is begun after a round
    worker: Worker | None = None  # the training process, while there is one
    clock: Callable[[], float] = time.monotonic
    is_over: bool = False  # the coordinator has said so, or has had the last evaluation
    trained: int = 0  # rounds since the start
    lost: str | None = "it does not answer as an MQTT broker"  # why there is no connection
    heard_at: float = 0.0
    _busy: Job | None = None
    _jobs: list[Job] = field(default_factory=list)
    _replies: dict[tuple[int, Kind], bytes] = field(default_factory=dict)
    _idle_since: float = 0.0
    _refusals: Allowance = field(default_factory=Allowance)  # lines in the journal
    _notices: Allowance = field(default_factory=Allowance)
    _has_been_open: bool = False
    _asks_again: bool = False  # unless a frame arrives with the session: an earlier process may have died with it
    _settled_at: float = math.inf  # messages that waited arrive before the connection counts as open

    def __post_init__(self) -> None:
        self.memory = Memory(self.folder)
        self.agreed = self.memory.agreement()
        self.journal = Journal(self.folder / "progress.jsonl")
        self.heard_at = self._idle_since = self.clock()

    @property
    def is_idle(self) -> bool:
        """Return True if nothing is being answered, and nothing will be begun."""
        return self._busy is None and (not self._jobs or (self.once and self.trained > 0))

    @property
    def is_settled(self) -> bool:
        """Return True once the messages that waited at the broker have arrived."""
        return self.clock() >= self._settled_at

    def step(self, seconds: float = STEP_SECONDS) -> None:
        """Let time pass: hear messages, pass work to the training process, publish its replies."""
        others = self.worker.waits_for() if self.worker is not None and self._busy is not None else ()
        for happened in self.link.step(seconds, others):
            self._hear(happened)
        if self.worker is not None and self._busy is not None and (answer := self.worker.answer()) is not None:
            job, self._busy, self._idle_since = self._busy, None, self.clock()
            if answer.pop("died", None):
                self.journal.tell("failed", reason=answer.pop("reason"))
                self.let_go()
            self._publish_answer(job, answer)
        if self.is_settled:
            if self._asks_again and not any(job.asked is not None for job in self._jobs):
                self._say_here(fresh=True)
            self._asks_again = False
            if self._busy is None and not self.is_idle:
                self._busy = self._jobs.pop(0)
                self._pass_on(self._busy)
        if not self.resident and self.is_idle and self.clock() - self._idle_since >= LINGER_SECONDS:
            self.let_go()

    def _pass_on(self, job: Job) -> None:
        """Give a job to the training process, which is started if there is none."""
        try:
            self.worker = self.worker or self.start_worker()
        except OSError as error:
            self._busy = None
            self.journal.tell("failed", reason=f"cannot start the training process: {error.strerror or error}")
            self._refuse(job, "failed")
        else:
            self.worker.ask(job.values)

    def let_go(self) -> None:
        """End the training process."""
        if self.worker is not None:
            self.worker.close()
            self.worker = None

    def leave(self, *, asleep: bool) -> None:
        """Tell the coordinator that this client sleeps, or has left."""
        self._say(to_json(**{"asleep" if asleep else "gone": self.connection}), b"")

    def _hear(self, happened: Happened) -> None:
        if happened.lost is not None:
            self.lost = happened.lost
        elif happened.warned is not None:
            if self._refusals.take(self.clock()):
                self.journal.tell("refused", code="broker", reason=happened.warned)
        elif happened.resumed is not None:
            self.lost = None
            self._say_here(fresh=not happened.resumed)
            self._asks_again, self._has_been_open = happened.resumed and not self._has_been_open, True
            self._settled_at = self.clock() + (SETTLE_SECONDS if happened.resumed else 0.0)
        elif happened.topic is not None:
            try:
                self._take(happened.payload, shared=happened.topic == self.topics.everyone)
                self.heard_at = self._idle_since = self.clock()
            except WireError as error:
                self._tell_refused(error)

    def _tell_refused(self, error: WireError) -> None:
        if self._refusals.take(self.clock()):
            self.journal.tell("refused", code="frame", reason=str(error))

    def _say_here(self, *, fresh: bool) -> None:
        here = to_json(here=self.connection, nonce=self.memory.nonce, **({"fresh": 1} if fresh else {}))
        self._say(here, b"")

    def _take(self, payload: bytes, *, shared: bool) -> None:
        """Take in one message; raise WireError if it is not the coordinator's."""
        content, digest = payload, b"" if self.agreed is None else self.agreed.digest
        if self.seal is not None:
            try:
                content = self.seal.open("d", payload, self.memory.nonce.encode(), digest, b"")
            except WireError:
                if self.agreed is None and not is_json(payload):  # the frame of a federation that it has forgotten
                    self._refuse(Job({}, peek(payload), refusal_of(payload)), "unknown")
                raise
        if not is_json(content):
            self._take_frame(content, shared=shared)
            return
        values = from_json(content)
        if "who" in values:
            self._say_here(fresh=bool(values["who"]))
        elif "over" in values:
            self.is_over = self.is_over or (self.agreed is not None and values["over"] == self.agreed.token)
        elif isinstance(terms := values.get("terms"), str):
            self._jobs = [job for job in self._jobs if "terms" not in job.values]
            self._jobs.append(Job({"terms": terms}, context=refusal_of(payload)))
            self.is_over = False  # what was over is an earlier federation
        elif isinstance(values.get("code"), str) and isinstance(values.get("words"), str):
            if self._notices.take(self.clock()):
                record_notice(self.journal, values)
        else:
            raise WireError(f"message for client {self.client}, refused: it is neither terms, frame nor notice")

    def _take_frame(self, frame: bytes, *, shared: bool) -> None:
        asked = peek(frame)
        job = Job({}, asked, b"" if self.agreed is None else self.agreed.token.encode())
        if self.agreed is None:  # also if it is shared, which it is only if all who are there are asked
            self._refuse(job, "unknown")
            return
        try:
            if asked.client == EVERYONE:
                frame = readdressed(frame, self.agreed.digest, self.client)
            else:
                unpack(frame, self.agreed.digest)
        except WireError as error:
            if not shared:
                self._tell_refused(error)
                self._refuse(job, "frame")
            return
        job.values |= {"federation": self.agreed.token, "frame": frame}
        if job.key in self._replies and job.key is not None:
            self._publish_frame(self._replies[job.key])
            return
        others = [other for other in (*self._jobs, self._busy) if other is not None and other.key is not None]
        if job.key is None or not any(other.key == job.key or _is_older(job, other) for other in others):
            self._jobs = [other for other in self._jobs if not (_is_older(other, job) or _is_same_hello(other, job))]
            self._jobs.append(job)

    def _publish_answer(self, job: Job, values: dict[str, Any]) -> None:
        frame = values.get("frame")
        if isinstance(frame, bytes):
            if job.key is not None:
                self._replies[job.key] = frame
                newest = max(number for number, _ in self._replies)
                self._replies = {
                    key: kept for key, kept in self._replies.items() if key[0] > newest - KEPT_ROUNDS
                }  # fmt: skip
            self._publish_frame(frame)
            assert job.asked is not None
            self.trained += job.asked.kind is Kind.TRAIN
            if self.agreed is not None and job.asked.round_number > self.agreed.rounds:
                self.is_over = True
        elif "federation" in values:
            token = str(values["federation"])
            is_another = self.memory.token != token or self.agreed is None
            try:
                self.memory.accept(token)
            except FederationError as error:
                self.journal.tell("refused", code="no-space", reason=str(error))
                self._refuse(job, "no-space")
                return
            if is_another:
                self.is_over, self._replies = False, {}
                self._jobs = [other for other in self._jobs if other.asked is None]  # frames of another federation
            self.agreed = self.memory.agreement()
            counts = {f"socket-{way}": count for way, count in (self.link.counts() or {}).items()}
            self._say(to_json(**values, nonce=self.memory.nonce, **counts), token.encode())
        elif "error" in values:
            self._refuse(job, str(values["error"]))

    def _refuse(self, job: Job, code: str) -> None:
        values: dict[str, Any] = {"error": code, "client-id": self.client}
        if job.asked is not None:
            values |= {"round": job.asked.round_number, "kind": job.asked.kind.name.lower()}
        self._say(to_json(**values), job.context)

    def _publish_frame(self, frame: bytes) -> None:
        assert self.agreed is not None
        self._say(with_counts(frame, self.link.counts()), self.agreed.digest)

    def _say(self, content: bytes, context: bytes) -> None:
        payload = content if self.seal is None else self.seal.close("u", content, context)
        self.link.publish(self.topics.up(self.client), payload)


def will(connection: str, seal: Seal | None) -> bytes:
    """Return the message that the broker publishes when a client's connection breaks."""
    content = to_json(gone=connection)
    return content if seal is None else seal.close("u", content, b"")


def _is_older(one: Job, than: Job) -> bool:
    """Return True for a frame of an earlier round, which nobody waits for any more."""
    return one.key is not None and than.key is not None and one.key[0] < than.key[0]


def _is_same_hello(one: Job, other: Job) -> bool:
    return all(job.asked is not None and job.asked.kind is Kind.HELLO for job in (one, other))
