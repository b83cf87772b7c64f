"""FML: each client's own network and a small shared one teach each other.

Tao Shen et al., "Federated Mutual Learning", 2020.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from torch import Tensor
from torch.nn import functional

from tinyproto.algorithms.auxiliary import AuxiliaryClient, AuxiliaryHyper, Mutual, SharedNetwork, divergence
from tinyproto.algorithms.base import Algorithm, AlgorithmSpec, FederationSpec, exchanged_parameters


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


def mutual_losses(local: Tensor, auxiliary: Tensor, labels: Tensor, hyper: FMLHyper) -> Mutual:
    """Return FML's α·CE + (1 − α)·KL towards the other's output, for both networks' logits."""
    target_of_local = auxiliary.detach() if hyper.detach_targets else auxiliary
    target_of_auxiliary = local.detach() if hyper.detach_targets else local
    return Mutual(
        hyper.local_weight * functional.cross_entropy(local, labels)
        + (1 - hyper.local_weight) * divergence(local, target_of_local, hyper.reduction),
        hyper.auxiliary_weight * functional.cross_entropy(auxiliary, labels)
        + (1 - hyper.auxiliary_weight) * divergence(auxiliary, target_of_auxiliary, hyper.reduction),
    )


def build(hyper: FMLHyper, federation: FederationSpec) -> Algorithm:
    """Return FML; the shared network is the uniform mean over clients."""
    shared = SharedNetwork.of(hyper, federation)
    return Algorithm(
        name="fml",
        client=AuxiliaryClient(
            "fml",
            hyper,
            shared,
            lambda _modules, own, other, labels: mutual_losses(own.logits, other.logits, labels, hyper),
        ),
        server=shared.server(),
        table2_parameters=lambda held: exchanged_parameters(held, shared.parameters),
        tensor_shapes=shared.shapes,
    )


SPEC = AlgorithmSpec("fml", "FML", FMLHyper, build)
