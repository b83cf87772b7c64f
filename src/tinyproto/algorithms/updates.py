"""A shared network that travels as updates: the change since the version that the receiver holds.

Both sides keep the last version that was sent. A client sends the change that its training made to that version. The
server adds the mean change to it, as it was compressed, so that it holds what its receivers reconstruct.

A client receives an update only if the server knows that it holds the version before: its upload, which names that
version, was part of the last mean. Any other client (new, dropped, late, refused, not chosen) receives the network
whole. A client that cannot apply an update sends no network, and so receives it whole the next time. So does a client
whose sum has other bits than the server's, which the version's checksum shows.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from tinyproto.algorithms.auxiliary import AuxiliaryClient
from tinyproto.algorithms.base import Client, ClientInfo, Round, Update
from tinyproto.algorithms.exchange import MeanServer, host, overwrite, tensor_mean
from tinyproto.core.prototypes import Message, Prototypes
from tinyproto.core.streams import Streams
from tinyproto.core.task import BatchPlan, FitResult, State, Task, Trainer

BASE, VERSION = "base", "version"
"""Metrics: the version that an update is to be added to, and the version that a download leads to."""

HELD, CHANGE = "held ", "change "
"""How the names of the version held, and of the last update sent, begin in a state."""

UNKNOWN = -1
"""The version of a client that does not hold what the server sent last."""


def version_of(tensors: Mapping[str, Tensor]) -> int:
    """Return a checksum of a network's tensors, by which both sides name it: 24 bits, which a float32 holds."""
    checksum = 0
    for _, tensor in sorted(tensors.items()):
        checksum = zlib.crc32(tensor.contiguous().numpy().data, checksum)
    return checksum & 0xFFFFFF


def with_prefix(tensors: Mapping[str, Tensor], prefix: str) -> State:
    """Return tensors with the prefix before each name."""
    return {prefix + name: tensor for name, tensor in tensors.items()}


def without_prefix(state: Mapping[str, Tensor], prefix: str) -> State:
    """Return the tensors of a state whose names have the prefix, on the host and without it."""
    return {name.removeprefix(prefix): tensor.cpu() for name, tensor in state.items() if name.startswith(prefix)}


def added(tensors: Mapping[str, Tensor], change: Mapping[str, Tensor]) -> State:
    """Return the tensors after a change."""
    return {name: tensor + change[name] for name, tensor in tensors.items()}


class UpdateClient(AuxiliaryClient):
    """Keeps the version of the shared network that it received last, and sends what training changed in it."""

    def init(self, client: Client, streams: Streams) -> None:
        """Give a client its modules, and room for the version it will hold."""
        super().init(client, streams)
        self._hold(client, host(self.trained(client)), UNKNOWN)

    def receive(self, client: Client, message: Message) -> Prototypes | None:
        """Copy the server's shared network, or add its update; an update that was added before changes nothing."""
        if not message.tensors:
            return None
        version, base = int(message.metrics.get(VERSION, UNKNOWN)), message.metrics.get(BASE)
        held, tensors = int(client.state[VERSION]), self._held(client)
        if base is None:
            held, tensors = version, dict(message.tensors)
        elif held == int(base) != version:
            tensors = added(tensors, self.coder.decode(message.tensors))
            held = version_of(tensors)  # another kind of processor may multiply factors with different last bits
        self._hold(client, tensors, held if held == version else UNKNOWN)
        if held == version:
            overwrite(client.modules["auxiliary"], tensors)
        return None

    def task(self, client: Client, plan: BatchPlan, seed: int) -> Task:
        """Return the client's epochs; the loss needs nothing of what it remembers."""
        return replace(super().task(client, plan, seed), context={})

    def update(self, client: Client, result: FitResult, round_: Round) -> Message:  # noqa: ARG002
        """Return what training changed, or nothing if the server's version is not known here."""
        version, held = int(client.state[VERSION]), self._held(client)
        if version == UNKNOWN:
            return Message()
        change = {name: tensor - held[name] for name, tensor in host(self.trained(client)).items()}
        return Message(tensors=self.coder.encode(change, round_), metrics={BASE: float(version)})

    @staticmethod
    def _held(client: Client) -> State:
        return without_prefix(client.state, HELD)

    @staticmethod
    def _hold(client: Client, tensors: Mapping[str, Tensor], version: int) -> None:
        client.state = {**with_prefix(tensors, HELD), VERSION: torch.tensor(version)}


class UpdateServer(MeanServer):
    """Adds the mean of the clients' changes to the version that it sent, and sends the sum or the change."""

    def init(self, streams: Streams) -> State:
        """Return the server's draw, which no client is known to hold."""
        return self._state(super().init(streams), {}, UNKNOWN, [])

    def broadcast(self, state: State, client: ClientInfo) -> Message:
        """Return the last change to a client that holds the version before it, and the whole network to any other."""
        version = {VERSION: float(state[VERSION])}
        if bool((state["in_step"] == client.id).any()):
            return Message(tensors=without_prefix(state, CHANGE), metrics={**version, BASE: float(state[BASE])})
        return Message(tensors=without_prefix(state, HELD), metrics=version)

    def aggregate(
        self, state: State, updates: Sequence[Update], trainer: Trainer, round_: Round, streams: Streams  # noqa: ARG002
    ) -> State:  # fmt: skip
        """Add the mean change, as compressed; an upload that is not based on the version sent takes no part."""
        version = int(state[VERSION])
        based = [update for update in updates if update.message.metrics.get(BASE) == version and update.message.tensors]
        if not based:
            return state
        changes = [self.coder.decode(update.message.tensors) for update in based]
        sent = self.coder.encode(tensor_mean(changes, [1.0] * len(changes)), round_)
        held = added(without_prefix(state, HELD), self.coder.decode(sent))
        return self._state(held, sent, version, [update.client.id for update in based])

    @staticmethod
    def _state(held: State, sent: State, base: int, in_step: Sequence[int]) -> State:
        return {
            **with_prefix(held, HELD),
            **with_prefix(sent, CHANGE),
            VERSION: torch.tensor(version_of(held)),
            BASE: torch.tensor(base),
            "in_step": torch.tensor(in_step, dtype=torch.int64),
        }
