"""The auxiliary network of FML and FedKD, which each client trains beside its own network and all clients share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from tinyproto.algorithms.base import Client, FederationSpec, LossClient, Round, positive
from tinyproto.algorithms.exchange import (
    UNCHANGED,
    Coder,
    MeanServer,
    blueprint,
    drawn,
    exchanged,
    overwrite,
    shapes_of,
    smallest,
)
from tinyproto.core.prototypes import Message, Prototypes
from tinyproto.core.streams import Streams, global_randomness
from tinyproto.core.task import Batch, FitResult, Loss, State, Step
from tinyproto.errors import ModelError
from tinyproto.models.build import ModelEntry
from tinyproto.models.count import count_parameters
from tinyproto.models.split import Output

Reduction = Literal["batch", "element"]
"""A divergence is a mean over the samples, or over samples and classes, which is K times smaller."""

SMALLEST = "smallest"


@dataclass(frozen=True)
class AuxiliaryHyper:
    """The shared network, and how the two networks learn from each other."""

    auxiliary: Annotated[str, "the shared network: a name, or `smallest` of the federation"] = SMALLEST
    average_buffers: Annotated[bool, "its running statistics travel too, or stay with each client"] = True
    reduction: Annotated[Reduction, "of the divergence: a mean over samples, or over samples and classes"] = "batch"
    detach_targets: Annotated[bool, "the output that a network learns from is fixed, or learns in the same step"] = True
    clip_norm: Annotated[float, "gradients longer than this are shortened, per network; above 0"] = 10.0

    def __post_init__(self) -> None:
        positive(clip_norm=self.clip_norm)


@dataclass(frozen=True)
class SharedNetwork:
    """The auxiliary network of a federation."""

    entry: ModelEntry
    federation: FederationSpec
    buffers: bool
    shapes: dict[str, tuple[int, ...]]  # of its tensors that travel
    parameters: int  # |θ_aux| + |φ_aux|

    @classmethod
    def of(cls, hyper: AuxiliaryHyper, federation: FederationSpec) -> SharedNetwork:
        """Return the network that the hyper-parameters name; raise a ValueError if it cannot be built."""
        entry = smallest(federation) if hyper.auxiliary == SMALLEST else hyper.auxiliary
        try:
            network = blueprint(entry, federation.shape)
        except ModelError as error:
            raise ValueError(f"auxiliary: {error}") from error
        shapes = shapes_of(exchanged(network, buffers=hyper.average_buffers))
        return cls(entry, federation, hyper.average_buffers, shapes, count_parameters(network))

    def draw(self, streams: Streams) -> nn.Module:
        """Return the network as the server draws it, equal to each client's before round 1."""
        return drawn(self.entry, self.federation.shape, streams)

    def server(self, coder: Coder = UNCHANGED, kind: type[MeanServer] = MeanServer) -> MeanServer:
        """Return a server that sends the uniform mean over clients."""
        return kind(lambda streams: exchanged(self.draw(streams), buffers=self.buffers), "uniform", coder)


class Mutual(NamedTuple):
    """The losses of two networks that learn together."""

    local: Tensor
    auxiliary: Tensor


MutualLosses = Callable[[nn.ModuleDict, Output, Output, Tensor], Mutual]
"""The losses of the client's own and the shared network, given all modules, both outputs and the labels."""


def joint_loss(losses_of: MutualLosses) -> Loss:
    """Return the sum of both networks' losses on a batch; their cross-entropies are logged."""

    def step(modules: nn.ModuleDict, batch: Batch, context: Mapping[str, Tensor]) -> Step:  # noqa: ARG001
        own, shared = modules["model"](batch.inputs), modules["auxiliary"](batch.inputs)
        losses = losses_of(modules, own, shared, batch.labels)
        parts = [functional.cross_entropy(output.logits.detach(), batch.labels) for output in (own, shared)]
        return Step(losses.local + losses.auxiliary, torch.stack(parts))

    return step


class AuxiliaryClient(LossClient):
    """Trains its own and the shared network on the same batches and sends the shared one."""

    def __init__(
        self, name: str, hyper: AuxiliaryHyper, shared: SharedNetwork, losses: MutualLosses, coder: Coder = UNCHANGED,
        more: Callable[[], dict[str, nn.Module]] = dict,
    ) -> None:  # fmt: skip
        parts, learning_rate = ("cross_entropy", "auxiliary_cross_entropy"), shared.federation.learning_rate
        super().__init__((name, hyper), joint_loss(losses), parts, learning_rate, hyper.clip_norm)
        self.shared = shared
        self.coder = coder
        self.more = more  # further modules that a client keeps

    def init(self, client: Client, streams: Streams) -> None:
        """Give a client the shared network and the method's other modules."""
        client.modules["auxiliary"] = self.shared.draw(streams).to(client.device)
        with global_randomness(streams.derive("own modules", client=client.id)):
            for name, module in self.more().items():
                client.modules[name] = module.to(client.device)

    def receive(self, client: Client, message: Message) -> Prototypes | None:
        """Copy the server's shared network; running statistics that do not travel stay."""
        if message.tensors:
            overwrite(client.modules["auxiliary"], self.coder.decode(message.on(client.device).tensors))
        return None

    def update(self, client: Client, result: FitResult, round_: Round) -> Message:  # noqa: ARG002
        """Return the client's trained shared network."""
        encoded = self.coder.encode(self.trained(client), round_)
        return Message(tensors={name: value.float() for name, value in encoded.items()})

    def trained(self, client: Client) -> State:
        """Return the tensors of the client's shared network that travel, in place."""
        return exchanged(client.modules["auxiliary"], buffers=self.shared.buffers)


def divergence(logits: Tensor, target_logits: Tensor, reduction: Reduction) -> Tensor:
    """Return KL(softmax(target) ‖ softmax(logits)), temperature 1.

    The target enters as a logarithm: the gradient of a probability too small for float32 would be NaN.
    """
    target = target_logits.log_softmax(1)
    total = (target.exp() * (target - logits.log_softmax(1))).sum()
    return total / (len(logits) if reduction == "batch" else logits.numel())
