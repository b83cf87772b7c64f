"""Methods that exchange parts of networks: the tensors of a module that travel, and a server that averages them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from tinyproto.algorithms.base import Client, ClientInfo, FederationSpec, Round, Update
from tinyproto.algorithms.local import LocalClient
from tinyproto.core.prototypes import Message, Prototypes
from tinyproto.core.streams import Streams
from tinyproto.core.task import FitResult, State, Trainer
from tinyproto.errors import ModelError
from tinyproto.models.build import ModelEntry, ModelShape, build_model, entry_name
from tinyproto.models.count import count_parameters
from tinyproto.models.split import SplitModel

Weighting = Literal["samples", "uniform"]


def exchanged(module: nn.Module, *, buffers: bool) -> dict[str, Tensor]:
    """Return the tensors of a module that travel: its parameters and, with `buffers`, its running statistics."""
    tensors: dict[str, Tensor] = dict(module.named_parameters())
    if buffers:
        tensors |= {name: value for name, value in module.named_buffers() if value.is_floating_point()}
    return {name: value.detach() for name, value in tensors.items()}


@torch.no_grad()
def overwrite(module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Copy received tensors into a module; all others stay."""
    present = dict(module.named_parameters()) | dict(module.named_buffers())
    if tensors:
        torch._foreach_copy_([present[name] for name in tensors], list(tensors.values()))


def shapes_of(tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    """Return names and shapes, which both sides agree on."""
    return {name: tuple(value.shape) for name, value in tensors.items()}


def host(tensors: Mapping[str, Tensor]) -> State:
    """Return copies on the host in float32, the type of the server and the wire."""
    return {name: value.detach().to("cpu", torch.float32, copy=True) for name, value in tensors.items()}


def drawn(entry: ModelEntry, shape: ModelShape, streams: Streams) -> SplitModel:
    """Return the network that the server draws before round 1, equal on each machine for equal seeds."""
    return build_model(entry, shape, streams.derive("shared network"))


def blueprint(entry: ModelEntry, shape: ModelShape) -> SplitModel:
    """Return a network to read names and shapes from, without memory unless its factory insists on it."""
    try:
        with torch.device("meta"), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about weights that a factory loads, which have no memory to go to
            return build_model(entry, shape, seed=0)
    except ModelError:
        return build_model(entry, shape, seed=0)


def smallest(federation: FederationSpec) -> ModelEntry:
    """Return the network of the federation with the fewest parameters, the first of several."""
    return min(federation.known_networks, key=lambda entry: count_parameters(blueprint(entry, federation.shape)))


def equal_heads(federation: FederationSpec, done: str) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the head's parameters; raise a ValueError if they differ, since heads cannot be `done`."""
    first, *others = federation.known_networks
    heads = {
        entry: shapes_of(exchanged(blueprint(entry, federation.shape).head, buffers=False))
        for entry in federation.known_networks
    }
    for entry in others:
        if heads[entry] != heads[first]:
            raise ValueError(
                f"the heads of {entry_name(first)} and {entry_name(entry)} have different parameters, so they cannot "
                f"be {done}; use networks with equal heads"
            )
    return heads[first]


@dataclass(frozen=True)
class Coder:
    """The forms in which tensors leave and arrive; by default they travel as they are."""

    encode: Callable[[State, Round], State] = lambda tensors, _round: tensors
    decode: Callable[[Mapping[str, Tensor]], State] = dict


UNCHANGED = Coder()


class PartClient(LocalClient):
    """Trains on cross-entropy like Local, starting from the part of the network that all clients share."""

    def __init__(self, learning_rate: float, part: Callable[[SplitModel], nn.Module], *, buffers: bool) -> None:
        super().__init__(learning_rate)
        self.part = part
        self.buffers = buffers

    def receive(self, client: Client, message: Message) -> Prototypes | None:
        """Replace the client's part by the shared one, before evaluation and training."""
        overwrite(self.part(client.model), message.on(client.device).tensors)
        return None

    def update(self, client: Client, result: FitResult, round_: Round) -> Message:  # noqa: ARG002
        """Return the client's trained part."""
        part = exchanged(self.part(client.model), buffers=self.buffers)
        return Message(tensors={name: value.float() for name, value in part.items()})


class MeanServer:
    """Sends its state: the mean of the last uploads, or its own draw before round 1."""

    def __init__(
        self, draw: Callable[[Streams], Mapping[str, Tensor]], weighting: Weighting, coder: Coder = UNCHANGED
    ) -> None:
        self.draw = draw
        self.weighting = weighting
        self.coder = coder

    def init(self, streams: Streams) -> State:
        """Return the server's draw, not encoded."""
        return host(self.draw(streams))

    def broadcast(self, state: State, client: ClientInfo) -> Message:  # noqa: ARG002
        """Return the state, the same for each client."""
        return Message(tensors=state)

    def aggregate(
        self, state: State, updates: Sequence[Update], trainer: Trainer, round_: Round, streams: Streams  # noqa: ARG002
    ) -> State:  # fmt: skip
        """Return the mean of all uploads, weighted by training samples or uniformly."""
        received = [update for update in updates if update.message.tensors]
        if not received:
            return state
        tensors = [self.coder.decode(update.message.tensors) for update in received]
        weights = [update.client.train_samples if self.weighting == "samples" else 1 for update in received]
        return self.coder.encode(tensor_mean(tensors, weights), round_)


def tensor_mean(uploads: Sequence[Mapping[str, Tensor]], weights: Sequence[float]) -> State:
    """Return Σ_i w_i·θ_i / Σ_i w_i, tensor by tensor in float64; the plain mean if all weights are zero."""
    total = float(sum(weights))
    shares = [weight / total if total else 1 / len(weights) for weight in weights]
    means = {}
    for name, first in uploads[0].items():
        mean = torch.zeros(first.shape, dtype=torch.float64)
        wide = torch.empty_like(mean)
        for upload, share in zip(uploads, shares, strict=True):
            mean += wide.copy_(upload[name]).mul_(share)
        means[name] = mean.float()
    return means
