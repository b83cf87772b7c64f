"""LG-FedAvg: each client keeps its extractor, and heads are averaged.

Paul Pu Liang et al., "Think Locally, Act Globally: Federated Learning with Local and Global Representations", 2020.
"""

from __future__ import annotations

import math

from tinyproto.algorithms.base import Algorithm, AlgorithmSpec, FederationSpec, NoHyper, exchanged_parameters
from tinyproto.algorithms.exchange import MeanServer, PartClient, blueprint, drawn, exchanged, shapes_of
from tinyproto.models.build import entry_name


def build(hyper: NoHyper, federation: FederationSpec) -> Algorithm:  # noqa: ARG001
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
        client=PartClient(federation.learning_rate, lambda model: model.head, buffers=False),
        server=MeanServer(
            lambda streams: exchanged(drawn(first, federation.shape, streams).head, buffers=False),
            weighting="samples",
        ),
        table2_parameters=lambda held: exchanged_parameters(held, weights),
        tensor_shapes=heads[first],
    )


SPEC = AlgorithmSpec("lg_fedavg", "LG-FedAvg", NoHyper, build)
