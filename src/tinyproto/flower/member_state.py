"""What a client keeps between rounds: one file, whole or as it was: its networks, and the replies of its last round."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import safetensors
import torch
from torch import Tensor

from tinyproto.algorithms.base import Client
from tinyproto.errors import DamagedError, one_line
from tinyproto.flower.refusal import Refusal
from tinyproto.simulation.clients import parts_of
from tinyproto.simulation.tensor_files import disk_words, load_sealed, own, save_sealed, sealed_facts
from tinyproto.tracking.run_folder import write_whole
from tinyproto.wire.frame import Kind

_ORDER = {Kind.HELLO: 0, Kind.EVALUATE: 1, Kind.TRAIN: 2}  # of what a client is asked in one round
_REPLY = "reply/"
UNREADABLE = (DamagedError, KeyError, ValueError)


@dataclass(frozen=True)
class Kept:
    """A client after the last round that it did: its parts, and what it replied in that round to each kind of frame."""

    round_number: int
    parts: Mapping[str, Mapping[str, Tensor]]
    replies: Mapping[Kind, bytes]

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
            write_whole(self.terms, text)
        except OSError as error:
            raise _no_room(self.terms, error) from error

    def load(self) -> Kept | None:
        """None before the first round."""
        if not self.state.is_file():
            return None
        parts: dict[str, dict[str, Tensor]] = {}
        replies: dict[Kind, bytes] = {}
        try:
            facts, tensors = load_sealed(self.state)
            for part in facts["parts"]:
                parts[part] = {}
            for name, tensor in tensors.items():
                if name.startswith(_REPLY):
                    replies[Kind[name.removeprefix(_REPLY)]] = tensor.numpy().tobytes()
                else:
                    part, _, key = name.partition("/")
                    parts[part][key] = tensor
            return Kept(int(facts["round"]), parts, replies)
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

    def save(self, client: Client, model: str, round_number: int, replies: Mapping[Kind, bytes]) -> None:
        """All that changes of a client and what it replies, or an error and the file is as it was."""
        parts = parts_of(client)
        tensors = {f"{part}/{key}": own(value) for part, values in parts.items() for key, value in values.items()}
        for kind, frame in replies.items():
            tensors[f"{_REPLY}{kind.name}"] = torch.frombuffer(bytearray(frame), dtype=torch.uint8)
        facts = {"client": self.client, "model": model, "round": round_number, "parts": list(parts)}
        try:
            save_sealed(self.state, tensors, facts)
        except (OSError, safetensors.SafetensorError) as error:
            raise _no_room(self.state, error) from error


def _no_room(path: Path, error: Exception) -> Refusal:
    return Refusal(
        "no-space", f"cannot write {path}: {disk_words(error)}; free some space, the round will be asked again"
    )
