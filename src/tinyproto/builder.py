"""The builder: makes from a config what the server and the clients of one cell share.

The simulator, a coordinator and a member of a federation build with the same functions, so both ends expect the same
frames and draw from the same random streams.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from tinyproto.algorithms.base import Algorithm, Client, FederationSpec, expected_frames
from tinyproto.algorithms.defence import Defence, DefenceName, defended
from tinyproto.config.algorithms import AlgorithmEntry
from tinyproto.config.schema import ConfigModel, RobustSection
from tinyproto.core.prototypes import Prototypes
from tinyproto.core.streams import Streams, one_thread
from tinyproto.core.task import TensorData, Trainer
from tinyproto.engine.client import ClientRuntime, Clients, LocalTraining
from tinyproto.engine.measure import Stopwatch
from tinyproto.engine.server import NO_DEFENCE, ServerRuntime
from tinyproto.errors import ConfigError
from tinyproto.models import ModelEntry, build_model
from tinyproto.tracking.summary import RoundResult, Totals
from tinyproto.wire.frame import federation_digest
from tinyproto.wire.validate import Expectation


@dataclass(frozen=True)
class Cell:
    """One algorithm with one seed: an element of a grid, or the one that a federation runs."""

    index: int  # its place in the grid
    entry: AlgorithmEntry
    seed: int
    of: str = ""  # the experiment, if cells of several experiments run together

    @property
    def title(self) -> str:
        """Return its name for people."""
        return f"{f'{self.of}: ' if self.of else ''}{self.entry.title}, seed {self.seed}"

    @property
    def identity(self) -> dict[str, Any]:
        """Return the keys that name it in every record."""
        return {"algorithm": self.entry.spec.name, "label": self.entry.label, "seed": self.seed}


@dataclass(frozen=True)
class Setup:
    """The parts that the server and every client of one cell build alike."""

    spec: FederationSpec
    algorithm: Algorithm
    training: LocalTraining
    streams: Streams
    federation: str | None = None  # token of a real federation; None in a simulation

    @cached_property
    def expectation(self) -> Expectation:
        """The format that every frame has to match; frames of federations with different tokens never do."""
        agreed = expected_frames(self.algorithm, self.spec.num_classes, self.spec.proto_dim, self.spec.wire)
        if self.federation is None:
            return agreed
        digest = federation_digest({"agreed": agreed.digest.hex(), "federation": self.federation})
        return replace(agreed, digest=digest)

    def server(self, trainer: Trainer, stopwatch: Stopwatch, defence: Defence = NO_DEFENCE) -> ServerRuntime:
        """Build the server."""
        return ServerRuntime(self.algorithm, trainer, self.streams, self.expectation, stopwatch, defence)

    def clients(self, clients: Clients, trainer: Trainer, stopwatch: Stopwatch) -> ClientRuntime:
        """Build the runtime that answers for these clients."""
        return ClientRuntime(
            clients, self.algorithm, trainer, self.training, self.streams, self.expectation, stopwatch
        )  # fmt: skip

    def new_client(
        self, id_: int, entry: ModelEntry, architecture: Hashable, samples: tuple[TensorData, TensorData],
        counts: Tensor,
    ) -> Client:  # fmt: skip
        """Build a client as it is before round 1, on the device of its samples (train, test); `counts` (K,) is n_ij.

        All it draws comes from its own stream, so it can be built again at any time to the same bits. Its network is
        not checked again; whoever chose it has done so.
        """
        train, test = samples
        device, streams, shape = train.labels.device, self.streams, self.spec.shape
        with one_thread():
            client = Client(
                id=id_,
                architecture=architecture,
                model=build_model(entry, shape, streams.derive("model", client=id_), check=False).to(device),
                train=train,
                test=test,
                class_counts=counts.to(device),
                local=Prototypes.absent(shape.num_classes, shape.proto_dim, device),
            )
            self.algorithm.client.init(client, streams)
        return client


def build_setup(
    model: ConfigModel, cell: Cell, num_classes: int, input_shape: tuple[int, ...], vocabulary: int | None = None
) -> Setup:
    """Build what a cell's server and clients share; raise ConfigError if the algorithm does not fit the federation."""
    spec = FederationSpec(
        num_classes=num_classes,
        proto_dim=model.prototypes.dim,
        learning_rate=model.train.learning_rate,
        input_shape=input_shape,
        head_dropout=model.train.head_dropout,
        head_dropout_in_place=model.train.head_dropout_in_place,
        networks=tuple(model.models),
        wire=cell.entry.wire,
        vocabulary=vocabulary,
    )
    training = LocalTraining(
        rounds=model.train.rounds,
        local_epochs=model.train.local_epochs,
        batch_size=model.train.batch_size,
        shuffle=model.train.shuffle,
        last_batch=model.train.last_batch,
        prototype_samples=model.prototypes.samples,
    )
    return Setup(spec, cell.entry.build(spec), training, Streams(cell.seed))


def build_defence(
    cell: Cell, algorithm: Algorithm, robust: RobustSection, otherwise: DefenceName, participants: int
) -> Defence:
    """Build the defence that a config asks for; `otherwise` is the meaning of `auto`.

    Raise ConfigError if it cannot inspect what the algorithm exchanges, or if rounds have too few participants for it.
    """
    defence = robust.settings(otherwise)
    try:
        defended(algorithm, defence)
        defence.check_clients(participants)
    except ValueError as error:
        raise ConfigError(f"algorithm {cell.entry.label}: {error}") from error
    return defence


def summarise_cell(
    cell: Cell, model: ConfigModel, server: ServerRuntime, rounds: Iterable[RoundResult], *, dataset: str,
    class_names: Sequence[str] | None, num_clients: int, classes_held: Sequence[int] | None, peak_memory: int,
) -> dict[str, Any]:  # fmt: skip
    """Return the cell's entry of summary.json.

    `classes_held` is K_i of every client, over training and test samples; None if that is not known of all clients.
    """
    identity = {
        **cell.identity,
        "dataset": dataset,
        "class_names": None if class_names is None else list(class_names),
        "rounds": model.train.rounds,
        "num_clients": num_clients,
        "preset": model.preset,
    }
    formula = None if classes_held is None else server.algorithm.table2_parameters(classes_held)
    totals = Totals(rounds)
    return totals.summary(identity, formula, peak_memory, server.derived(totals.participants))


def resolve_device(name: str, key: str = "train.device") -> str:
    """Return the device to use; `auto` is the GPU if there is one. `key` names the setting in errors."""
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    found = re.fullmatch(r"cpu|cuda(?::(\d+))?", name)
    if found is None:
        raise ConfigError(f"{key}: unsupported device {name!r}; expected auto, cpu, cuda or cuda:N")
    if name != "cpu" and int(found[1] or 0) >= torch.cuda.device_count():
        raise ConfigError(f"{key}: missing device {name!r}; torch finds {torch.cuda.device_count()} CUDA devices")
    return name
