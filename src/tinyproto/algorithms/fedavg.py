"""FedAvg: one network for all, averaged in full.

Brendan McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017.
"""

from __future__ import annotations

from tinyproto.algorithms.base import (
    Algorithm,
    AlgorithmSpec,
    ClientPrototypes,
    FederationSpec,
    NoHyper,
    exchanged_parameters,
)
from tinyproto.algorithms.exchange import MeanServer, PartClient, blueprint, drawn, exchanged, shapes_of
from tinyproto.models.build import entry_name
from tinyproto.models.count import count_parameters


class NetworkClient(PartClient):
    """Shares its whole network, running statistics included."""

    prototype_source: ClientPrototypes = "received"


def build(hyper: NoHyper, federation: FederationSpec) -> Algorithm:  # noqa: ARG001
    """Return FedAvg, weighted by n_i; raise a ValueError if clients have different networks."""
    network, *others = dict.fromkeys(federation.known_networks)
    if others:
        names = [entry_name(entry) for entry in (network, *others)]
        raise ValueError(
            f"fedavg averages networks, so all clients need the same one; this federation has {', '.join(names)}"
        )
    model = blueprint(network, federation.shape)
    shapes = shapes_of(exchanged(model, buffers=True))
    return Algorithm(
        name="fedavg",
        client=NetworkClient(federation.learning_rate, lambda model: model, buffers=True),
        server=MeanServer(
            lambda streams: exchanged(drawn(network, federation.shape, streams), buffers=True),
            weighting="samples",
        ),
        table2_parameters=lambda held: exchanged_parameters(held, count_parameters(model)),
        tensor_shapes=shapes,
    )


SPEC = AlgorithmSpec("fedavg", "FedAvg", NoHyper, build)
