"""EfficientNet-B0: inverted residuals with squeeze-and-excitation and stochastic depth.

M. Tan, Q. V. Le, "EfficientNet: Rethinking Model Scaling for Convolutional Neural Networks", ICML 2019, Table 1, based
on J. Hu, L. Shen, G. Sun, "Squeeze-and-Excitation Networks", CVPR 2018, and on G. Huang, Y. Sun, Z. Liu, D. Sedra,
K. Weinberger, "Deep Networks with Stochastic Depth", ECCV 2016. Parameters are named and shaped as
torchvision's.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from tinyproto.models.split import (
    DropoutLinear,
    PoolFeatures,
    SplitModel,
    average_map,
    initialise_convolutions,
    normalised_convolution,
)

STEM, WIDTH = 32, 1280
MOST_DROPPED = 0.2  # stochastic depth: the probability to skip a block grows with depth from 0 towards this
SQUEEZE = 4  # squeeze-and-excitation has a quarter of the block's input channels
STAGES = (  # expansion, kernel, stride of the first block, channels, blocks
    (1, 3, 1, 16, 1),
    (6, 3, 2, 24, 2),
    (6, 5, 2, 40, 2),
    (6, 3, 2, 80, 3),
    (6, 5, 1, 112, 3),
    (6, 5, 2, 192, 4),
    (6, 3, 1, 320, 1),
)


def _activated(inputs: int, outputs: int, kernel: int, *, stride: int = 1, groups: int = 1) -> nn.Sequential:
    return nn.Sequential(*normalised_convolution(inputs, outputs, kernel, stride=stride, groups=groups), nn.SiLU())


class SqueezeExcitation(nn.Module):
    """Multiply each channel by a weight in (0, 1) that depends on the means of all channels."""

    def __init__(self, channels: int, squeezed: int) -> None:
        super().__init__()
        self.fc1 = nn.Conv2d(channels, squeezed, 1)
        self.fc2 = nn.Conv2d(squeezed, channels, 1)

    def forward(self, values: Tensor) -> Tensor:
        """Keep the shape (B, C, H, W)."""
        means = values.mean((2, 3), keepdim=True)
        return values * torch.sigmoid(self.fc2(functional.silu(self.fc1(means))))


class StochasticDepth(nn.Module):
    """While training, zero all values of random samples and scale up the others."""

    def __init__(self, dropped: float) -> None:
        super().__init__()
        self.dropped = dropped

    def forward(self, values: Tensor) -> Tensor:
        """Keep the shape (B, C, H, W)."""
        if not self.training or self.dropped == 0.0:
            return values
        # `rand` instead of `bernoulli_`, which is in place and so cannot be vectorised over clients.
        kept = torch.rand(values.shape[0], 1, 1, 1, device=values.device) >= self.dropped
        return values * (kept.to(values.dtype) / (1.0 - self.dropped))


class MBConv(nn.Module):
    """Widen, filter each channel, weigh the channels, narrow; added to its input if the shape is the same."""

    def __init__(self, inputs: int, outputs: int, *, kernel: int, stride: int, expansion: int, dropped: float) -> None:
        super().__init__()
        self.residual = stride == 1 and inputs == outputs
        hidden = inputs * expansion
        widen = [] if expansion == 1 else [_activated(inputs, hidden, 1)]
        self.block = nn.Sequential(
            *widen,
            _activated(hidden, hidden, kernel, stride=stride, groups=hidden),
            SqueezeExcitation(hidden, inputs // SQUEEZE),
            nn.Sequential(*normalised_convolution(hidden, outputs, 1)),
        )
        self.stochastic_depth = StochasticDepth(dropped)

    def forward(self, values: Tensor) -> Tensor:
        """Map (B, C, H, W) to (B, C', H/stride, W/stride)."""
        narrow: Tensor = self.block(values)
        return values + self.stochastic_depth(narrow) if self.residual else narrow


class EfficientNetB0(nn.Module):
    """The trunk and an ending after its 1280 averaged features: pooling to d, or a classifier as torchvision's."""

    def __init__(self, ending: nn.Module, *, channels: int = 3, small_images: bool = False) -> None:
        super().__init__()
        layers: list[nn.Module] = [_activated(channels, STEM, 3, stride=1 if small_images else 2)]
        inputs, depth, depths = STEM, 0, sum(blocks for *_, blocks in STAGES)
        for expansion, kernel, first_stride, outputs, blocks in STAGES:
            stage = []
            for block in range(blocks):
                stride, dropped = first_stride if block == 0 else 1, MOST_DROPPED * depth / depths
                stage.append(
                    MBConv(inputs, outputs, kernel=kernel, stride=stride, expansion=expansion, dropped=dropped)
                )
                inputs, depth = outputs, depth + 1
            layers.append(nn.Sequential(*stage))
        self.features = nn.Sequential(*layers, _activated(inputs, WIDTH, 1))
        initialise_convolutions(self)
        self.classifier = ending

    def forward(self, images: Tensor) -> Tensor:
        """Map (B, channels, H, W) to the output of the ending."""
        return self.classifier(average_map(self.features(images)))  # type: ignore[no-any-return]


def efficientnet_b0(
    input_shape: tuple[int, int, int],
    proto_dim: int,
    num_classes: int,
    head_dropout: float = 0.0,
    *,
    head_dropout_in_place: bool = False,
    small_images: bool = False,
) -> SplitModel:
    """Build EfficientNet-B0 with d features and a linear head, after dropout if the preset asks for it.

    Dropout in place overwrites the features, so it is the extractor's last layer. `small_images` differs from the
    paper: stride 1 in the stem.
    """
    ending: nn.Module = PoolFeatures(proto_dim)
    if head_dropout and head_dropout_in_place:
        ending, head_dropout = nn.Sequential(ending, nn.Dropout(head_dropout)), 0.0
    extractor = EfficientNetB0(ending, channels=input_shape[0], small_images=small_images)
    if head_dropout:
        return SplitModel(extractor, DropoutLinear(proto_dim, num_classes, head_dropout))
    return SplitModel(extractor, nn.Linear(proto_dim, num_classes))
