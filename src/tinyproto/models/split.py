"""SplitModel: a network as a feature extractor to d dimensions and a head over K classes."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor, nn
from torch.nn import functional


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


def normalised_convolution(
    inputs: int, outputs: int, kernel: int, *, stride: int = 1, groups: int = 1
) -> tuple[nn.Conv2d, nn.BatchNorm2d]:
    """A convolution that keeps the size up to its stride, without the bias that its normalisation would undo."""
    convolution = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, groups=groups, bias=False)
    return convolution, nn.BatchNorm2d(outputs)


def average_map(values: Tensor) -> Tensor:
    """Global average pooling, (B, C, H, W) to (B, C)."""
    return values.mean((2, 3))


class PoolFeatures(nn.Module):
    """From the C features of a network to the federation's d, by adaptive average pooling over the feature axis.

    Feature j of d is the mean of features ⌊j·C/d⌋ to ⌈(j+1)·C/d⌉ − 1: neighbours are averaged where C > d and
    repeated where C < d. It has no parameters and no activation.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, features: Tensor) -> Tensor:
        """(B, C) to (B, d)."""
        return functional.adaptive_avg_pool1d(features, self.dim)

    def extra_repr(self) -> str:
        """For `print(model)`."""
        return str(self.dim)


class DropoutLinear(nn.Linear):
    """A linear layer that drops some of its inputs while training; its parameters are named as a plain one's.

    So heads with and without dropout can be exchanged and averaged. What it is given stays as it was: the features that
    prototypes are means of are not dropped.
    """

    def __init__(self, inputs: int, outputs: int, dropout: float) -> None:
        super().__init__(inputs, outputs)
        self.dropout = dropout

    def forward(self, inputs: Tensor) -> Tensor:
        """(B, d) to (B, K)."""
        return super().forward(functional.dropout(inputs, self.dropout, self.training))

    def extra_repr(self) -> str:
        """For `print(model)`."""
        return f"{super().extra_repr()}, dropout={self.dropout}"


def initialise_convolutions(trunk: nn.Module) -> None:
    """Normal with variance 2 / fan-out (He et al., 2015), biases zero; other layers keep PyTorch's values."""
    for module in trunk.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)
