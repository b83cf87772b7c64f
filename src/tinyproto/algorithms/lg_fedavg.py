"""LG-FedAvg: each client keeps its extractor, and heads are averaged.

Paul Pu Liang et al., "Think Locally, Act Globally: Federated Learning with Local and Global Representations", 2020.
"""

from __future__ import annotations

import math

from tinyproto.algorithms.base import Algorithm, AlgorithmSpec, FederationSpec, NoHyper, exchanged_parameters
from tinyproto.algorithms.exchange import MeanServer, PartClient, drawn, equal_heads, exchanged


def build(hyper: NoHyper, federation: FederationSpec) -> Algorithm:  # noqa: ARG001
    """Return LG-FedAvg, weighted by n_i; raise a ValueError if heads differ. Table 2 counts them as K·d."""
    shapes = equal_heads(federation, "averaged")
    first = federation.known_networks[0]
    weights = sum(math.prod(shape) for shape in shapes.values() if len(shape) > 1)
    return Algorithm(
        name="lg_fedavg",
        client=PartClient(federation.learning_rate, lambda model: model.head, buffers=False),
        server=MeanServer(
            lambda streams: exchanged(drawn(first, federation.shape, streams).head, buffers=False),
            weighting="samples",
        ),
        table2_parameters=lambda held: exchanged_parameters(held, weights),
        tensor_shapes=shapes,
    )


SPEC = AlgorithmSpec("lg_fedavg", "LG-FedAvg", NoHyper, build)
