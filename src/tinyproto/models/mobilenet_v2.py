"""MobileNetV2, width 1.0: inverted residuals with linear bottlenecks.

M. Sandler, A. Howard, M. Zhu, A. Zhmoginov, L.-C. Chen, "MobileNetV2: Inverted Residuals and Linear Bottlenecks",
CVPR 2018, Table 2. Parameters are named and shaped as torchvision's.
"""

from __future__ import annotations

from torch import Tensor, nn

from tinyproto.models.split import (
    PoolFeatures,
    SplitModel,
    average_map,
    initialise_convolutions,
    normalised_convolution,
)

STEM, WIDTH, DROPOUT = 32, 1280, 0.2
STAGES = (  # expansion t, channels c, blocks n, stride s of the first block
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


def _activated(inputs: int, outputs: int, kernel: int, *, stride: int = 1, groups: int = 1) -> nn.Sequential:
    return nn.Sequential(*normalised_convolution(inputs, outputs, kernel, stride=stride, groups=groups), nn.ReLU6())


class InvertedResidual(nn.Module):
    """Widen, filter each channel, narrow without activation; added to its input if the shape is the same."""

    def __init__(self, inputs: int, outputs: int, stride: int, expansion: int) -> None:
        super().__init__()
        self.residual = stride == 1 and inputs == outputs
        hidden = inputs * expansion
        widen = [] if expansion == 1 else [_activated(inputs, hidden, 1)]
        filtered = _activated(hidden, hidden, 3, stride=stride, groups=hidden)
        self.conv = nn.Sequential(*widen, filtered, *normalised_convolution(hidden, outputs, 1))

    def forward(self, values: Tensor) -> Tensor:
        """Map (B, C, H, W) to (B, C', H/stride, W/stride)."""
        narrow: Tensor = self.conv(values)
        return values + narrow if self.residual else narrow


class MobileNetV2(nn.Module):
    """The trunk, dropout and an ending after its 1280 averaged features: pooling to d, or a classifier."""

    def __init__(self, ending: nn.Module, *, channels: int = 3, small_images: bool = False) -> None:
        super().__init__()
        layers: list[nn.Module] = [_activated(channels, STEM, 3, stride=1 if small_images else 2)]
        inputs = STEM
        for expansion, outputs, blocks, stride in STAGES:
            for block in range(blocks):
                layers.append(InvertedResidual(inputs, outputs, stride if block == 0 else 1, expansion))
                inputs = outputs
        self.features = nn.Sequential(*layers, _activated(inputs, WIDTH, 1))
        initialise_convolutions(self)
        self.classifier = nn.Sequential(nn.Dropout(DROPOUT), ending)

    def forward(self, images: Tensor) -> Tensor:
        """Map (B, channels, H, W) to the output of the ending."""
        return self.classifier(average_map(self.features(images)))  # type: ignore[no-any-return]


def mobilenet_v2(
    input_shape: tuple[int, int, int], proto_dim: int, num_classes: int, *, small_images: bool = False
) -> SplitModel:
    """Build MobileNetV2 with d features; its dropout precedes the pooling, so in training it affects the features.

    `small_images` differs from the paper: stride 1 in the stem.
    """
    extractor = MobileNetV2(PoolFeatures(proto_dim), channels=input_shape[0], small_images=small_images)
    return SplitModel(extractor, nn.Linear(proto_dim, num_classes))
