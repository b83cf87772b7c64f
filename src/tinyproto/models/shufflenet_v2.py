"""ShuffleNetV2, widths ×1.0 and ×0.5: one half of the channels is convolved, then both halves are mixed.

N. Ma, X. Zhang, H.-T. Zheng, J. Sun, "ShuffleNet V2: Practical Guidelines for Efficient CNN Architecture Design",
ECCV 2018, Table 5. Parameters are named and shaped as torchvision's. Their initial values are PyTorch's: the paper does
not specify them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from tinyproto.models.split import PoolFeatures, SplitModel, average_map, normalised_convolution

STEM, WIDTH = 24, 1024
BLOCKS = (4, 8, 4)  # of the three stages
X1_0, X0_5 = (116, 232, 464), (48, 96, 192)  # their channels


def shuffle_channels(values: Tensor) -> Tensor:
    """Interleave the two halves of the channels, so that each half of the next block has channels of both."""
    batch, channels, height, width = values.shape
    return values.reshape(batch, 2, channels // 2, height, width).transpose(1, 2).reshape(values.shape)


class ShuffleUnit(nn.Module):
    """Stride 1 leaves the first half of the channels as it is; stride 2 makes both halves from all channels."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        half = outputs // 2
        self.splits = stride == 1
        passing = (
            *normalised_convolution(inputs, inputs, 3, stride=stride, groups=inputs),
            *normalised_convolution(inputs, half, 1),
            nn.ReLU(),
        )
        self.branch1 = nn.Sequential(*(() if self.splits else passing))
        self.branch2 = nn.Sequential(
            *normalised_convolution(half if self.splits else inputs, half, 1),
            nn.ReLU(),
            *normalised_convolution(half, half, 3, stride=stride, groups=half),
            *normalised_convolution(half, half, 1),
            nn.ReLU(),
        )

    def forward(self, values: Tensor) -> Tensor:
        """Map (B, C, H, W) to (B, C', H/stride, W/stride)."""
        passing, convolved = values.chunk(2, dim=1) if self.splits else (values, values)
        return shuffle_channels(torch.cat((self.branch1(passing), self.branch2(convolved)), dim=1))


class ShuffleNetV2(nn.Module):
    """The trunk and an ending after its 1024 averaged features: pooling to d, or a classifier as torchvision's."""

    def __init__(
        self, stages: Sequence[int], ending: nn.Module, *, channels: int = 3, small_images: bool = False
    ) -> None:
        super().__init__()
        stride = 1 if small_images else 2
        self.conv1 = nn.Sequential(*normalised_convolution(channels, STEM, 3, stride=stride), nn.ReLU())
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        self.stage2 = _stage(STEM, stages[0], BLOCKS[0])
        self.stage3 = _stage(stages[0], stages[1], BLOCKS[1])
        self.stage4 = _stage(stages[1], stages[2], BLOCKS[2])
        self.conv5 = nn.Sequential(*normalised_convolution(stages[2], WIDTH, 1), nn.ReLU())
        self.fc = ending

    def forward(self, images: Tensor) -> Tensor:
        """Map (B, channels, H, W) to the output of the ending."""
        values = self.stage4(self.stage3(self.stage2(self.maxpool(self.conv1(images)))))
        return self.fc(average_map(self.conv5(values)))  # type: ignore[no-any-return]


def _stage(inputs: int, outputs: int, blocks: int) -> nn.Sequential:
    rest = (ShuffleUnit(outputs, outputs, stride=1) for _ in range(blocks - 1))
    return nn.Sequential(ShuffleUnit(inputs, outputs, stride=2), *rest)


def shufflenet_v2(
    input_shape: tuple[int, int, int],
    proto_dim: int,
    num_classes: int,
    *,
    stages: Sequence[int] = X1_0,
    small_images: bool = False,
) -> SplitModel:
    """Build ShuffleNetV2 ×1.0 with d features.

    `stages` are the channels of another width. `small_images` differs from the paper: stride 1 in the stem's
    convolution.
    """
    extractor = ShuffleNetV2(stages, PoolFeatures(proto_dim), channels=input_shape[0], small_images=small_images)
    return SplitModel(extractor, nn.Linear(proto_dim, num_classes))
