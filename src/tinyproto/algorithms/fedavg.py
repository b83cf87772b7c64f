"""FedAvg: one network for all, averaged in full.

Brendan McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017.
"""

from __future__ import annotations

from dataclasses import dataclass

from tinyproto.algorithms.base import Algorithm, AlgorithmSpec, Client, FederationSpec, Round, exchanged_parameters
from tinyproto.algorithms.exchange import MeanServer, blueprint, drawn, exchanged, host, overwrite, shapes_of
from tinyproto.algorithms.local import LocalClient
from tinyproto.core.prototypes import Message, Prototypes
from tinyproto.core.task import FitResult
from tinyproto.models.build import entry_name
from tinyproto.models.count import count_parameters


@dataclass(frozen=True)
class FedAvgHyper:
    """FedAvg has no hyper-parameters."""


@dataclass(frozen=True)
class NetworkClient(LocalClient):
    """Trains on cross-entropy like Local, starting from the network that all clients share."""

    def receive(self, client: Client, message: Message) -> Prototypes | None:
        """Replace the client's network by the shared one, running statistics included."""
        overwrite(client.model, message.tensors)
        return None

    def update(self, client: Client, result: FitResult, round_: Round) -> Message:  # noqa: ARG002
        """Return the client's trained network."""
        return Message(tensors=host(exchanged(client.model, buffers=True)))


def build(hyper: FedAvgHyper, federation: FederationSpec) -> Algorithm:  # noqa: ARG001
    """Return FedAvg, weighted by n_i; raise a ValueError if clients have different networks."""
    network, *others = dict.fromkeys(federation.networks)
    if others:
        names = [entry_name(entry) for entry in (network, *others)]
        raise ValueError(
            f"fedavg averages networks, so all clients need the same one; this federation has {', '.join(names)}"
        )
    model = blueprint(network, federation.shape)
    shapes = shapes_of(exchanged(model, buffers=True))
    return Algorithm(
        name="fedavg",
        client=NetworkClient(federation.learning_rate, prototype_source="received"),
        server=MeanServer(
            lambda streams: exchanged(drawn(network, federation.shape, streams), buffers=True),
            weighting="samples",
        ),
        table2_parameters=lambda held: exchanged_parameters(held, count_parameters(model)),
        tensor_shapes=shapes,
    )


SPEC = AlgorithmSpec("fedavg", "FedAvg", FedAvgHyper, build)
