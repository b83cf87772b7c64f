"""The parts of an algorithm: a client side, a server side, and what travels between them.

Both sides are plain objects that hold hyper-parameters only. Everything that changes lives in `Client` and in the
server's `State`, so either side can be saved, rebuilt in another process, or run alone on another machine.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from tinyproto.core.masks import mask_digest
from tinyproto.core.prototypes import Message, Prototypes, Shape
from tinyproto.core.streams import Streams
from tinyproto.core.task import BatchPlan, FitResult, Loss, ParamGroup, State, Task, TensorData, Trainer
from tinyproto.models.build import ModelEntry, ModelShape
from tinyproto.models.split import SplitModel
from tinyproto.wire.frame import federation_digest
from tinyproto.wire.validate import Expectation
from tinyproto.wire.values import EXACT, WireSettings

PrototypeSource = Literal["fresh", "running", "stale"]
"""Source of local prototypes: an eval-mode pass with the just-trained model (fresh) or with the model before training
(stale), or the features seen while training (running)."""

ClientPrototypes = Literal[PrototypeSource, "received"]
"""A prototype source, or a pass with the received model (received) in methods that replace the trained model."""


@dataclass(frozen=True)
class FederationSpec:
    """The facts that all members of a federation agree on before it starts."""

    num_classes: int
    proto_dim: int
    learning_rate: float
    input_shape: tuple[int, ...] = ()
    head_dropout: float = 0.0
    networks: tuple[ModelEntry, ...] = ()  # client i has network i modulo their number
    wire: WireSettings = EXACT
    vocabulary: int | None = None  # the number of token ids; None if inputs are floats
    head_dropout_in_place: bool = False

    @property
    def shape(self) -> ModelShape:
        """Return the shape that a network of this federation has to fit."""
        return ModelShape(
            self.input_shape, self.proto_dim, self.num_classes, self.head_dropout, self.vocabulary,
            self.head_dropout_in_place,
        )  # fmt: skip

    @property
    def known_networks(self) -> tuple[ModelEntry, ...]:
        """Return the clients' networks; raise ValueError if they are unknown, as a coordinator's may be."""
        if not self.networks:
            raise ValueError("parts of networks are exchanged, so the networks must be known; list them in `models`")
        return self.networks


class Round(NamedTuple):
    """A round of a run; rounds count from 1."""

    number: int
    total: int


@dataclass(frozen=True)
class ClientInfo:
    """A client as the server knows it from its hello: sizes, never the sizes of its classes."""

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
    received: Prototypes | None = None  # (K, d), the global prototypes received last, if the method has any

    @property
    def num_classes(self) -> int:
        """Return K."""
        return len(self.class_counts)

    @property
    def device(self) -> torch.device:
        """Return the device of the client's data and network."""
        return self.train.labels.device


class Update(NamedTuple):
    """One client's upload, as the server sees it."""

    client: ClientInfo
    message: Message


class ClientSide(Protocol):
    """The part of an algorithm that runs on a client."""

    @property
    def prototype_source(self) -> ClientPrototypes:
        """Return how this method computes `Client.local`."""
        ...

    def init(self, client: Client, streams: Streams) -> None:
        """Give a new client whatever it has to remember."""
        ...

    def receive(self, client: Client, message: Message) -> Prototypes | None:
        """Apply what the server sent; return the global prototypes (K, d) to classify with, if there are any.

        Clients may share the message and all it holds, so it must not be changed, nor what `client.state` keeps of it.
        Its rows are on the client's device, its tensors on the host.
        """
        ...

    def task(self, client: Client, plan: BatchPlan, seed: int) -> Task:
        """Return the client's training of this round."""
        ...

    def update(self, client: Client, result: FitResult, round_: Round) -> Message:
        """Return what the client sends after training. Its tensors are copied once all clients' updates are made."""
        ...


class LossClient:
    """A client side that trains with one loss and sends nothing; methods override what they do differently."""

    prototype_source: ClientPrototypes = "fresh"

    def __init__(
        self, key: tuple[Hashable, ...], loss: Loss, part_names: tuple[str, ...], learning_rate: float,
        clip_norm: float | None = None,
    ) -> None:  # fmt: skip
        self.key = key  # equal for equal losses
        self.loss = loss
        self.part_names = part_names
        self.learning_rate = learning_rate
        self.clip_norm = clip_norm

    def init(self, client: Client, streams: Streams) -> None:
        """Do nothing: there is nothing to remember."""

    def receive(self, client: Client, message: Message) -> Prototypes | None:  # noqa: ARG002
        """Return None: nothing is sent."""
        return None

    def task(self, client: Client, plan: BatchPlan, seed: int) -> Task:
        """Return the client's epochs: its network as `model` and its other modules, each by plain SGD.

        The context of the loss is what the client remembers.
        """
        modules: dict[str, nn.Module] = {"model": client.model, **client.modules}
        return Task(
            name=f"client {client.id}",
            key=(*self.key, client.architecture),
            modules=nn.ModuleDict(modules),
            groups=[ParamGroup(name, self.learning_rate, self.clip_norm) for name in modules],
            context=client.state,
            loss=self.loss,
            part_names=self.part_names,
            data=client.train,
            plan=plan,
            num_classes=client.num_classes,
            seed=seed,
        )

    def update(self, client: Client, result: FitResult, round_: Round) -> Message:  # noqa: ARG002
        """Return an empty message."""
        return Message()


class ServerSide(Protocol):
    """The part of an algorithm that runs on the server."""

    def init(self, streams: Streams) -> State:
        """Return the state before round 1."""
        ...

    def broadcast(self, state: State, client: ClientInfo) -> Message:
        """Return what one client is sent."""
        ...

    def aggregate(
        self, state: State, updates: Sequence[Update], trainer: Trainer, round_: Round, streams: Streams
    ) -> State:
        """Return the next state from the uploads of this round, which come in order of client id."""
        ...


Derived = Mapping[str, int | float]
"""Hyper-parameters, by name, that a method chose itself because the config did not give them."""


@dataclass(frozen=True)
class Algorithm:
    """Both sides of a method, and what its users have to know about it."""

    name: str
    client: ClientSide
    server: ServerSide
    table2_parameters: Callable[[Sequence[int]], int | None]  # Kᵢ of all clients → parameters per round by Table 2
    row_width: int | None = None  # values per class row on the wire; None if no rows travel
    tensor_shapes: Mapping[str, Shape] = field(default_factory=dict)  # the tensors that may travel
    tensor_parts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # which of them may replace another
    masks: Tensor | None = None  # (K, d) CPS masks, which never travel
    classifies_by_rows: bool = False  # True if clients are evaluated by global rows; if they travel, by all of them
    agreed: Mapping[str, str] = field(default_factory=dict)  # other meanings that both sides must share
    derived: Callable[[Sequence[ClientInfo]], Derived] = lambda _clients: {}  # in a round with uploads of these clients
    reported: frozenset[str] = frozenset()  # metrics of an upload that are not losses
    watched: Callable[[State], Mapping[str, float]] = lambda _state: {}  # numbers of the state for each round's record


@dataclass(frozen=True)
class AlgorithmSpec:
    """An algorithm as a config names it: a frozen dataclass of hyper-parameters and a function that builds from it."""

    name: str
    title: str
    hyper: type[Any]
    build: Callable[[Any, FederationSpec], Algorithm]


@dataclass(frozen=True)
class NoHyper:
    """The hyper-parameters of a method that has none."""


def not_negative(**values: float) -> None:
    """Raise a ValueError if a hyper-parameter is below zero or not finite."""
    for name, value in values.items():
        if not 0 <= value < math.inf:
            raise ValueError(f"{name} must not be negative, not {value}")


def positive(**values: float) -> None:
    """Raise a ValueError if a hyper-parameter is not above zero or not finite."""
    for name, value in values.items():
        if not (value > 0 and math.isfinite(value)):
            raise ValueError(f"{name} must be above 0, not {value}")


def prototype_parameters(classes_held: Sequence[int], num_classes: int, width: int) -> int:
    """Return Σ_i (K_i + K) · w of Table 2: each client sends the classes it holds and receives all K; w is d or s."""
    return sum(held + num_classes for held in classes_held) * width


def exchanged_parameters(classes_held: Sequence[int], parameters: int) -> int:
    """Return M · |θ| · 2 of Table 2: each client sends and receives the same tensors."""
    return 2 * len(classes_held) * parameters


def expected_frames(algorithm: Algorithm, num_classes: int, proto_dim: int, wire: WireSettings = EXACT) -> Expectation:
    """Return what each frame of this federation has to match; the digest covers everything both sides agree on."""
    facts = {
        "algorithm": algorithm.name,
        "num_classes": num_classes,
        "proto_dim": proto_dim,
        "row_width": algorithm.row_width,
        "masks": None if algorithm.masks is None else mask_digest(algorithm.masks),
        "tensors": {name: list(shape) for name, shape in algorithm.tensor_shapes.items()},
        "agreed": dict(algorithm.agreed),
        "values": {"up": wire.up, "down": wire.down},  # each sender chooses how to round them
    }
    remedies = {  # keys to lower if training diverges, first the one that helps most often
        "algorithms.proto_weight": algorithm.classifies_by_rows,
        "algorithms.global_scale": algorithm.agreed.get("scaling") == "count",
        "train.learning_rate": True,
    }
    return Expectation(
        federation_digest(facts), num_classes, algorithm.row_width, algorithm.tensor_shapes, algorithm.tensor_parts,
        wire, tuple(key for key, applies in remedies.items() if applies),
    )  # fmt: skip
