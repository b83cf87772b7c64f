"""ProtoNorm: FedProto's client, and a server that spreads the class means over a sphere and makes them long.

Gyuejeong Lee et al., "Heterogeneous Federated Learning with Prototype Alignment and Upscaling", arXiv 2507.04310.
Prototype Alignment (PA) is a Thomson problem: unit prototypes repel each other until they hold still. Prototype
Upscaling (PU) multiplies them by a constant.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from tinyproto.algorithms.base import Algorithm, AlgorithmSpec, FederationSpec, not_negative, positive
from tinyproto.algorithms.fedproto import FedProtoHyper, StreamingServer, keep_last, prototype_algorithm, stored_rows
from tinyproto.algorithms.streaming import Gathered
from tinyproto.algorithms.tinyproto_fp import TinyProtoClient
from tinyproto.algorithms.tinyproto_hyper import OptionalCPSHyper
from tinyproto.core import cps
from tinyproto.core.prototypes import TINY, Prototypes
from tinyproto.core.task import State

DECAY, DECAY_EVERY = 0.95, 10
"""Factor of the alignment's learning rate, and the number of steps between its uses."""

CALM, CALM_STEPS = 1e-4, 10
"""The alignment stops once the mean force changes by less than `CALM` in `CALM_STEPS` consecutive steps."""


@dataclass(frozen=True)
class ProtoNormHyper(OptionalCPSHyper, FedProtoHyper):
    """FedProto's hyper-parameters, those of the alignment, and the length."""

    upscale: Annotated[float, "length of all global prototypes; above 0"] = 80.0
    align_steps: Annotated[int, "most steps of the alignment, per round; 0 keeps the directions of the means"] = 500
    align_learning_rate: Annotated[float, "of the alignment, times 0.95 every 10 steps; above 0"] = 0.1
    align_momentum: Annotated[float, "of the alignment; 0 or more, below 1"] = 0.9

    def __post_init__(self) -> None:
        super().__post_init__()
        FedProtoHyper.__post_init__(self)
        positive(upscale=self.upscale, align_learning_rate=self.align_learning_rate)
        not_negative(align_steps=self.align_steps, align_momentum=self.align_momentum)
        if self.align_momentum >= 1:
            raise ValueError(f"align_momentum must be below 1, not {self.align_momentum}")


def repulsion(points: Tensor) -> Tensor:
    """Return the force on each unit vector (n, d): F_i = Σ_j (p_i − p_j) / ‖p_i − p_j‖²; equal points exert none.

    Differences are never formed: Σ_j w_ij (p_i − p_j) = p_i Σ_j w_ij − Σ_j w_ij p_j, and ‖p_i − p_j‖² = 2 − 2 p_i·p_j.
    """
    squares = 2.0 - 2.0 * (points @ points.T)
    weights = torch.where(squares > TINY, 1.0 / squares.clamp_min(TINY), torch.zeros_like(squares))
    weights.fill_diagonal_(0.0)
    return points * weights.sum(1, keepdim=True) - weights @ points


def unit(points: Tensor) -> Tensor:
    """Return the points (n, d) projected onto the unit sphere."""
    lengths: Tensor = torch.linalg.vector_norm(points, dim=1, keepdim=True)
    return points / lengths.clamp_min(TINY)


def align(points: Tensor, owned: Tensor | None, hyper: ProtoNormHyper) -> Tensor:
    """Return the unit vectors (n, d) after the Thomson relaxation: momentum, and back to the sphere after each step.

    With CPS, forces act on the dimensions that a class owns (n, d), so each class stays on its mask.
    """
    velocity, rate = torch.zeros_like(points), hyper.align_learning_rate
    last, calm = float("inf"), 0
    for step in range(1, hyper.align_steps + 1):
        forces = repulsion(points) if owned is None else repulsion(points) * owned
        velocity = hyper.align_momentum * velocity + rate * forces
        points = unit(points + velocity)
        if step % DECAY_EVERY == 0:
            rate *= DECAY
        strength = float(torch.linalg.vector_norm(forces, dim=1).mean())
        calm = calm + 1 if abs(strength - last) < CALM else 0
        last = strength
        if calm == CALM_STEPS:
            break
    return points


class ProtoNormServer(StreamingServer):
    """Needs only the sums of the uploads; aligns and scales their means."""

    def __init__(self, hyper: ProtoNormHyper, num_classes: int, width: int, masks: Tensor | None) -> None:
        super().__init__(num_classes, width)
        self.hyper = hyper
        self.masks = masks  # m_j, (K, d); None without CPS

    def conclude(self, state: State, gathered: Gathered) -> State:
        """Return the aligned means; a class that no client sent takes part with its last direction."""
        if not gathered.uploads:
            return state
        means = cps.with_length(self.merge_sums(gathered), 1.0)  # a mean of zero has no direction and is absent
        units = keep_last(means, cps.with_length(stored_rows(state), 1.0))
        classes = units.present
        values = cps.reconstruct(Prototypes(units.values.double(), classes), self.masks).values  # (K, d)
        owned = None if self.masks is None else self.masks[classes]
        values[classes] = align(values[classes], owned, self.hyper)
        aligned = cps.compress(Prototypes(values, classes), self.masks)  # (K, w)
        return cps.with_length(aligned, self.hyper.upscale)._asdict()


def build(hyper: ProtoNormHyper, federation: FederationSpec) -> Algorithm:
    """Return ProtoNorm; with `sent_dim`, clients send and the server aligns the owned dimensions of each class."""
    masks, width = hyper.sent(federation)
    client = TinyProtoClient(hyper, federation, masks, scaling="none")
    server = ProtoNormServer(hyper, federation.num_classes, width, masks)
    return prototype_algorithm("protonorm", client, server, width=width, masks=masks)


SPEC = AlgorithmSpec("protonorm", "ProtoNorm", ProtoNormHyper, build)
