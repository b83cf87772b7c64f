"""FedKD's compression: a tensor as two thin factors that keep most of its energy, where that is smaller.

Chuhan Wu et al., "Communication-efficient federated learning via knowledge distillation", Nature Communications 2022.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from tinyproto.core.task import State

MatrixView = Literal["filters", "kernels"]
"""A convolution's weight is one matrix of (out, in·k·k), or one of k × k for each pair of channels."""

LEFT, RIGHT = ".left", ".right"
"""Endings of the names of a tensor's factors."""


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

    A matrix's energies σ² are the eigenvalues λ of its Gram matrix G, and r of them are at most √r·‖λ‖ = √r·‖G‖.
    """
    bound = rank**0.5 * gram.flatten(-2).norm(dim=-1).sum()
    return bool(bound <= energy * gram.diagonal(dim1=-2, dim2=-1).sum())


def factorise(tensor: Tensor, energy: float, view: MatrixView) -> Factors | None:
    """Return factors that hold `energy` of the tensor, or None if the tensor itself is no larger than they are.

    A tensor that is not finite has no factors either; the receiver reports that training diverged.
    The singular vectors of a matrix's shorter side are the eigenvectors of its small Gram matrix; those of the r
    greatest, and the matrix seen from them, are the truncated decomposition.
    """
    if tensor.dim() < 2 or tensor.shape[0] == 1 or not bool(tensor.isfinite().all()):
        return None
    matrices = as_matrices(tensor, view).double()
    most = largest_rank(matrices.shape)
    if most == 0:
        return None
    is_wide = matrices.shape[-2] <= matrices.shape[-1]
    gram = matrices @ matrices.mT if is_wide else matrices.mT @ matrices
    if too_flat(gram, energy, most):
        return None
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


def compress_tensors(tensors: State, energy: float, view: MatrixView) -> State:
    """Return each tensor in its smaller form: by its name, or as factors by names ending in `LEFT` and `RIGHT`."""
    compressed: State = {}
    for name, tensor in tensors.items():
        factors = factorise(tensor, energy, view)
        if factors is None:
            compressed[name] = tensor
        else:
            compressed[name + LEFT], compressed[name + RIGHT] = factors
    return compressed


def restore_tensors(compressed: State, shapes: dict[str, tuple[int, ...]]) -> State:
    """Return each tensor in its own shape again."""
    return {
        name: compressed[name]
        if name in compressed
        else multiply(Factors(compressed[name + LEFT], compressed[name + RIGHT]), shape)
        for name, shape in shapes.items()
    }
