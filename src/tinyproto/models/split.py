"""SplitModel, a network split into a feature extractor and a head, and the layers that our networks share."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor, nn
from torch.nn import functional


class Output(NamedTuple):
    """The results of both parts of a split network."""

    features: Tensor  # (B, d); prototypes are means of features
    logits: Tensor  # (B, K)


class SplitModel(nn.Module):
    """f_i, the representation layers to ℝᵈ, and g_i, the decision layer to ℝᴷ (paper section 3)."""

    any_layout = False
    """True if convolutions may use channels last; a network that calls `view` on a feature map does not allow it."""

    registered = False
    """True for the networks of the package, which fast trainers take without a trial."""

    def __init__(self, extractor: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.extractor = extractor
        self.head = head

    def forward(self, inputs: Tensor) -> Output:
        """Return the features and logits of a batch."""
        features = self.extractor(inputs)
        return Output(features, self.head(features))


def normalised_convolution(
    inputs: int, outputs: int, kernel: int, *, stride: int = 1, groups: int = 1
) -> tuple[nn.Conv2d, nn.BatchNorm2d]:
    """Return a convolution that keeps the size up to its stride, and its normalisation, which makes a bias useless."""
    convolution = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, groups=groups, bias=False)
    return convolution, nn.BatchNorm2d(outputs)


def average_map(values: Tensor) -> Tensor:
    """Average each channel over its map, (B, C, H, W) to (B, C)."""
    return values.mean((2, 3))


class PoolFeatures(nn.Module):
    """Reduce the C features of a network to the federation's d, by adaptive average pooling over the feature axis.

    Feature j of d is the mean of features ⌊j·C/d⌋ to ⌈(j+1)·C/d⌉ − 1: neighbours are averaged if C > d and
    repeated if C < d. The layer has no parameters and no activation.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, features: Tensor) -> Tensor:
        """Map (B, C) to (B, d)."""
        return functional.adaptive_avg_pool1d(features, self.dim)


class DropoutLinear(nn.Linear):
    """A linear layer with dropout of its inputs, whose parameters have the names of a plain linear layer.

    So heads with and without dropout can be exchanged and averaged. The features that prototypes are means of are not
    dropped.
    """

    def __init__(self, inputs: int, outputs: int, dropout: float) -> None:
        super().__init__(inputs, outputs)
        self.dropout = dropout

    def forward(self, inputs: Tensor) -> Tensor:
        """Map (B, d) to (B, K)."""
        return super().forward(functional.dropout(inputs, self.dropout, self.training))


def initialise_convolutions(trunk: nn.Module) -> None:
    """Draw weights with variance 2 / fan-out (He et al., 2015) and set biases to zero; keep the other layers."""
    for module in trunk.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)
