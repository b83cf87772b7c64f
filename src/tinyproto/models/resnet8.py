"""ResNet-8: a stem, one residual block each of 64, 128 and 256 channels, and the decision layer: eight layers.

The blocks and the stem are those of K. He, X. Zhang, S. Ren, J. Sun, "Deep Residual Learning for Image Recognition",
CVPR 2016, which does not have this depth; it is TinyProto's smallest network. Parameters are named as in torchvision's
residual networks, none of which has its shape.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

from tinyproto.models.split import (
    PoolFeatures,
    SplitModel,
    average_map,
    initialise_convolutions,
    normalised_convolution,
)

WIDTH = 256


class BasicBlock(nn.Module):
    """Two 3×3 convolutions and a shortcut, which is a 1×1 convolution if the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = normalised_convolution(inputs, outputs, 3, stride=stride)
        self.conv2, self.bn2 = normalised_convolution(outputs, outputs, 3)
        same = inputs == outputs and stride == 1
        shortcut = () if same else normalised_convolution(inputs, outputs, 1, stride=stride)
        self.downsample = nn.Sequential(*shortcut)

    def forward(self, values: Tensor) -> Tensor:
        """Map (B, C, H, W) to (B, C', H/stride, W/stride)."""
        inner = functional.relu(self.bn1(self.conv1(values)))
        return functional.relu(self.bn2(self.conv2(inner)) + self.downsample(values))


class ResNet8(nn.Module):
    """The trunk and an ending after its 256 averaged features: pooling to d, or a decision layer."""

    def __init__(self, ending: nn.Module, *, channels: int = 3, small_images: bool = False) -> None:
        super().__init__()
        self.conv1, self.bn1 = normalised_convolution(channels, 64, 7, stride=1 if small_images else 2)
        self.maxpool = nn.Identity() if small_images else nn.MaxPool2d(3, stride=2, padding=1)
        self.layer1 = nn.Sequential(BasicBlock(64, 64, stride=1))
        self.layer2 = nn.Sequential(BasicBlock(64, 128, stride=2))
        self.layer3 = nn.Sequential(BasicBlock(128, WIDTH, stride=2))
        initialise_convolutions(self)
        self.fc = ending

    def forward(self, images: Tensor) -> Tensor:
        """Map (B, channels, H, W) to the output of the ending."""
        values = self.maxpool(functional.relu(self.bn1(self.conv1(images))))
        return self.fc(average_map(self.layer3(self.layer2(self.layer1(values)))))  # type: ignore[no-any-return]


def resnet8(
    input_shape: tuple[int, int, int], proto_dim: int, num_classes: int, *, small_images: bool = False
) -> SplitModel:
    """Build ResNet-8 with d features.

    `small_images` differs from the paper: stride 1 in the stem, and no max-pooling.
    """
    extractor = ResNet8(PoolFeatures(proto_dim), channels=input_shape[0], small_images=small_images)
    return SplitModel(extractor, nn.Linear(proto_dim, num_classes))
