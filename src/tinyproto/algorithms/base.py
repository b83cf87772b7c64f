"""What an algorithm is: a client side, a server side, and what travels between them.

Both sides are plain objects that hold hyper-parameters only; all that changes lives in `Client` and in the server's
`State`, so either side can be checkpointed, rebuilt in another process, or run alone on another machine.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from tinyproto.core.messages import Message, Shape
from tinyproto.core.prototypes import Prototypes
from tinyproto.core.streams import Streams
from tinyproto.core.task import BatchPlan, FitResult, Loss, ParamGroup, State, Task, TensorData, Trainer
from tinyproto.models.build import ModelEntry, ModelShape
from tinyproto.models.split import SplitModel
from tinyproto.wire.values import EXACT, WireSettings

PrototypeSource = Literal["fresh", "running", "stale"]
"""Where local prototypes come from: an eval-mode pass with the just-trained model (fresh) or with the model before
training (stale), or the features seen while training (running)."""

ClientPrototypes = Literal[PrototypeSource, "received"]
"""The same of a method, or with the model as it arrived, where that takes the place of the one that was trained."""


@dataclass(frozen=True)
class FederationSpec:
    """What all members of a federation agree on before it starts."""

    num_classes: int
    proto_dim: int
    learning_rate: float
    input_shape: tuple[int, ...] = ()
    head_dropout: float = 0.0
    networks: tuple[ModelEntry, ...] = ()  # client i has network i modulo their number
    wire: WireSettings = EXACT

    @property
    def shape(self) -> ModelShape:
        """What a network of this federation has to fit."""
        return ModelShape(self.input_shape, self.proto_dim, self.num_classes, self.head_dropout)


class Round(NamedTuple):
    """Where in the run we are; rounds count from 1."""

    number: int
    total: int


@dataclass(frozen=True)
class ClientInfo:
    """What the server knows of a client, from its hello: sizes, never the sizes of its classes."""

    id: int
    train_samples: int
    counted_samples: int  # n_i as the scaling counts it: training samples, or training and test
    counted_classes: int  # K_i, counted over the same samples


@dataclass
class Client:
    """One client: its network, its data, and what it remembers between rounds."""

    id: int
    architecture: Hashable  # equal for clients whose networks may be stacked
    model: SplitModel
    train: TensorData
    test: TensorData
    class_counts: Tensor  # (K,) int64: n_ij
    local: Prototypes  # (K, d), none present before the first training
    modules: nn.ModuleDict = field(default_factory=nn.ModuleDict)  # auxiliary networks
    state: State = field(default_factory=dict)
    received: Prototypes | None = None  # (K, d), the global prototypes that last arrived, where the method has any

    @property
    def num_classes(self) -> int:
        """K."""
        return len(self.class_counts)

    @property
    def device(self) -> torch.device:
        """Where the client's data and network are."""
        return self.train.labels.device


def client_task(
    client: Client, plan: BatchPlan, seed: int, *, key: tuple[Hashable, ...], loss: Loss, part_names: tuple[str, ...],
    learning_rate: float, clip_norm: float | None = None, context: State | None = None,
) -> Task:  # fmt: skip
    """A client's epochs on its own samples: its network as `model`, and its further modules, each by plain SGD."""
    modules: dict[str, nn.Module] = {"model": client.model, **client.modules}
    return Task(
        name=f"client {client.id}",
        key=(*key, client.architecture),
        modules=nn.ModuleDict(modules),
        groups=[ParamGroup(name, learning_rate, clip_norm) for name in modules],
        context={} if context is None else context,
        loss=loss,
        part_names=part_names,
        data=client.train,
        plan=plan,
        num_classes=client.num_classes,
        seed=seed,
    )


class Update(NamedTuple):
    """One client's upload, as the server sees it."""

    client: ClientInfo
    message: Message


class ClientSide(Protocol):
    """What runs on a client."""

    @property
    def prototype_source(self) -> ClientPrototypes:
        """How this method wants `Client.local` computed."""
        ...

    def init(self, client: Client, streams: Streams) -> None:
        """Give a new client whatever it has to remember."""
        ...

    def receive(self, client: Client, message: Message) -> Prototypes | None:
        """Take in what the server sent; returns the global prototypes (K, d) to classify with, if there are any."""
        ...

    def task(self, client: Client, plan: BatchPlan, seed: int) -> Task:
        """The client's training of this round."""
        ...

    def update(self, client: Client, result: FitResult, round_: Round) -> Message:
        """What the client sends after training."""
        ...


class ServerSide(Protocol):
    """What runs on the server."""

    def init(self, streams: Streams) -> State:
        """The state before round 1."""
        ...

    def broadcast(self, state: State, client: ClientInfo) -> Message:
        """What one client is sent."""
        ...

    def aggregate(
        self, state: State, updates: Sequence[Update], trainer: Trainer, round_: Round, streams: Streams
    ) -> State:
        """The next state from the uploads of this round, which come in order of client id."""
        ...


Derived = Mapping[str, int | float]
"""Hyper-parameters, by name, that a method chose by itself, where it was not given them."""


def nothing_derived(clients: Sequence[ClientInfo]) -> Derived:  # noqa: ARG001
    """Of a method that takes its hyper-parameters as they are given."""
    return {}


Watched = Mapping[str, float]
"""Numbers of the server's state, by name, that every round's record keeps."""


def nothing_watched(state: State) -> Watched:  # noqa: ARG001
    """Of a method whose state has no number worth a record."""
    return {}


@dataclass(frozen=True)
class Algorithm:
    """Both sides of a method, and what of it the outside has to know."""

    name: str
    client: ClientSide
    server: ServerSide
    table2_parameters: Callable[[Sequence[int]], int | None]  # Kᵢ of all clients → parameters per round by Table 2
    row_width: int | None = None  # values per class row on the wire; None where no rows travel
    tensor_shapes: Mapping[str, Shape] = field(default_factory=dict)  # the tensors that may travel
    tensor_parts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # which of them may replace another
    masks: Tensor | None = None  # (K, d) CPS masks, which never travel
    classifies_by_rows: bool = False  # whether clients are evaluated by the rows they are sent, which then are all
    agreed: Mapping[str, str] = field(default_factory=dict)  # what else both sides have to mean alike
    derived: Callable[[Sequence[ClientInfo]], Derived] = nothing_derived  # in a round with uploads of these clients
    watched: Callable[[State], Watched] = nothing_watched


@dataclass(frozen=True)
class AlgorithmSpec:
    """How a config's entry becomes an algorithm: a frozen dataclass of hyper-parameters and a function of it."""

    name: str
    title: str
    hyper: type[Any]
    build: Callable[[Any, FederationSpec], Algorithm]


def not_negative(**values: float) -> None:
    """Refuse hyper-parameters that have to be zero or more."""
    for name, value in values.items():
        if not 0 <= value < math.inf:
            raise ValueError(f"{name} must not be negative, not {value}")


def positive(**values: float) -> None:
    """Refuse hyper-parameters that have to be above zero."""
    for name, value in values.items():
        if not (value > 0 and math.isfinite(value)):
            raise ValueError(f"{name} must be above 0, not {value}")
