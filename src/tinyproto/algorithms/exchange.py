"""Methods that exchange parts of networks: what travels of a module, and a server that averages it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor, nn

from tinyproto.algorithms.base import ClientInfo, FederationSpec, Round, Update
from tinyproto.core.aggregate import tensor_mean
from tinyproto.core.messages import Message, Shape
from tinyproto.core.streams import Streams
from tinyproto.core.task import State, Trainer
from tinyproto.errors import ModelError
from tinyproto.models.build import ModelEntry, ModelShape, build_model
from tinyproto.models.count import count_parameters
from tinyproto.models.split import SplitModel

Weighting = Literal["samples", "uniform"]


def exchanged(module: nn.Module, *, buffers: bool) -> dict[str, Tensor]:
    """What travels of a module: its parameters and, where asked for, its running statistics; never counters."""
    tensors: dict[str, Tensor] = dict(module.named_parameters())
    if buffers:
        tensors |= {name: value for name, value in module.named_buffers() if value.is_floating_point()}
    return {name: value.detach() for name, value in tensors.items()}


@torch.no_grad()
def overwrite(module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Put what arrived into a module; what did not travel stays."""
    own = dict(module.named_parameters()) | dict(module.named_buffers())
    for name, value in tensors.items():
        own[name].copy_(value)


def shapes_of(tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    """Names and shapes, which both sides agree on."""
    return {name: tuple(value.shape) for name, value in tensors.items()}


def host(tensors: Mapping[str, Tensor]) -> State:
    """Copies on the host in float32, which is what the server and the wire know."""
    return {name: value.detach().to("cpu", torch.float32, copy=True) for name, value in tensors.items()}


def drawn(entry: ModelEntry, shape: ModelShape, streams: Streams) -> SplitModel:
    """The network that the server draws before round 1, the same wherever it is drawn from this seed."""
    return build_model(entry, shape, streams.derive("shared network"))


def blueprint(entry: ModelEntry, shape: ModelShape) -> SplitModel:
    """A network to read names and shapes from: without memory, unless its factory insists on some."""
    try:
        with torch.device("meta"), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that weights which a factory loads have nowhere to go
            return build_model(entry, shape, seed=0)
    except ModelError:
        return build_model(entry, shape, seed=0)


def smallest(federation: FederationSpec) -> ModelEntry:
    """The network of the federation with the fewest parameters; the first of several."""
    return min(federation.networks, key=lambda entry: count_parameters(blueprint(entry, federation.shape)))


class Coder(Protocol):
    """How tensors travel: applied where they leave, undone where they arrive."""

    @property
    def shapes(self) -> Mapping[str, Shape]:
        """Of everything that may travel."""
        ...

    @property
    def parts(self) -> Mapping[str, tuple[str, ...]]:
        """The names that may stand in a tensor's place."""
        ...

    def encode(self, tensors: State, round_: Round) -> State:
        """Tensors to what travels."""
        ...

    def decode(self, travelled: Mapping[str, Tensor]) -> State:
        """What arrived to tensors."""
        ...


@dataclass(frozen=True)
class Whole:
    """Tensors travel as they are."""

    shapes: Mapping[str, tuple[int, ...]]

    @property
    def parts(self) -> Mapping[str, tuple[str, ...]]:
        """None."""
        return {}

    def encode(self, tensors: State, round_: Round) -> State:  # noqa: ARG002
        """Unchanged."""
        return tensors

    def decode(self, travelled: Mapping[str, Tensor]) -> State:
        """Unchanged."""
        return dict(travelled)


class MeanServer:
    """Its state is what it sends: the mean of the last uploads, or its own draw before there were any."""

    def __init__(self, draw: Callable[[Streams], Mapping[str, Tensor]], weighting: Weighting, coder: Coder) -> None:
        self.draw = draw
        self.weighting = weighting
        self.coder = coder

    def init(self, streams: Streams) -> State:
        """The server's draw, whole."""
        return host(self.draw(streams))

    def broadcast(self, state: State, client: ClientInfo) -> Message:  # noqa: ARG002
        """The same for every client."""
        return Message(tensors=state)

    def aggregate(
        self, state: State, updates: Sequence[Update], trainer: Trainer, round_: Round, streams: Streams  # noqa: ARG002
    ) -> State:  # fmt: skip
        """The mean of all uploads, each client weighing as much as its samples, or all alike."""
        received = [update for update in updates if update.message.tensors]
        if not received:
            return state
        tensors = [self.coder.decode(update.message.tensors) for update in received]
        weights = [update.client.train_samples if self.weighting == "samples" else 1 for update in received]
        return self.coder.encode(tensor_mean(tensors, weights), round_)
