"""FedTGP's trainable global prototypes: a small network on the server and its contrastive loss with adaptive margin.

Jianqing Zhang et al., "FedTGP: Trainable Global Prototypes with Adaptive-Margin-Enhanced Contrastive Learning for
Data and Model Heterogeneity in Federated Learning", AAAI 2024. The TinyProto paper adopts it unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional

from tinyproto.core.losses import TINY
from tinyproto.core.prototypes import Prototypes
from tinyproto.core.task import Batch, Step


class TrainablePrototypes(nn.Module):
    """One learned vector per class through Linear, ReLU, Linear: its outputs are the global prototypes."""

    def __init__(self, num_classes: int, dim: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(num_classes, dim)
        self.hidden = nn.Linear(dim, dim)
        self.output = nn.Linear(dim, dim)

    def forward(self) -> Tensor:
        """All global prototypes, (K, d)."""
        projected: Tensor = self.output(functional.relu(self.hidden(self.embedding.weight)))
        return projected


def pairwise_distances(left: Tensor, right: Tensor) -> Tensor:
    """Euclidean distances (N, K); distance and gradient stay finite at zero.

    Through the expanded square on a CPU; on a GPU from the differences, which is one kernel instead of ten.
    """
    if left.is_cuda:
        return torch.cdist(left, right, compute_mode="donot_use_mm_for_euclid_dist")
    squared = left.square().sum(1, keepdim=True) + right.square().sum(1) - 2.0 * (left @ right.T)
    return squared.clamp_min(TINY).sqrt()


def adaptive_margin(class_centres: Prototypes, cap: float) -> Tensor:
    """δ = min(max_k min_{k'≠k} ‖Q_k − Q_k'‖₂, cap) over the classes present; zero where fewer than two are.

    Q_k is the unweighted mean of the uploads of class k.
    """
    centres = class_centres.values[class_centres.present].double()
    if len(centres) < 2:
        return torch.zeros((), device=class_centres.values.device)
    distances = torch.cdist(centres, centres, compute_mode="donot_use_mm_for_euclid_dist")
    distances.fill_diagonal_(torch.inf)
    return distances.min(1).values.max().clamp_max(cap).float()


def distance_penalty(margin: Tensor, offered: Tensor) -> Tensor:
    """(K, K): what is added to the distance from an upload of class j, a row, to every global prototype.

    The margin δ to its own, ∞ to those that are not offered.
    """
    penalty = torch.diag(margin.expand(len(offered)))
    return penalty.masked_fill(~offered, torch.inf)


def margin_contrastive_loss(uploads: Tensor, labels: Tensor, learned: Tensor, penalty: Tensor) -> Tensor:
    """Cross-entropy over −distance to every offered global prototype, the true class pushed away by the margin δ."""
    return functional.cross_entropy(-(pairwise_distances(uploads, learned) + penalty[labels]), labels)


def contrastive_step(modules: nn.ModuleDict, batch: Batch, context: Mapping[str, Tensor]) -> Step:
    """One step of the server's fit: the uploads of this batch against all learned prototypes."""
    loss = margin_contrastive_loss(batch.inputs, batch.labels, modules["prototypes"](), context["penalty"])
    return Step(loss, loss.detach().unsqueeze(0))
