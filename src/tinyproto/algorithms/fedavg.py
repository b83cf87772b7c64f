"""FedAvg: one network for all, averaged in full.

Brendan McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017.
"""

from __future__ import annotations

from dataclasses import dataclass

from tinyproto.algorithms.base import Algorithm, AlgorithmSpec, Client, FederationSpec, Round
from tinyproto.algorithms.exchange import MeanServer, Whole, blueprint, drawn, exchanged, host, overwrite, shapes_of
from tinyproto.algorithms.local import LocalClient
from tinyproto.core.messages import Message, exchanged_parameters
from tinyproto.core.prototypes import Prototypes
from tinyproto.core.task import FitResult
from tinyproto.models.build import entry_name
from tinyproto.models.count import count_parameters


@dataclass(frozen=True)
class FedAvgHyper:
    """Nothing to choose."""


@dataclass(frozen=True)
class WholeClient(LocalClient):
    """Trains on cross-entropy like Local, from the network that all share."""

    def receive(self, client: Client, message: Message) -> Prototypes | None:
        """The shared network replaces the client's own, running statistics included."""
        overwrite(client.model, message.tensors)
        return None

    def update(self, client: Client, result: FitResult, round_: Round) -> Message:  # noqa: ARG002
        """The network as trained here."""
        return Message(tensors=host(exchanged(client.model, buffers=True)))


def build(hyper: FedAvgHyper, federation: FederationSpec) -> Algorithm:  # noqa: ARG001
    """FedAvg; clients weigh n_i."""
    network, *others = dict.fromkeys(federation.networks)
    if others:
        names = [entry_name(entry) for entry in (network, *others)]
        raise ValueError(
            f"it averages whole networks, so all clients need the same one; this federation has {', '.join(names)}"
        )
    model = blueprint(network, federation.shape)
    shapes = shapes_of(exchanged(model, buffers=True))
    return Algorithm(
        name="fedavg",
        client=WholeClient(federation.learning_rate, prototype_source="received"),
        server=MeanServer(
            lambda streams: exchanged(drawn(network, federation.shape, streams), buffers=True),
            weighting="samples",
            coder=Whole(shapes),
        ),
        table2_parameters=lambda held: exchanged_parameters(held, count_parameters(model)),
        tensor_shapes=shapes,
    )


SPEC = AlgorithmSpec("fedavg", "FedAvg", FedAvgHyper, build)
