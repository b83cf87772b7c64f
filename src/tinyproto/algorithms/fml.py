"""FML: each client's own network and a small shared one teach each other.

Tao Shen et al., "Federated Mutual Learning", 2020.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor, nn
from torch.nn import functional

from tinyproto.algorithms.auxiliary import AuxiliaryClient, AuxiliaryHyper, Mutual, Reduction, SharedNetwork, divergence
from tinyproto.algorithms.base import Algorithm, AlgorithmSpec, FederationSpec, exchanged_parameters
from tinyproto.core.task import Batch, Loss, Step


@dataclass(frozen=True)
class FMLHyper(AuxiliaryHyper):
    """The auxiliary network's hyper-parameters, and the weight of the labels for each network."""

    local_weight: Annotated[
        float, "α, of the labels for the client's own network, 0 to 1; the rest is distillation"
    ] = 0.5
    auxiliary_weight: Annotated[float, "β, of the labels for the shared network, 0 to 1"] = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("local_weight", "auxiliary_weight"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must lie between 0 and 1, not {getattr(self, name)}")


def mutual_losses(
    local: Tensor, auxiliary: Tensor, labels: Tensor, *, local_weight: float, auxiliary_weight: float,
    reduction: Reduction, detach: bool,
) -> Mutual:  # fmt: skip
    """Return FML's α·CE + (1 − α)·KL towards the other's output, for both; `detach` makes the other a fixed target."""
    target_of_local = auxiliary.detach() if detach else auxiliary
    target_of_auxiliary = local.detach() if detach else local
    return Mutual(
        local_weight * functional.cross_entropy(local, labels)
        + (1 - local_weight) * divergence(local, target_of_local, reduction),
        auxiliary_weight * functional.cross_entropy(auxiliary, labels)
        + (1 - auxiliary_weight) * divergence(auxiliary, target_of_auxiliary, reduction),
    )


def mutual_loss(hyper: FMLHyper) -> Loss:
    """Return the sum of both networks' losses on a batch."""

    def step(modules: nn.ModuleDict, batch: Batch, context: Mapping[str, Tensor]) -> Step:  # noqa: ARG001
        own, shared = modules["model"](batch.inputs).logits, modules["auxiliary"](batch.inputs).logits
        losses = mutual_losses(
            own,
            shared,
            batch.labels,
            local_weight=hyper.local_weight,
            auxiliary_weight=hyper.auxiliary_weight,
            reduction=hyper.reduction,
            detach=hyper.detach_targets,
        )
        cross_entropies = [functional.cross_entropy(logits.detach(), batch.labels) for logits in (own, shared)]
        return Step(losses.local + losses.auxiliary, torch.stack(cross_entropies))

    return step


def build(hyper: FMLHyper, federation: FederationSpec) -> Algorithm:
    """Return FML; the shared network is the uniform mean over clients."""
    shared = SharedNetwork.of(hyper, federation)
    return Algorithm(
        name="fml",
        client=AuxiliaryClient("fml", hyper, shared, mutual_loss(hyper)),
        server=shared.server(),
        table2_parameters=lambda held: exchanged_parameters(held, shared.parameters),
        tensor_shapes=shared.shapes,
    )


SPEC = AlgorithmSpec("fml", "FML", FMLHyper, build)
