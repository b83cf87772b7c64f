"""Local: every client trains alone. The baseline that federating has to beat."""

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
from tinyproto.core.messages import Message
from tinyproto.core.prototypes import Prototypes
from tinyproto.core.streams import Streams
from tinyproto.core.task import Batch, BatchPlan, FitResult, State, Step, Task, Trainer


@dataclass(frozen=True)
class LocalHyper:
    """Nothing to choose."""


def cross_entropy_step(modules: nn.ModuleDict, batch: Batch, context: Mapping[str, Tensor]) -> Step:  # noqa: ARG001
    """ℓ of eq. (1): mean cross-entropy of the head."""
    loss = functional.cross_entropy(modules["model"](batch.inputs).logits, batch.labels)
    return Step(loss, loss.detach().unsqueeze(0))


@dataclass(frozen=True)
class LocalClient:
    """Trains on cross-entropy, sends nothing."""

    learning_rate: float
    prototype_source: ClientPrototypes = "fresh"

    def init(self, client: Client, streams: Streams) -> None:
        """Nothing to remember."""

    def receive(self, client: Client, message: Message) -> Prototypes | None:  # noqa: ARG002
        """Nothing arrives."""
        return None

    def task(self, client: Client, plan: BatchPlan, seed: int) -> Task:
        """Cross-entropy on the client's own samples."""
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
        """Nothing leaves."""
        return Message()


class LocalServer:
    """Has no state and no say."""

    def init(self, streams: Streams) -> State:  # noqa: ARG002
        """Empty."""
        return {}

    def broadcast(self, state: State, client: ClientInfo) -> Message:  # noqa: ARG002
        """Nothing to send."""
        return Message()

    def aggregate(
        self, state: State, updates: Sequence[Update], trainer: Trainer, round_: Round, streams: Streams  # noqa: ARG002
    ) -> State:  # fmt: skip
        """Nothing to do."""
        return state


def build(hyper: LocalHyper, federation: FederationSpec) -> Algorithm:  # noqa: ARG001
    """Local training as an algorithm like any other."""
    return Algorithm("local", LocalClient(federation.learning_rate), LocalServer(), table2_parameters=lambda _held: 0)


SPEC = AlgorithmSpec("local", "Local", LocalHyper, build)
