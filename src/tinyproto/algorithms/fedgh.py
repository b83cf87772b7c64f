"""FedGH: each client keeps its extractor; the server trains one head on the clients' class means, and all take it.

Liping Yi et al., "FedGH: Heterogeneous Federated Learning with Generalized Global Header", ACM Multimedia 2023,
arXiv 2303.13137. Class means (the paper's local averaged representations) travel up, the head travels down.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from torch import Tensor, nn
from torch.nn import functional

from tinyproto.algorithms.base import (
    Algorithm,
    AlgorithmSpec,
    Client,
    ClientInfo,
    FederationSpec,
    Round,
    Update,
    positive,
)
from tinyproto.algorithms.exchange import PartClient, drawn, equal_heads, exchanged, host, overwrite
from tinyproto.algorithms.fedproto import received_rows
from tinyproto.algorithms.tinyproto_hyper import OptionalCPSHyper
from tinyproto.core import cps
from tinyproto.core.prototypes import Message, stack_rows
from tinyproto.core.streams import Streams
from tinyproto.core.task import Batch, FitResult, ParamGroup, State, Step, Task, TensorData, Trainer, batch_plan


@dataclass(frozen=True)
class FedGHHyper(OptionalCPSHyper):
    """The hyper-parameters of the server's training."""

    server_epochs: Annotated[int, "passes over the uploads of a round; above 0"] = 1
    server_learning_rate: Annotated[float, "of the server's SGD; above 0"] = 0.01
    server_batch_size: Annotated[int, "uploaded class means per step; above 0"] = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        positive(
            server_epochs=self.server_epochs,
            server_learning_rate=self.server_learning_rate,
            server_batch_size=self.server_batch_size,
        )


def head_step(modules: nn.ModuleDict, batch: Batch, context: Mapping[str, Tensor]) -> Step:  # noqa: ARG001
    """Return the cross-entropy of the global head on uploaded class means (B, d)."""
    loss = functional.cross_entropy(modules["head"](batch.inputs), batch.labels)
    return Step(loss, loss.detach().unsqueeze(0))


class HeadClient(PartClient):
    """Trains on cross-entropy, starting with the global head, and sends the class means of its features."""

    def __init__(self, learning_rate: float, masks: Tensor | None) -> None:
        super().__init__(learning_rate, lambda model: model.head, buffers=False)
        self.masks = masks  # m_j, (K, d); None without CPS

    def update(self, client: Client, result: FitResult, round_: Round) -> Message:  # noqa: ARG002
        """Return the rows (K_i, w) of the classes trained on."""
        return Message(rows=cps.compress(client.local, self.masks))


class HeadServer:
    """Keeps one head; the state is its parameters."""

    def __init__(self, hyper: FedGHHyper, federation: FederationSpec, masks: Tensor | None) -> None:
        self.hyper = hyper
        self.federation = federation
        self.masks = masks

    def init(self, streams: Streams) -> State:
        """Return the server's draw."""
        return host(exchanged(self._head(streams), buffers=False))

    def broadcast(self, state: State, client: ClientInfo) -> Message:  # noqa: ARG002
        """Return the head, the same for each client."""
        return Message(tensors=state)

    def aggregate(
        self, state: State, updates: Sequence[Update], trainer: Trainer, round_: Round, streams: Streams
    ) -> State:
        """Train the head on every single upload, with its class as the label."""
        uploads = [cps.reconstruct(upload.rows, self.masks) for upload in received_rows(updates)]
        if not any(bool(upload.present.any()) for upload in uploads):
            return state
        head = self._head(streams)
        overwrite(head, state)
        values, labels = stack_rows(uploads)  # (N, d), (N,)
        shuffle = streams.generator("server batches", round_number=round_.number)
        size, epochs = self.hyper.server_batch_size, self.hyper.server_epochs
        task = Task(
            name="the server",
            key=("fedgh server", *values.shape[1:]),
            modules=nn.ModuleDict({"head": head.to(trainer.device)}),
            groups=[ParamGroup("head", self.hyper.server_learning_rate)],
            context={},
            loss=head_step,
            part_names=("cross_entropy",),
            data=TensorData(values, labels).to(trainer.device),
            plan=batch_plan(len(labels), size, epochs, last="keep", shuffle=shuffle),
            num_classes=self.federation.num_classes,
            seed=streams.derive("server dropout", round_number=round_.number),
        )
        trainer.fit([task])
        return host(exchanged(head, buffers=False))

    def _head(self, streams: Streams) -> nn.Module:
        return drawn(self.federation.known_networks[0], self.federation.shape, streams).head


def build(hyper: FedGHHyper, federation: FederationSpec) -> Algorithm:
    """Return FedGH; raise a ValueError if heads differ. Its formula counts the head as K·d, as Table 2 does."""
    shapes = equal_heads(federation, "shared")
    masks, width = hyper.sent(federation)
    weights = sum(math.prod(shape) for shape in shapes.values() if len(shape) > 1)
    return Algorithm(
        name="fedgh",
        client=HeadClient(federation.learning_rate, masks),
        server=HeadServer(hyper, federation, masks),
        table2_parameters=lambda held: sum(held) * width + len(held) * weights,
        row_width=width,
        tensor_shapes=shapes,
        masks=masks,
    )


SPEC = AlgorithmSpec("fedgh", "FedGH", FedGHHyper, build)
