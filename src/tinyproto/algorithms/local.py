"""Local: each client trains alone. The baseline for all other methods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor, nn
from torch.nn import functional

from tinyproto.algorithms.base import (
    Algorithm,
    AlgorithmSpec,
    ClientInfo,
    FederationSpec,
    LossClient,
    NoHyper,
    Round,
    Update,
)
from tinyproto.core.prototypes import Message
from tinyproto.core.streams import Streams
from tinyproto.core.task import Batch, State, Step, Trainer


def cross_entropy_step(modules: nn.ModuleDict, batch: Batch, context: Mapping[str, Tensor]) -> Step:  # noqa: ARG001
    """Return ℓ of eq. (1): the mean cross-entropy of the head."""
    loss = functional.cross_entropy(modules["model"](batch.inputs).logits, batch.labels)
    return Step(loss, loss.detach().unsqueeze(0))


class LocalClient(LossClient):
    """Trains on cross-entropy and sends nothing."""

    def __init__(self, learning_rate: float) -> None:
        super().__init__(("local",), cross_entropy_step, ("cross_entropy",), learning_rate)


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


def build(hyper: NoHyper, federation: FederationSpec) -> Algorithm:  # noqa: ARG001
    """Return local training as an algorithm."""
    return Algorithm("local", LocalClient(federation.learning_rate), LocalServer(), table2_parameters=lambda _held: 0)


SPEC = AlgorithmSpec("local", "Local", NoHyper, build)
