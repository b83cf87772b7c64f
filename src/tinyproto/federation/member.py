"""A client of a federation, without Flower: bytes in, bytes out, everything that lasts on disk.

In deployment every message is a process of its own, so a member is built from its folder each time: `join.json` says
where its data is and which network it has, `state/FEDERATION/` holds the terms it accepted and what it has become.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from pydantic import Field

from tinyproto.algorithms.base import Client, ClientInfo
from tinyproto.builder import resolve_device
from tinyproto.config.schema import Section
from tinyproto.core.streams import one_thread
from tinyproto.data.images import FederatedData
from tinyproto.engine.measure import Stopwatch
from tinyproto.engine.training import make_trainer
from tinyproto.errors import ModelError, WireError, one_line
from tinyproto.federation.client_data import OwnDataSection, own_data
from tinyproto.federation.files import read_section
from tinyproto.federation.member_state import Kept, MemberFiles
from tinyproto.federation.refusal import Refusal
from tinyproto.federation.terms import Agreement, accepted_terms
from tinyproto.models import build_model, rehearse_training
from tinyproto.storage.client_files import put_back
from tinyproto.wire.frame import Kind, unpack
from tinyproto.wire.validate import open_frame

ASKED = (Kind.HELLO, Kind.TRAIN, Kind.EVALUATE)


class JoinFile(Section):
    """`join.json` in a client's folder: what is the client's own."""

    data: OwnDataSection
    model: str = Field(description="a registered network, or a dotted path package.module:factory")
    device: str = "cpu"

    @classmethod
    def read(cls, folder: Path) -> JoinFile:
        """Checked strictly."""
        return read_section(cls, folder / "join.json")


class Member:
    """Client `client` of whichever federation asks it."""

    def __init__(self, folder: Path, client: int) -> None:
        self.folder = folder
        self.client = client
        self.join = JoinFile.read(folder)
        self.device = torch.device(resolve_device(self.join.device, "device in join.json"))
        self.rounds = 0  # of the federation last answered

    def hello(self, text: str) -> str:
        """Look at a federation's terms and accept them, which is remembered; its token. Or a Refusal says why not."""
        agreement = accepted_terms(text, self.join.model)
        terms = agreement.terms
        if self.client >= terms.clients:
            raise Refusal("member", f"the federation has clients 0 … {terms.clients - 1}, this is {self.client}")
        shape = agreement.setup.spec.shape
        try:
            with one_thread():
                rehearse_training(build_model(self.join.model, shape, seed=0), self.join.model, shape)
        except ModelError as error:
            raise Refusal("model", str(error)) from error
        own_data(self.join.data, self.client, terms)
        files = self._files(terms.federation)
        with files.alone():
            files.check_model(self.join.model)
            if files.read_terms() != text:
                files.write_terms(text)
        return terms.federation

    def answer(self, federation: str, frame: bytes) -> bytes:
        """The reply to a frame of a federation whose terms were accepted.

        Asked again for either of the last two rounds it did, the client returns the same bytes and does nothing; what
        lies before that is refused. The state on disk changes after a round is done, or not at all.
        """
        if not federation.isalnum():
            raise Refusal("unknown", f"{federation!r} is no federation's token")
        files = self._files(federation)
        if not files.terms.is_file():
            raise Refusal("unknown", f"nobody has said hello for the federation {federation}")
        with files.alone(), one_thread():
            agreement = accepted_terms(files.read_terms() or "", self.join.model)
            self.rounds = agreement.terms.train.rounds
            try:
                return self._answer(files, agreement, frame)
            except WireError as error:
                raise Refusal("frame", str(error)) from error

    def _answer(self, files: MemberFiles, agreement: Agreement, frame: bytes) -> bytes:
        asked, _ = unpack(frame)
        files.check_model(self.join.model)
        kept = files.load()
        if kept is not None and asked.kind in ASKED and kept.is_past(asked.round_number, asked.kind):
            open_frame(frame, agreement.setup.expectation, self.client, round_number=None, kinds=ASKED)
            if asked.kind is not Kind.HELLO:
                return _said_before(kept, asked.round_number, asked.kind)
        own = _Own(self, agreement, own_data(self.join.data, self.client, agreement.terms), kept)
        runtime = agreement.setup.clients(own, make_trainer("eager", self.device), Stopwatch(lambda: 0.0))
        reply = runtime.handle({self.client: frame})[self.client]
        if asked.kind is not Kind.HELLO:
            files.save(own[self.client], self.join.model, asked.round_number, asked.kind, reply, kept)
        return reply

    def _files(self, federation: str) -> MemberFiles:
        return MemberFiles(self.folder / "state" / federation, self.client)


def _said_before(kept: Kept, round_number: int, kind: Kind) -> bytes:
    reply = kept.reply(round_number, kind)
    if reply is not None:
        return reply
    raise Refusal(
        "stale", f"asked to {kind.name.lower()} in round {round_number}, but round {kept.round_number} is done already"
    )


@dataclass
class _Own:
    """The one client that is here, as the engine asks for clients; its network is built when it is first needed."""

    member: Member
    agreement: Agreement
    data: FederatedData
    kept: Kept | None

    def __contains__(self, client: object) -> bool:
        return client == self.member.client

    def __getitem__(self, client: int) -> Client:
        assert client == self.member.client
        return self._client

    def info(self, client: int) -> ClientInfo:
        """Sizes."""
        counts = self._counts
        return ClientInfo(client, len(self.data.shares[0].train), int(counts.sum()), int((counts > 0).sum()))

    @property
    def _counts(self) -> torch.Tensor:
        return self.data.counted(self.agreement.terms.prototypes.counted_samples)[0]

    @cached_property
    def _client(self) -> Client:
        placed, model = self.data.to(self.member.device), self.member.join.model
        samples = (placed.train(0), placed.test(0))
        client = self.agreement.setup.new_client(self.member.client, model, model, samples, self._counts)
        if self.kept is not None:
            try:
                put_back(client, self.kept.parts)
            except (RuntimeError, KeyError) as error:  # a network of the same name has other parameters by now
                raise Refusal(
                    "model", f"the state that is kept does not fit the network {model!r} any more: {one_line(error)}"
                ) from error
        return client
