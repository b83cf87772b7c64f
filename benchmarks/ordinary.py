"""Nine networks and a folder of images that had no part in choosing any default.

Networks people write in an afternoon: with and without normalisation, ReLU and GELU, shallow and deep, an MLP. They
take any image size and end in d features.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch import nn

ImageShape = tuple[int, int, int]

PATTERNS = ("checks", "columns", "rows")
SIDE = 24


def plain_cnn(input_shape: ImageShape, proto_dim: int) -> nn.Module:
    """Build two convolutions, each with pooling, a linear layer, ReLU, without normalisation."""
    return nn.Sequential(*_convolutions((input_shape[0], 16, 32), nn.ReLU), *_flat(32, proto_dim), nn.ReLU())


def plain_cnn_gelu(input_shape: ImageShape, proto_dim: int) -> nn.Module:
    """Build the plain CNN with GELU; its features have either sign."""
    return nn.Sequential(*_convolutions((input_shape[0], 16, 32), nn.GELU), *_flat(32, proto_dim))


def shallow_cnn(input_shape: ImageShape, proto_dim: int) -> nn.Module:
    """Build one convolution, pooling, a linear layer, ReLU."""
    return nn.Sequential(*_convolutions((input_shape[0], 24), nn.ReLU), *_flat(24, proto_dim), nn.ReLU())


def deep_cnn(input_shape: ImageShape, proto_dim: int) -> nn.Module:
    """Build five convolutions without normalisation, a linear layer, ReLU."""
    return nn.Sequential(
        *_convolutions((input_shape[0], 16, 16, 32, 32, 32), nn.ReLU), *_flat(32, proto_dim), nn.ReLU()
    )


def batch_norm_cnn(input_shape: ImageShape, proto_dim: int) -> nn.Module:
    """Build three convolutions with batch normalisation, a linear layer, ReLU."""
    layers = _convolutions((input_shape[0], 16, 32, 32), nn.ReLU, nn.BatchNorm2d)
    return nn.Sequential(*layers, *_flat(32, proto_dim), nn.ReLU())


def deep_batch_norm_cnn(input_shape: ImageShape, proto_dim: int) -> nn.Module:
    """Build five convolutions with batch normalisation, averaged over the image, a linear layer."""
    layers = _convolutions((input_shape[0], 16, 16, 32, 32, 64), nn.ReLU, nn.BatchNorm2d)
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, proto_dim))


def group_norm_cnn(input_shape: ImageShape, proto_dim: int) -> nn.Module:
    """Build three convolutions with group normalisation and GELU, averaged over the image, a linear layer, GELU."""
    layers = _convolutions((input_shape[0], 16, 32, 64), nn.GELU, _groups_of_eight)
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, proto_dim), nn.GELU())


def mlp(input_shape: ImageShape, proto_dim: int) -> nn.Module:
    """Build two hidden layers of ReLU, no convolution, no normalisation."""
    pixels = int(np.prod(input_shape))
    return nn.Sequential(nn.Flatten(), nn.Linear(pixels, 128), nn.ReLU(), nn.Linear(128, proto_dim), nn.ReLU())


def layer_norm_mlp(input_shape: ImageShape, proto_dim: int) -> nn.Module:
    """Build one hidden layer with layer normalisation and GELU, and linear features."""
    pixels = int(np.prod(input_shape))
    layers = nn.Linear(pixels, 128), nn.LayerNorm(128), nn.GELU(), nn.Linear(128, proto_dim)
    return nn.Sequential(nn.Flatten(), *layers)


NETWORKS: Mapping[str, Callable[[ImageShape, int], nn.Module]] = {
    network.__name__: network
    for network in (
        plain_cnn,
        plain_cnn_gelu,
        shallow_cnn,
        deep_cnn,
        batch_norm_cnn,
        deep_batch_norm_cnn,
        group_norm_cnn,
        mlp,
        layer_norm_mlp,
    )
}


def _convolutions(
    channels: tuple[int, ...], activation: Callable[[], nn.Module], normalise: Callable[[int], nn.Module] | None = None
) -> list[nn.Module]:
    """Build 3×3 convolutions; the first two are followed by 2×2 pooling."""
    layers: list[nn.Module] = []
    for depth, (inputs, outputs) in enumerate(pairwise(channels)):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), *([normalise(outputs)] if normalise else []), activation()]
        layers += [nn.MaxPool2d(2)] if depth < 2 else []
    return layers


def _flat(channels: int, proto_dim: int) -> list[nn.Module]:
    """Average to 2×2 cells, then one linear layer."""
    return [nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(4 * channels, proto_dim)]


def _groups_of_eight(channels: int) -> nn.Module:
    return nn.GroupNorm(channels // 8, channels)


def write_patterns(folder: Path, per_class: int = 100, seed: int = 0) -> None:
    """Write PNGs of checks, rows and columns, one folder per class, in any colours, width and phase, with noise."""
    draws = np.random.default_rng(seed)
    for name in PATTERNS:
        (folder / name).mkdir(parents=True, exist_ok=True)
        for number in range(per_class):
            Image.fromarray(draw_pattern(name, draws)).save(folder / name / f"{number:03}.png")


def draw_pattern(name: str, draws: np.random.Generator) -> NDArray[np.uint8]:
    """Draw one image, (24, 24, 3)."""
    width, first, second = draws.integers(2, 5), draws.integers(0, 8), draws.integers(0, 8)
    down, right = np.mgrid[:SIDE, :SIDE]
    down, right = (down + first) // width % 2, (right + second) // width % 2
    light = {"checks": down ^ right, "rows": down, "columns": right}[name]
    ground, figure = draws.uniform(0, 110, 3), draws.uniform(145, 255, 3)
    image = np.where(light[:, :, None], figure, ground) + draws.normal(0, 20, (SIDE, SIDE, 3))
    return image.clip(0, 255).astype(np.uint8)
