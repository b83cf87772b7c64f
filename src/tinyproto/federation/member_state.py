"""What a client keeps between rounds: one file, whole or as it was: its networks, and the replies of its last round."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import safetensors
import torch
from torch import Tensor

from tinyproto.algorithms.base import Client
from tinyproto.errors import DamagedError, one_line
from tinyproto.federation.refusal import Refusal
from tinyproto.storage.client_files import parts_of
from tinyproto.storage.tensor_files import disk_words, host_copy, load_sealed, save_sealed, sealed_facts
from tinyproto.tracking.run_folder import write_atomic
from tinyproto.wire.frame import Kind

_ORDER = {Kind.HELLO: 0, Kind.EVALUATE: 1, Kind.TRAIN: 2}  # of what a client is asked in one round
_REPLY, _EARLIER = "reply/", "earlier/"
UNREADABLE = (DamagedError, KeyError, ValueError)


Replies = Mapping[Kind, bytes]
"""What a client replied in one round, by kind of frame."""


@dataclass(frozen=True)
class Kept:
    """A client after the last round that it did: its parts, and what it replied in that round and in the one before.

    A coordinator whose newest checkpoint is damaged repeats the round before the one that its clients are in.
    """

    round_number: int
    parts: Mapping[str, Mapping[str, Tensor]]
    replies: Replies
    earlier_round: int = 0  # 0: none
    earlier: Replies = field(default_factory=dict)

    def reply(self, round_number: int, kind: Kind) -> bytes | None:
        """Return what it replied then; None if that is not kept."""
        known = {self.earlier_round: self.earlier, self.round_number: self.replies}
        return known.get(round_number, {}).get(kind)

    def is_past(self, round_number: int, kind: Kind) -> bool:
        """Whether a frame asks for what lies before that, or is that."""
        done = max(_ORDER[kind] for kind in self.replies)
        return (round_number, _ORDER[kind]) <= (self.round_number, done)


class MemberFiles:
    """The files of one client in one federation: `state/FEDERATION/`."""

    def __init__(self, folder: Path, client: int) -> None:
        self.folder = folder
        self.client = client
        self.state = folder / f"client-{client}.safetensors"
        self.terms = folder / "terms.json"

    @contextmanager
    def alone(self) -> Iterator[None]:
        """While open no other process answers for this client: asked twice at once, the second finds the reply."""
        try:
            for folder in (self.folder.parent, self.folder):  # what is learnt from its data is the client's alone
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = (self.folder / "lock").open("ab")
        except OSError as error:
            raise _no_room(self.folder, error) from error
        with lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def read_terms(self) -> str | None:
        """As they were accepted; None where nobody has said hello."""
        try:
            return self.terms.read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        except OSError as error:
            raise Refusal("state", f"cannot read {self.terms}: {one_line(error)}") from error

    def write_terms(self, text: str) -> None:
        """Remember what was accepted."""
        try:
            write_atomic(self.terms, text)
        except OSError as error:
            raise _no_room(self.terms, error) from error

    def load(self) -> Kept | None:
        """None before the first round."""
        if not self.state.is_file():
            return None
        parts: dict[str, dict[str, Tensor]] = {}
        replies: dict[str, dict[Kind, bytes]] = {_REPLY: {}, _EARLIER: {}}
        try:
            facts, tensors = load_sealed(self.state)
            for part in facts["parts"]:
                parts[part] = {}
            for name, tensor in tensors.items():
                part, slash, key = name.partition("/")
                if part + slash in replies:
                    replies[part + slash][Kind[key]] = tensor.numpy().tobytes()
                else:
                    parts[part][key] = tensor
            return Kept(int(facts["round"]), parts, replies[_REPLY], int(facts.get("earlier", 0)), replies[_EARLIER])
        except UNREADABLE as error:
            raise self._damaged(error) from error

    def check_model(self, model: str) -> None:
        """Refuse to go on with another network than the one that is kept; earlier releases did not say which it is."""
        if not self.state.is_file():
            return
        try:
            had = sealed_facts(self.state).get("model")
        except UNREADABLE as error:
            raise self._damaged(error) from error
        if had is not None and had != model:
            raise Refusal(
                "model",
                f"{self.state} is of the network {had!r}, not of {model!r}; go on with --model {had}, or remove the "
                "file, and the client starts anew",
            )

    def _damaged(self, error: Exception) -> Refusal:
        what = str(error) if isinstance(error, DamagedError) else f"{self.state} is damaged ({one_line(error)})"
        return Refusal("state", f"{what}; remove it, and the client starts anew")

    def save(
        self, client: Client, model: str, round_number: int, kind: Kind, reply: bytes, before: Kept | None
    ) -> None:
        """Write all that changes of a client and what it replied, or raise and leave the file as it was."""
        replies, earlier_round, earlier = {kind: reply}, 0, dict[Kind, bytes]()
        if before is not None and before.round_number == round_number:
            replies = {**before.replies, **replies}
            earlier_round, earlier = before.earlier_round, dict(before.earlier)
        elif before is not None:
            earlier_round, earlier = before.round_number, dict(before.replies)
        parts = parts_of(client)
        tensors = {f"{part}/{key}": host_copy(value) for part, values in parts.items() for key, value in values.items()}
        for prefix, said in ((_REPLY, replies), (_EARLIER, earlier)):
            for asked, frame in said.items():
                tensors[f"{prefix}{asked.name}"] = torch.frombuffer(bytearray(frame), dtype=torch.uint8)
        facts = {"client": self.client, "model": model, "round": round_number, "earlier": earlier_round,
                 "parts": list(parts)}  # fmt: skip
        try:
            save_sealed(self.state, tensors, facts)
        except (OSError, safetensors.SafetensorError) as error:
            raise _no_room(self.state, error) from error


def _no_room(path: Path, error: Exception) -> Refusal:
    return Refusal(
        "no-space", f"cannot write {path}: {disk_words(error)}; free some space, the round will be asked again"
    )
