"""Small CNNs of different depth, width and kind, for small images and quick trials on a CPU.

They were chosen by trial on the digits. Each ends in ReLU(Linear(·, d)), so a feature is never negative and a unit can
be dead for a class, as in the paper. The vector before that layer is normalised per sample, which bounds the step
towards a distant prototype, so plain SGD stays stable while FedTGP's margin drives prototypes apart.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from tinyproto.models.split import SplitModel

_GRID = 4  # the last feature map is averaged to 4×4


def _convolution(inputs: int, outputs: int, kernel: int, *, batch_norm: bool, separable: bool) -> list[nn.Module]:
    depthwise = [nn.Conv2d(inputs, inputs, kernel, padding=kernel // 2, groups=inputs, bias=False)] if separable else []
    if separable:
        kernel = 1
    layers = [*depthwise, nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2, bias=not batch_norm)]
    return [*layers, *([nn.BatchNorm2d(outputs)] if batch_norm else []), nn.ReLU()]


def small_cnn(
    input_shape: tuple[int, int, int], proto_dim: int, num_classes: int, channels: Sequence[int], *, kernel: int = 3,
    batch_norm: bool = False, separable: bool = False,
) -> SplitModel:  # fmt: skip
    """Stack convolutions, with 2×2 max-pooling after the first, then a layer to d; `separable` excludes the first."""
    layers: list[nn.Module] = []
    inputs = input_shape[0]
    for depth, outputs in enumerate(channels):
        layers += _convolution(inputs, outputs, kernel, batch_norm=batch_norm, separable=separable and depth > 0)
        if depth == 0:
            layers.append(nn.MaxPool2d(2, ceil_mode=True))
        inputs = outputs
    hidden = inputs * _GRID**2
    layers += [nn.AdaptiveAvgPool2d(_GRID), nn.Flatten(), nn.LayerNorm(hidden, elementwise_affine=False)]
    layers += [nn.Linear(hidden, proto_dim), nn.ReLU()]
    return SplitModel(nn.Sequential(*layers), nn.Linear(proto_dim, num_classes))
