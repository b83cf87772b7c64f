"""What FML and FedKD share: beside its own network every client trains an auxiliary one, which all have in common."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

from torch import nn

from tinyproto.algorithms.base import Client, FederationSpec, PrototypeSource, Round, client_task, positive
from tinyproto.algorithms.exchange import (
    Coder,
    MeanServer,
    blueprint,
    drawn,
    exchanged,
    host,
    overwrite,
    shapes_of,
    smallest,
)
from tinyproto.core.losses import Reduction
from tinyproto.core.messages import Message
from tinyproto.core.prototypes import Prototypes
from tinyproto.core.streams import Streams, global_randomness
from tinyproto.core.task import BatchPlan, FitResult, Loss, Task
from tinyproto.errors import ModelError
from tinyproto.models.build import ModelEntry
from tinyproto.models.count import count_parameters

SMALLEST = "smallest"


@dataclass(frozen=True)
class AuxiliaryHyper:
    """Which network is shared, and how the two learn from each other."""

    auxiliary: Annotated[str, "the shared network: a name, or `smallest` of the federation"] = SMALLEST
    average_buffers: Annotated[bool, "whether its running statistics travel too, or stay with each client"] = True
    reduction: Annotated[Reduction, "of the divergence: a mean over samples, or over samples and classes"] = "batch"
    detach_targets: Annotated[bool, "whether what a network learns from is fixed, or learns in the same step"] = True
    clip_norm: Annotated[float, "gradients longer than this are shortened, per network; above 0"] = 10.0

    def __post_init__(self) -> None:
        positive(clip_norm=self.clip_norm)


@dataclass(frozen=True)
class SharedNetwork:
    """The auxiliary network of a federation."""

    entry: ModelEntry
    federation: FederationSpec
    buffers: bool
    shapes: dict[str, tuple[int, ...]]  # of what travels of it
    parameters: int  # |θ_aux| + |φ_aux|

    @classmethod
    def of(cls, hyper: AuxiliaryHyper, federation: FederationSpec) -> SharedNetwork:
        """The one that the hyper-parameters name."""
        entry = smallest(federation) if hyper.auxiliary == SMALLEST else hyper.auxiliary
        try:
            network = blueprint(entry, federation.shape)
        except ModelError as error:
            raise ValueError(f"auxiliary: {error}") from error
        shapes = shapes_of(exchanged(network, buffers=hyper.average_buffers))
        return cls(entry, federation, hyper.average_buffers, shapes, count_parameters(network))

    def draw(self, streams: Streams) -> nn.Module:
        """As the server draws it, which is how every client has it before round 1."""
        return drawn(self.entry, self.federation.shape, streams)

    def server(self, coder: Coder) -> MeanServer:
        """Averages it, all clients alike."""
        return MeanServer(lambda streams: exchanged(self.draw(streams), buffers=self.buffers), "uniform", coder)


class AuxiliaryClient:
    """Trains its own and the shared network on the same batches, and sends the shared one."""

    prototype_source: PrototypeSource = "fresh"

    def __init__(
        self, name: str, hyper: AuxiliaryHyper, shared: SharedNetwork, coder: Coder, loss: Loss,
        part_names: tuple[str, ...], more: Callable[[], dict[str, nn.Module]] = dict,
    ) -> None:  # fmt: skip
        self.name = name
        self.hyper = hyper
        self.shared = shared
        self.coder = coder
        self.loss = loss
        self.part_names = part_names
        self.more = more  # further modules that a client keeps

    def init(self, client: Client, streams: Streams) -> None:
        """The shared network, and what else the method keeps at the client."""
        client.modules["auxiliary"] = self.shared.draw(streams).to(client.device)
        with global_randomness(streams.derive("own modules", client=client.id)):
            for name, module in self.more().items():
                client.modules[name] = module.to(client.device)

    def receive(self, client: Client, message: Message) -> Prototypes | None:
        """The shared network as the server has it; running statistics stay where they do not travel."""
        if message.tensors:
            overwrite(client.modules["auxiliary"], self.coder.decode(message.tensors))
        return None

    def task(self, client: Client, plan: BatchPlan, seed: int) -> Task:
        """Both networks in one step."""
        return client_task(
            client,
            plan,
            seed,
            key=(self.name, self.hyper),
            loss=self.loss,
            part_names=self.part_names,
            learning_rate=self.shared.federation.learning_rate,
            clip_norm=self.hyper.clip_norm,
        )

    def update(self, client: Client, result: FitResult, round_: Round) -> Message:  # noqa: ARG002
        """The shared network as trained here."""
        tensors = host(exchanged(client.modules["auxiliary"], buffers=self.shared.buffers))
        return Message(tensors=self.coder.encode(tensors, round_))
