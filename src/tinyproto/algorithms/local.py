"""Local: each client trains alone. The baseline for all other methods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn import functional

from tinyproto.algorithms.base import (
    Algorithm,
    AlgorithmSpec,
    Client,
    ClientInfo,
    ClientPrototypes,
    FederationSpec,
    Round,
    Update,
    client_task,
)
from tinyproto.core.prototypes import Message, Prototypes
from tinyproto.core.streams import Streams
from tinyproto.core.task import Batch, BatchPlan, FitResult, State, Step, Task, Trainer


@dataclass(frozen=True)
class LocalHyper:
    """Local has no hyper-parameters."""


def cross_entropy_step(modules: nn.ModuleDict, batch: Batch, context: Mapping[str, Tensor]) -> Step:  # noqa: ARG001
    """Return ℓ of eq. (1): the mean cross-entropy of the head."""
    loss = functional.cross_entropy(modules["model"](batch.inputs).logits, batch.labels)
    return Step(loss, loss.detach().unsqueeze(0))


@dataclass(frozen=True)
class LocalClient:
    """Trains on cross-entropy and sends nothing."""

    learning_rate: float
    prototype_source: ClientPrototypes = "fresh"

    def init(self, client: Client, streams: Streams) -> None:
        """Do nothing: there is nothing to remember."""

    def receive(self, client: Client, message: Message) -> Prototypes | None:  # noqa: ARG002
        """Return None: nothing is sent."""
        return None

    def task(self, client: Client, plan: BatchPlan, seed: int) -> Task:
        """Return the client's epochs with cross-entropy."""
        return client_task(
            client,
            plan,
            seed,
            key=("local",),
            loss=cross_entropy_step,
            part_names=("cross_entropy",),
            learning_rate=self.learning_rate,
        )

    def update(self, client: Client, result: FitResult, round_: Round) -> Message:  # noqa: ARG002
        """Return an empty message."""
        return Message()


class LocalServer:
    """Has no state and sends nothing."""

    def init(self, streams: Streams) -> State:  # noqa: ARG002
        """Return an empty state."""
        return {}

    def broadcast(self, state: State, client: ClientInfo) -> Message:  # noqa: ARG002
        """Return an empty message."""
        return Message()

    def aggregate(
        self, state: State, updates: Sequence[Update], trainer: Trainer, round_: Round, streams: Streams  # noqa: ARG002
    ) -> State:  # fmt: skip
        """Return the state as it is."""
        return state


def build(hyper: LocalHyper, federation: FederationSpec) -> Algorithm:  # noqa: ARG001
    """Return local training as an algorithm."""
    return Algorithm("local", LocalClient(federation.learning_rate), LocalServer(), table2_parameters=lambda _held: 0)


SPEC = AlgorithmSpec("local", "Local", LocalHyper, build)
