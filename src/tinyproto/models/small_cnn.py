"""Four small CNNs of different depth, width and kind, for small images and quick trials on a CPU.

Each ends in ReLU(Linear(·, d)), so a feature is never negative and a unit can be dead for a class, as in the paper.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from tinyproto.models.split import SplitModel

ImageShape = tuple[int, int, int]


def _convolution(inputs: int, outputs: int, kernel: int, *, normalise: bool, separable: bool) -> list[nn.Module]:
    layers: list[nn.Module] = []
    if separable:
        layers.append(nn.Conv2d(inputs, inputs, kernel, padding=kernel // 2, groups=inputs, bias=False))
        inputs, outputs, kernel = inputs, outputs, 1
    layers.append(nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2, bias=not normalise))
    if normalise:
        layers.append(nn.BatchNorm2d(outputs))
    return [*layers, nn.ReLU()]


def _small_cnn(
    image: ImageShape, dim: int, num_classes: int, channels: Sequence[int], kernel: int = 3, normalise: bool = False,
    separable: bool = False,
) -> SplitModel:  # fmt: skip
    """Convolutions, each of the first two followed by 2×2 max-pooling, then 2×2 averages and a layer to d."""
    layers: list[nn.Module] = []
    inputs = image[0]
    for depth, outputs in enumerate(channels):
        layers += _convolution(inputs, outputs, kernel, normalise=normalise, separable=separable and depth > 0)
        if depth < 2:
            layers.append(nn.MaxPool2d(2, ceil_mode=True))
        inputs = outputs
    layers += [nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(4 * inputs, dim), nn.ReLU()]
    return SplitModel(nn.Sequential(*layers), nn.Linear(dim, num_classes))


def small_cnn_a(input_shape: ImageShape, proto_dim: int, num_classes: int) -> SplitModel:
    """Two plain 3×3 convolutions, 16 and 32 channels."""
    return _small_cnn(input_shape, proto_dim, num_classes, (16, 32))


def small_cnn_b(input_shape: ImageShape, proto_dim: int, num_classes: int) -> SplitModel:
    """Three 3×3 convolutions with batch normalisation, 16, 32 and 32 channels."""
    return _small_cnn(input_shape, proto_dim, num_classes, (16, 32, 32), normalise=True)


def small_cnn_c(input_shape: ImageShape, proto_dim: int, num_classes: int) -> SplitModel:
    """One wide 5×5 convolution, 48 channels."""
    return _small_cnn(input_shape, proto_dim, num_classes, (48,), kernel=5)


def small_cnn_d(input_shape: ImageShape, proto_dim: int, num_classes: int) -> SplitModel:
    """A 3×3 stem and two depthwise separable convolutions with batch normalisation, 24, 48 and 48 channels."""
    return _small_cnn(input_shape, proto_dim, num_classes, (24, 48, 48), normalise=True, separable=True)
