"""FedKD: each client's own network (mentor) and a shared one (mentee) teach each other; the mentee travels as factors.

Chuhan Wu et al., "Communication-efficient federated learning via knowledge distillation", Nature Communications 2022.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from tinyproto.algorithms.auxiliary import AuxiliaryClient, AuxiliaryHyper, Mutual, SharedNetwork, divergence
from tinyproto.algorithms.base import Algorithm, AlgorithmSpec, FederationSpec, Round
from tinyproto.algorithms.exchange import Coder, MeanServer
from tinyproto.algorithms.updates import BASE, UpdateClient, UpdateServer
from tinyproto.core.prototypes import AtMost, Shape
from tinyproto.core.task import State
from tinyproto.models.split import Output

MatrixView = Literal["filters", "kernels"]
"""A convolution's weight is one matrix of (out, in·k·k), or one of k × k for each pair of channels."""

Factorised = Literal["weights", "updates"]
"""The shared network travels as its weights, or (in FedKD's paper) as their change since the receiver's version."""

LEFT, RIGHT = ".left", ".right"
"""Endings of the names of a tensor's factors."""

CERTAIN = torch.finfo(torch.float32).eps
"""The resolution of a cross-entropy in float32; nothing is divided by less."""


@dataclass(frozen=True)
class FedKDHyper(AuxiliaryHyper):
    """The auxiliary network's hyper-parameters, and the share of it that compression keeps."""

    energy_start: Annotated[float, "T_start, the share of a tensor's energy kept in round 1, 0 to 1"] = 0.95
    energy_end: Annotated[float, "T_end, the share it moves towards, 0 to 1"] = 0.98
    matrices: Annotated[MatrixView, "the factorised part of a convolution: all its filters, or each kernel"] = "filters"
    factorised: Annotated[
        Factorised, "the shared network's weights, or their change since the version that the receiver holds"
    ] = "weights"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.energy_start <= self.energy_end <= 1:
            raise ValueError(
                f"0 < energy_start ≤ energy_end ≤ 1 is needed, not {self.energy_start} and {self.energy_end}"
            )


def adaptive_losses(local: Output, auxiliary: Output, adapted: Tensor, labels: Tensor, hyper: FedKDHyper) -> Mutual:
    """Return FedKD's CE plus, over D = CE_local + CE_auxiliary, the divergence of outputs and the distance of features.

    `adapted` (B, d) are the auxiliary network's features after the learned map W_h. Networks that are wrong learn less
    from each other. With `detach_targets`, D is a plain weight and targets are fixed; W_h learns in either case.
    """
    own, other = functional.cross_entropy(local.logits, labels), functional.cross_entropy(auxiliary.logits, labels)

    def fixed(values: Tensor) -> Tensor:
        return values.detach() if hyper.detach_targets else values

    doubt = fixed(own + other).clamp_min(CERTAIN)
    return Mutual(
        own
        + divergence(local.logits, fixed(auxiliary.logits), hyper.reduction) / doubt
        + functional.mse_loss(local.features, fixed(adapted)) / doubt,
        other
        + divergence(auxiliary.logits, fixed(local.logits), hyper.reduction) / doubt
        + functional.mse_loss(fixed(local.features), adapted) / doubt,
    )


class Factors(NamedTuple):
    """Two matrices (or stacks of them) whose product is the tensor, seen as matrices."""

    left: Tensor  # (..., m, r)
    right: Tensor  # (..., r, n)


def energy_threshold(round_number: int, rounds: int, start: float, end: float) -> float:
    """Return T of a round: from `start` in round 1 in equal steps towards `end`, which comes after the last round."""
    return start + (round_number - 1) / rounds * (end - start)


def as_matrices(tensor: Tensor, view: MatrixView) -> Tensor:
    """Return a weight as one matrix (m, n) or several (..., m, n)."""
    return tensor.flatten(1) if view == "filters" else tensor


def kept_rank(singular_values: Tensor, energy: float) -> int:
    """Return the smallest r whose first r components hold more than `energy` of Σσ², over all matrices together.

    Return all of them if no smaller number does: a flat spectrum is kept, never zeroed.
    """
    energies = singular_values.double().square().flatten(0, -2).sum(0)  # (n,)
    enough = energies.cumsum(0) > energy * energies.sum()
    return int(enough.int().argmax()) + 1 if bool(enough.any()) else len(energies)


def largest_rank(shape: torch.Size | tuple[int, ...]) -> int:
    """Return the greatest r for which factors of (..., m, n) have fewer entries than the matrices; it may be 0."""
    m, n = shape[-2:]
    return (m * n - 1) // (m + n)


def too_flat(gram: Tensor, energy: float, rank: int) -> bool:
    """Return True if `rank` components certainly hold no more than `energy`, without a decomposition.

    A matrix's energies σ² are the eigenvalues λ of its Gram matrix G, and r of them are at most √r·‖λ‖ = √r·‖G‖. It is
    True for a matrix that is not finite.
    """
    bound = rank**0.5 * gram.flatten(-2).norm(dim=-1).sum()
    return not bool(bound > energy * gram.diagonal(dim1=-2, dim2=-1).sum())


def factorise(tensor: Tensor, energy: float, view: MatrixView) -> Factors | None:
    """Return factors that hold `energy` of the tensor, or None if the tensor itself is no larger than they are.

    A tensor that is not finite has no factors either; the receiver reports that training diverged.
    The singular vectors of a matrix's shorter side are the eigenvectors of its small Gram matrix; those of the r
    greatest, and the matrix seen from them, are the truncated decomposition.
    """
    if tensor.dim() < 2 or tensor.shape[0] == 1:
        return None
    matrices = as_matrices(tensor, view).double()
    most = largest_rank(matrices.shape)
    if most == 0:
        return None
    is_wide = matrices.shape[-2] <= matrices.shape[-1]
    gram = matrices @ matrices.mT if is_wide else matrices.mT @ matrices
    if too_flat(gram, energy, most):
        return None
    matrices, gram = matrices.cpu(), gram.cpu()  # where such small ones are decomposed sooner
    energies, directions = torch.linalg.eigh(gram)  # the smallest first
    values = energies.clamp(min=0.0).sqrt().flip(-1)
    rank = kept_rank(values.unsqueeze(0) if values.dim() == 1 else values, energy)
    if rank > most:
        return None
    basis = directions.flip(-1)[..., :rank]
    left, right = (basis, basis.mT @ matrices) if is_wide else (matrices @ basis, basis.mT)
    return Factors(left.float().contiguous(), right.float().contiguous())


def multiply(factors: Factors, shape: torch.Size | tuple[int, ...]) -> Tensor:
    """Return the tensor of this shape that the factors stand for."""
    return (factors.left @ factors.right).reshape(shape)


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
        encoded: State = {}
        for name, tensor in tensors.items():
            factors = factorise(tensor, energy, self.hyper.matrices)
            if factors is None:
                encoded[name] = tensor
            else:
                encoded[name + LEFT], encoded[name + RIGHT] = factors
        return encoded

    def decode(self, travelled: Mapping[str, Tensor]) -> State:
        """Return products of factors, and the tensors that were not factorised."""
        return {
            name: travelled[name]
            if name in travelled
            else multiply(Factors(travelled[name + LEFT], travelled[name + RIGHT]), shape)
            for name, shape in self.tensors.items()
        }

    def _matrices(self, name: str) -> tuple[int, ...]:
        return tuple(as_matrices(torch.empty(self.tensors[name], device="meta"), self.hyper.matrices).shape)


def build(hyper: FedKDHyper, federation: FederationSpec) -> Algorithm:
    """Return FedKD; the mentee is the uniform mean over clients. Table 2 has no formula, since it leaves r open."""
    shared = SharedNetwork.of(hyper, federation)
    low_rank = LowRank(shared.shapes, hyper)
    coder = Coder(low_rank.encode, low_rank.decode)
    width = federation.proto_dim
    client_kind: type[AuxiliaryClient] = AuxiliaryClient
    server_kind, as_updates = MeanServer, hyper.factorised == "updates"
    if as_updates:
        if federation.wire.down != "float32":
            raise ValueError(
                f"factorised: updates needs wire.down: float32, not {federation.wire.down}, because the errors of "
                "rounded updates would add up at the clients; wire.up may be smaller"
            )
        client_kind, server_kind = UpdateClient, UpdateServer
    return Algorithm(
        name="fedkd",
        client=client_kind(
            "fedkd", hyper, shared,
            lambda modules, own, other, labels: adaptive_losses(
                own, other, modules["adapter"](other.features), labels, hyper
            ),
            coder,
            more=lambda: {"adapter": nn.Linear(width, width, bias=False)},
        ),
        server=shared.server(coder, server_kind),
        table2_parameters=lambda _held: None,
        tensor_shapes=low_rank.shapes,
        tensor_parts=low_rank.parts,
        agreed={"matrices": hyper.matrices, **({"factorised": hyper.factorised} if as_updates else {})},
        reported=frozenset((BASE,)),
    )  # fmt: skip


SPEC = AlgorithmSpec("fedkd", "FedKD", FedKDHyper, build)
