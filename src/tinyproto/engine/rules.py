"""The rules by which a client classifies, as modules: features in, a score for each class out; the highest one wins.

The class is that of `engine/measure.py: score`, which compares the same numbers. Scores are computed in float64, so
that no two that differ become equal.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from tinyproto.core.prototypes import Centred, Prototypes


class HeadRule(nn.Module):
    """Scores are the softmax of the head's logits."""

    def __init__(self, head: nn.Module) -> None:
        super().__init__()
        self.head = head

    def forward(self, features: Tensor) -> Tensor:
        """Map (N, d) to (N, K)."""
        logits: Tensor = self.head(features)
        return logits.double().softmax(1)


class PrototypeRule(nn.Module):
    """Scores are minus the Euclidean distances to the prototypes; a class without a prototype has minus infinity."""

    classes: Tensor
    centre: Tensor
    values: Tensor
    columns: Tensor

    def __init__(self, prototypes: Prototypes) -> None:
        super().__init__()
        rows = Centred.of(prototypes)
        columns = torch.full((prototypes.num_classes,), len(rows.classes))  # of absent classes: the one behind the last
        columns[rows.classes] = torch.arange(len(rows.classes))
        for name, tensor in {**rows._asdict(), "columns": columns}.items():
            self.register_buffer(name, tensor)

    def forward(self, features: Tensor) -> Tensor:
        """Map (N, d) to (N, K)."""
        compared = Centred(self.classes, self.centre, self.values).compare(features).double()
        offset = (features - self.centre).double().square().sum(1, keepdim=True)
        squares = compared + offset
        distances = (squares - squares.amin(1, keepdim=True).clamp_max(0.0)).sqrt()  # (N, n); rounding may go below 0
        return functional.pad(-distances, (0, 1), value=-torch.inf).index_select(1, self.columns)
