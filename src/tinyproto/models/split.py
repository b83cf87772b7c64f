"""SplitModel: a network as a feature extractor to d dimensions and a head over K classes."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor, nn


class Output(NamedTuple):
    """Both ends of a split network."""

    features: Tensor  # (B, d): what prototypes are means of
    logits: Tensor  # (B, K)


class SplitModel(nn.Module):
    """f_i, the representation layers to ℝᵈ, and g_i, the decision layer to ℝᴷ (paper section 3)."""

    any_layout = False
    """Whether convolutions may be kept with channels last; code that calls `view` on a feature map forbids it."""

    def __init__(self, extractor: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.extractor = extractor
        self.head = head

    def forward(self, inputs: Tensor) -> Output:
        """Features and logits of a batch."""
        features = self.extractor(inputs)
        return Output(features, self.head(features))
