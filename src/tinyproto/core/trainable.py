"""FedTGP's trainable global prototypes: a small network on the server and its contrastive loss with adaptive margin.

Jianqing Zhang et al., "FedTGP: Trainable Global Prototypes with Adaptive-Margin-Enhanced Contrastive Learning for
Data and Model Heterogeneity in Federated Learning", AAAI 2024. The TinyProto paper adopts it unchanged.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from tinyproto.core.losses import TINY
from tinyproto.core.prototypes import Prototypes


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
    """Euclidean distances (N, K) through the expanded square; distance and gradient stay finite at zero."""
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


def margin_contrastive_loss(
    uploads: Tensor, labels: Tensor, learned: Tensor, margin: Tensor, offered: Tensor
) -> Tensor:
    """Cross-entropy over −distance to every offered global prototype, the true class pushed away by the margin δ."""
    distances = pairwise_distances(uploads, learned)  # (B, K)
    distances = distances + margin * functional.one_hot(labels, learned.shape[0]).to(distances.dtype)
    return functional.cross_entropy((-distances).masked_fill(~offered, -torch.inf), labels)
