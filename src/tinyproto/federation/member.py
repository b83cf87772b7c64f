"""A client of a federation, whatever carries its messages: values in, values out, everything that lasts on disk.

Each message may come in a process of its own, so `respond` builds the member from its folder each time: `join.json`
says where its data is and which network it has; `state/FEDERATION/` holds the accepted terms and the client's state.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import safetensors
import torch
from filelock import FileLock
from pydantic import Field
from torch import Tensor

from tinyproto.algorithms.base import Client, ClientInfo
from tinyproto.builder import Setup, resolve_device
from tinyproto.core.streams import one_thread
from tinyproto.data.dataset import Dataset, FederatedData
from tinyproto.engine.measure import Stopwatch
from tinyproto.engine.training import make_trainer
from tinyproto.errors import DamagedError, ModelError, TinyProtoError, WireError, one_line
from tinyproto.federation.client_data import ClientDataSection, client_data
from tinyproto.federation.journal import Journal
from tinyproto.federation.refusals import Refusal, Values, record_notice
from tinyproto.federation.terms import JsonFile, Terms, accepted_terms
from tinyproto.models import build_model, rehearse_training
from tinyproto.storage.atomic import write_atomic
from tinyproto.storage.client_files import parts_of, put_back
from tinyproto.storage.network_files import TRAINED, file_name
from tinyproto.storage.tensor_files import disk_words, host_copy, load_sealed, save_sealed
from tinyproto.wire.frame import Header, Kind, peek
from tinyproto.wire.validate import open_frame

ORDER = {Kind.HELLO: 0, Kind.EVALUATE: 1, Kind.TRAIN: 2}
"""Kinds of frames in the order in which a round asks for them."""


def respond(folder: Path, client: int, asked: Mapping[str, object]) -> Values:
    """Return the reply to a coordinator's message, or a short code for whatever went wrong.

    The message has the terms, a frame, or else a notice. The sentence of a refusal, or the traceback of a bug, goes to
    `progress.jsonl` in the client's folder and never onto the network.
    """
    journal = Journal(folder / "progress.jsonl")
    handle = _accept if "terms" in asked else _answer if "frame" in asked else _note
    try:
        return handle(Member(folder, client), asked, journal)
    except Refusal as refusal:
        journal.tell("refused", code=refusal.code, reason=str(refusal))
        return {"error": refusal.code, "client-id": client}
    except TinyProtoError as error:
        journal.tell("failed", reason=str(error))
        return {"error": "failed", "client-id": client}
    except Exception:
        journal.tell("failed", reason=traceback.format_exc())
        traceback.print_exc()
        return {"error": "failed"}


def _accept(member: Member, asked: Mapping[str, object], journal: Journal) -> Values:
    federation = member.hello(str(asked["terms"]))
    journal.tell("joined", federation=federation)
    return {"client-id": member.client, "federation": federation}


def _note(member: Member, asked: Mapping[str, object], journal: Journal) -> Values:  # noqa: ARG001
    record_notice(journal, asked)
    return {}


def _answer(member: Member, asked: Mapping[str, object], journal: Journal) -> Values:
    frame = asked["frame"]
    assert isinstance(frame, bytes)
    reply = member.answer(str(asked["federation"]), frame)
    header = peek(reply)
    facts = {"round": header.round_number, "rounds": member.rounds, "kind": header.kind.name.lower()}
    journal.tell("answered", **facts, bytes=len(reply))
    if header.round_number > member.rounds:
        journal.tell("finished", rounds=member.rounds)
    return {"frame": reply}


class JoinFile(JsonFile):
    """`join.json` in a client's folder: the client's data, network and device."""

    NAME = "join.json"
    data: ClientDataSection
    model: str = Field(description="a registered network, or a dotted path package.module:factory")
    device: str = "cpu"


class Member:
    """Client `client` of any federation that asks it."""

    def __init__(self, folder: Path, client: int) -> None:
        self.folder = folder
        self.client = client
        self.join = JoinFile.read(folder)
        self.device = torch.device(resolve_device(self.join.device, "device in join.json"))
        self.rounds = 0  # of the federation last answered

    def hello(self, text: str) -> str:
        """Accept a federation's terms, store them and return its token; raise Refusal if they do not fit."""
        terms, setup = accepted_terms(text, self.join.model)
        if self.client >= terms.clients:
            raise Refusal("member", f"the federation has clients 0 … {terms.clients - 1}, this is {self.client}")
        shape = setup.spec.shape
        try:
            with one_thread():
                rehearse_training(build_model(self.join.model, shape, seed=0), self.join.model, shape)
        except ModelError as error:
            raise Refusal("model", str(error)) from error
        client_data(self.join.data, self.client, terms)
        files = self._files(terms.federation)
        with files.locked():
            files.load(self.join.model)
            if files.read_terms() != text:
                with _writing(files.terms):
                    write_atomic(files.terms, text)
        return terms.federation

    def answer(self, federation: str, frame: bytes) -> bytes:
        """Return the reply to a frame of a federation whose terms were accepted.

        Asked again for one of its last two rounds, the client returns the same bytes and does nothing else; it refuses
        older rounds. The state on disk changes after a round is complete, or not at all.
        """
        if not federation.isalnum():
            raise Refusal("unknown", f"{federation!r} is not a federation's token")
        files = self._files(federation)
        if not files.terms.is_file():
            raise Refusal("unknown", f"no hello was received for federation {federation}")
        with files.locked(), one_thread():
            terms, setup = accepted_terms(files.read_terms() or "", self.join.model)
            self.rounds = terms.train.rounds
            try:
                return self._answer(files, terms, setup, frame)
            except WireError as error:
                raise Refusal("frame", str(error)) from error

    def next_round(self, federation: str) -> int:
        """Return the first round of a federation that the client has not completed; 1 before it has begun."""
        files = self._files(federation)
        with files.locked():
            saved = files.load(self.join.model)
        trained = () if saved is None else (number for number, kind in saved.replies if kind is Kind.TRAIN)
        return max(trained, default=0) + 1

    def _answer(self, files: MemberFiles, terms: Terms, setup: Setup, frame: bytes) -> bytes:
        asked = peek(frame)  # checked in full before anything is answered or trained
        saved = files.load(self.join.model)
        if saved is not None and asked.kind in ORDER and saved.includes(asked.round_number, asked.kind):
            open_frame(frame, setup.expectation, self.client, round_number=None, kinds=tuple(ORDER))
            if asked.kind is not Kind.HELLO:
                return saved.reply(asked.round_number, asked.kind)
        data = client_data(self.join.data, self.client, terms)
        clients = OneClient(self, setup, data, data.counted(terms.prototypes.counted_samples)[0], saved)
        runtime = setup.clients(clients, make_trainer("eager", self.device), Stopwatch(lambda: 0.0))
        reply = runtime.handle({self.client: frame})[self.client]
        if asked.kind is not Kind.HELLO:
            facts = self._facts(data.images, terms, setup, asked)
            files.save(clients[self.client], self.join.model, asked.round_number, asked.kind, reply, saved, facts)
        return reply

    def _facts(self, images: Dataset, terms: Terms, setup: Setup, asked: Header) -> dict[str, Any]:
        """Return what `tinyproto predict` has to know of the network after a round, as `Experiment.facts_of_model`."""
        agreed = terms.classes is not None or self.join.data.share is None  # a share has the names of its dataset
        return {
            "algorithm": setup.algorithm.name,
            "label": setup.algorithm.name,
            "seed": terms.seed,
            "client": self.client,
            "network": self.join.model,
            **asdict(setup.spec.shape),
            **images.facts(),
            **({"class_names": terms.classes} if agreed else {}),
            "federation": terms.federation,
            "rounds": asked.round_number - (asked.kind is not Kind.TRAIN),  # completed
        }

    def _files(self, federation: str) -> MemberFiles:
        return MemberFiles(self.folder / "state" / federation, self.client)


@dataclass
class OneClient:
    """The engine's collection of clients with this one client in it; its network is built on first use."""

    member: Member
    setup: Setup
    data: FederatedData
    counts: Tensor  # (K,)
    saved: SavedState | None

    def __contains__(self, client: object) -> bool:
        return client == self.member.client

    def __getitem__(self, client: int) -> Client:
        assert client == self.member.client
        return self._client

    def info(self, client: int) -> ClientInfo:
        """Return the client's sizes."""
        counts = self.counts
        return ClientInfo(client, len(self.data.shares[0].train), int(counts.sum()), int((counts > 0).sum()))

    @cached_property
    def _client(self) -> Client:
        placed, model = self.data.to(self.member.device), self.member.join.model
        samples = (placed.train(0), placed.test(0))
        client = self.setup.new_client(self.member.client, model, model, samples, self.counts)
        if self.saved is not None:
            try:
                put_back(client, self.saved.parts)
            except (RuntimeError, KeyError) as error:  # a network of the same name with other parameters
                raise Refusal(
                    "model", f"the saved state does not fit the network {model!r}, which has changed: {one_line(error)}"
                ) from error
        return client


@dataclass(frozen=True)
class SavedState:
    """A client after its last round: its parts, and its replies in that round and in the one before.

    A coordinator whose newest checkpoint is damaged repeats the round before the one that its clients are in.
    """

    parts: Mapping[str, Mapping[str, Tensor]]
    replies: Mapping[tuple[int, Kind], bytes]  # by round and kind of frame

    def includes(self, round_number: int, kind: Kind) -> bool:
        """Return whether the client has already done what a frame asks for."""
        return (round_number, ORDER[kind]) <= max((number, ORDER[done]) for number, done in self.replies)

    def reply(self, round_number: int, kind: Kind) -> bytes:
        """Return the reply of an earlier round; raise Refusal if it is no longer kept."""
        if (round_number, kind) not in self.replies:
            last = max(number for number, _ in self.replies)
            raise Refusal("stale", f"asked to {kind.name.lower()} in round {round_number} after completing {last}")
        return self.replies[round_number, kind]


class MemberFiles:
    """The files of one client in one federation: `state/FEDERATION/`."""

    def __init__(self, folder: Path, client: int) -> None:
        self.folder = folder
        self.client = client
        self.state = folder / file_name(client)
        self.terms = folder / "terms.json"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Let no other process answer for this client meanwhile: asked twice at once, the second finds the reply."""
        with _writing(self.folder):
            for folder in (self.folder.parent, self.folder):  # private: the state was learnt from the client's data
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = FileLock(self.folder / "lock").acquire()
        with lock:
            yield

    def read_terms(self) -> str | None:
        """Return the accepted terms; None before the hello."""
        try:
            return self.terms.read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        except OSError as error:
            raise Refusal("state", f"cannot read {self.terms}: {one_line(error)}") from error

    def load(self, model: str) -> SavedState | None:
        """Return the client's state, None before its first round; refuse a damaged one, and one of another network."""
        if not self.state.is_file():
            return None
        replies: dict[tuple[int, Kind], bytes] = {}
        try:
            facts, tensors = load_sealed(self.state)
            parts: dict[str, dict[str, Tensor]] = {part: {} for part in facts["parts"]}
            for name, tensor in tensors.items():
                part, _, key = name.partition("/")
                if part == "reply":
                    number, _, kind = key.partition("/")
                    replies[int(number), Kind[kind]] = tensor.numpy().tobytes()
                else:
                    parts[part][key] = tensor
            had = facts["model"]
        except (DamagedError, KeyError, ValueError) as error:
            what = str(error) if isinstance(error, DamagedError) else f"{self.state} is damaged ({one_line(error)})"
            raise Refusal("state", f"{what}; remove it, and the client starts again") from error
        if had != model:
            raise Refusal(
                "model",
                f"{self.state} is of the network {had!r}, not of {model!r}; use --model {had}, or remove the file to "
                "start again",
            )
        return SavedState(parts, replies)

    def save(
        self, client: Client, model: str, round_number: int, kind: Kind, reply: bytes, before: SavedState | None,
        trained: Mapping[str, Any],
    ) -> None:  # fmt: skip
        """Write the client's changing parts, the facts of its network and the last two rounds' replies atomically."""
        replies = {**(before.replies if before is not None else {}), (round_number, kind): reply}
        last_two = sorted({number for number, _ in replies})[-2:]
        parts = parts_of(client)
        tensors = {f"{part}/{key}": host_copy(value) for part, values in parts.items() for key, value in values.items()}
        for (number, asked), frame in replies.items():
            if number in last_two:
                name = f"reply/{number}/{asked.name}"
                tensors[name] = torch.frombuffer(bytearray(frame), dtype=torch.uint8)
        with _writing(self.state):
            facts = {"client": self.client, "model": model, "parts": list(parts), TRAINED: dict(trained)}
            save_sealed(self.state, tensors, facts)


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Turn errors of the disk into a Refusal."""
    try:
        yield
    except (OSError, safetensors.SafetensorError) as error:
        raise Refusal(
            "no-space", f"cannot write {path}: {disk_words(error)}; free some space, and the round is asked again"
        ) from error
