"""FedKD: each client's own network (mentor) and a shared one (mentee) teach each other; the mentee travels as factors.

Chuhan Wu et al., "Communication-efficient federated learning via knowledge distillation", Nature Communications 2022.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor, nn
from torch.nn import functional

from tinyproto.algorithms.auxiliary import AuxiliaryClient, AuxiliaryHyper, SharedNetwork
from tinyproto.algorithms.base import Algorithm, AlgorithmSpec, FederationSpec, Round
from tinyproto.core.distillation import Opinion, adaptive_losses
from tinyproto.core.low_rank import (
    LEFT,
    RIGHT,
    MatrixView,
    as_matrices,
    compress_tensors,
    energy_threshold,
    largest_rank,
    restore_tensors,
)
from tinyproto.core.prototypes import AtMost, Shape
from tinyproto.core.task import Batch, Loss, State, Step


@dataclass(frozen=True)
class FedKDHyper(AuxiliaryHyper):
    """The auxiliary network's hyper-parameters, and the share of it that compression keeps."""

    energy_start: Annotated[float, "T_start, the share of a tensor's energy kept in round 1, 0 to 1"] = 0.95
    energy_end: Annotated[float, "T_end, the share it moves towards, 0 to 1"] = 0.98
    matrices: Annotated[MatrixView, "the factorised part of a convolution: all its filters, or each kernel"] = "filters"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.energy_start <= self.energy_end <= 1:
            raise ValueError(
                f"0 < energy_start ≤ energy_end ≤ 1 is required, not {self.energy_start} and {self.energy_end}"
            )


def adaptive_loss(hyper: FedKDHyper) -> Loss:
    """Return the sum of both networks' losses on a batch; W_h is the module `adapter`."""

    def step(modules: nn.ModuleDict, batch: Batch, context: Mapping[str, Tensor]) -> Step:  # noqa: ARG001
        own, shared = modules["model"](batch.inputs), modules["auxiliary"](batch.inputs)
        losses = adaptive_losses(
            Opinion(own.logits, own.features),
            Opinion(shared.logits, shared.features),
            modules["adapter"](shared.features),
            batch.labels,
            reduction=hyper.reduction,
            detach=hyper.detach_targets,
        )
        logits = (own.logits.detach(), shared.logits.detach())
        cross_entropies = [functional.cross_entropy(each, batch.labels) for each in logits]
        return Step(losses.local + losses.auxiliary, torch.stack(cross_entropies))

    return step


@dataclass(frozen=True)
class LowRank:
    """Tensors travel as two factors if these are smaller and hold enough of the energy."""

    tensors: dict[str, tuple[int, ...]]
    hyper: FedKDHyper

    @property
    def shapes(self) -> Mapping[str, Shape]:
        """Return the shape of each tensor, and of its factors if they can be smaller."""
        shapes: dict[str, Shape] = dict(self.tensors)
        for name in self.parts:
            *many, rows, columns = self._matrices(name)
            rank = AtMost(largest_rank((rows, columns)))
            shapes[name + LEFT], shapes[name + RIGHT] = (*many, rows, rank), (*many, rank, columns)
        return shapes

    @property
    def parts(self) -> Mapping[str, tuple[str, ...]]:
        """Return the two factors that may replace a tensor."""
        wide = [name for name, shape in self.tensors.items() if len(shape) >= 2 and shape[0] > 1]
        return {name: (name + LEFT, name + RIGHT) for name in wide if largest_rank(self._matrices(name)) > 0}

    def encode(self, tensors: State, round_: Round) -> State:
        """Return the smaller form of each tensor at this round's threshold."""
        energy = energy_threshold(round_.number, round_.total, self.hyper.energy_start, self.hyper.energy_end)
        return compress_tensors(tensors, energy, self.hyper.matrices)

    def decode(self, travelled: Mapping[str, Tensor]) -> State:
        """Return products of factors, and the tensors that were not factorised."""
        return restore_tensors(dict(travelled), self.tensors)

    def _matrices(self, name: str) -> tuple[int, ...]:
        return tuple(as_matrices(torch.empty(self.tensors[name], device="meta"), self.hyper.matrices).shape)


def build(hyper: FedKDHyper, federation: FederationSpec) -> Algorithm:
    """Return FedKD; the mentee is the uniform mean over clients. Table 2 has no formula, since it leaves r open."""
    shared = SharedNetwork.of(hyper, federation)
    coder = LowRank(shared.shapes, hyper)
    width = federation.proto_dim
    return Algorithm(
        name="fedkd",
        client=AuxiliaryClient(
            "fedkd", hyper, shared, coder, adaptive_loss(hyper), ("cross_entropy", "auxiliary_cross_entropy"),
            more=lambda: {"adapter": nn.Linear(width, width, bias=False)},
        ),
        server=shared.server(coder),
        table2_parameters=lambda _held: None,
        tensor_shapes=coder.shapes,
        tensor_parts=coder.parts,
        agreed={"matrices": hyper.matrices},
    )  # fmt: skip


SPEC = AlgorithmSpec("fedkd", "FedKD", FedKDHyper, build)
