"""LG-FedAvg: every client keeps its extractor; heads are averaged.

Paul Pu Liang et al., "Think Locally, Act Globally: Federated Learning with Local and Global Representations", 2020.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tinyproto.algorithms.base import Algorithm, AlgorithmSpec, Client, FederationSpec, Round
from tinyproto.algorithms.exchange import MeanServer, Whole, blueprint, drawn, exchanged, host, overwrite, shapes_of
from tinyproto.algorithms.local import LocalClient
from tinyproto.core.messages import Message, exchanged_parameters
from tinyproto.core.prototypes import Prototypes
from tinyproto.core.task import FitResult
from tinyproto.models.build import entry_name


@dataclass(frozen=True)
class LGFedAvgHyper:
    """Nothing to choose."""


@dataclass(frozen=True)
class HeadClient(LocalClient):
    """Trains on cross-entropy like Local, from the head that all share."""

    def receive(self, client: Client, message: Message) -> Prototypes | None:
        """The shared head replaces the client's own, before it is evaluated and trained."""
        overwrite(client.model.head, message.tensors)
        return None

    def update(self, client: Client, result: FitResult, round_: Round) -> Message:  # noqa: ARG002
        """The head as trained here."""
        return Message(tensors=host(exchanged(client.model.head, buffers=False)))


def build(hyper: LGFedAvgHyper, federation: FederationSpec) -> Algorithm:  # noqa: ARG001
    """LG-FedAvg; heads are weighted by n_i and have to be of one shape. Table 2 counts them without biases, K·d."""
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
            coder=Whole(heads[first]),
        ),
        table2_parameters=lambda held: exchanged_parameters(held, weights),
        tensor_shapes=heads[first],
    )


SPEC = AlgorithmSpec("lg_fedavg", "LG-FedAvg", LGFedAvgHyper, build)
