"""LG-FedAvg: each client keeps its extractor, and heads are averaged.

Paul Pu Liang et al., "Think Locally, Act Globally: Federated Learning with Local and Global Representations", 2020.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tinyproto.algorithms.base import Algorithm, AlgorithmSpec, Client, FederationSpec, Round, exchanged_parameters
from tinyproto.algorithms.exchange import MeanServer, blueprint, drawn, exchanged, host, overwrite, shapes_of
from tinyproto.algorithms.local import LocalClient
from tinyproto.core.prototypes import Message, Prototypes
from tinyproto.core.task import FitResult
from tinyproto.models.build import entry_name


@dataclass(frozen=True)
class LGFedAvgHyper:
    """LG-FedAvg has no hyper-parameters."""


@dataclass(frozen=True)
class HeadClient(LocalClient):
    """Trains on cross-entropy like Local, starting from the head that all clients share."""

    def receive(self, client: Client, message: Message) -> Prototypes | None:
        """Replace the client's head by the shared one, before evaluation and training."""
        overwrite(client.model.head, message.tensors)
        return None

    def update(self, client: Client, result: FitResult, round_: Round) -> Message:  # noqa: ARG002
        """Return the client's trained head."""
        return Message(tensors=host(exchanged(client.model.head, buffers=False)))


def build(hyper: LGFedAvgHyper, federation: FederationSpec) -> Algorithm:  # noqa: ARG001
    """Return LG-FedAvg, weighted by n_i; raise a ValueError if heads differ. Table 2 counts them as K·d."""
    first, *others = federation.networks
    heads = {
        entry: shapes_of(exchanged(blueprint(entry, federation.shape).head, buffers=False))
        for entry in federation.networks
    }
    for entry in others:
        if heads[entry] != heads[first]:
            raise ValueError(
                f"the heads of {entry_name(first)} and {entry_name(entry)} have different parameters, so they cannot "
                "be averaged; use networks with equal heads"
            )
    weights = sum(math.prod(shape) for shape in heads[first].values() if len(shape) > 1)
    return Algorithm(
        name="lg_fedavg",
        client=HeadClient(federation.learning_rate),
        server=MeanServer(
            lambda streams: exchanged(drawn(first, federation.shape, streams).head, buffers=False),
            weighting="samples",
        ),
        table2_parameters=lambda held: exchanged_parameters(held, weights),
        tensor_shapes=heads[first],
    )


SPEC = AlgorithmSpec("lg_fedavg", "LG-FedAvg", LGFedAvgHyper, build)
