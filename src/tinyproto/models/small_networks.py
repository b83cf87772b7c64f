"""Small networks for inputs that are not images: tables, signals and text.

Each ends as the small CNNs do: a vector normalised per sample, then ReLU(Linear(·, d)), so a feature is never negative.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor, nn

from tinyproto.errors import ModelError
from tinyproto.models.split import SplitModel

_STEPS = 4  # a signal's last feature map is averaged to 4 steps
PADDING = 0
"""The token id that fills up short texts; networks ignore it."""


def _features(hidden: int, proto_dim: int) -> list[nn.Module]:
    return [nn.LayerNorm(hidden, elementwise_affine=False), nn.Linear(hidden, proto_dim), nn.ReLU()]


def small_mlp(
    input_shape: tuple[int, ...], proto_dim: int, num_classes: int, widths: Sequence[int]
) -> SplitModel:  # fmt: skip
    """Stack linear layers on the flattened input, then a layer to d."""
    layers: list[nn.Module] = [nn.Flatten()]
    inputs = math.prod(input_shape)
    for outputs in widths:
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
        inputs = outputs
    return SplitModel(nn.Sequential(*layers, *_features(inputs, proto_dim)), nn.Linear(proto_dim, num_classes))


def small_cnn1d(
    input_shape: tuple[int, ...], proto_dim: int, num_classes: int, channels: Sequence[int], *, kernel: int = 5,
    batch_norm: bool = False,
) -> SplitModel:  # fmt: skip
    """Stack convolutions over (channels, steps) with max-pooling by 2 after each, then a layer to d."""
    if len(input_shape) != 2:
        raise ModelError(f"it takes signals (channels, steps), not samples of shape {input_shape}")
    layers: list[nn.Module] = []
    inputs = input_shape[0]
    for outputs in channels:
        layers += [nn.Conv1d(inputs, outputs, kernel, padding=kernel // 2, bias=not batch_norm)]
        layers += [nn.BatchNorm1d(outputs)] if batch_norm else []
        layers += [nn.ReLU(), nn.MaxPool1d(2, ceil_mode=True)]
        inputs = outputs
    layers += [nn.AdaptiveAvgPool1d(_STEPS), nn.Flatten(), *_features(inputs * _STEPS, proto_dim)]
    return SplitModel(nn.Sequential(*layers), nn.Linear(proto_dim, num_classes))


class _TextFeatures(nn.Module):
    """Embed token ids, convolve them if there is a kernel, and average over the tokens that are not padding."""

    def __init__(self, vocabulary: int, width: int, proto_dim: int, kernel: int | None) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width, padding_idx=PADDING)
        self.convolution = None if kernel is None else nn.Conv1d(width, width, kernel, padding=kernel // 2)
        self.features = nn.Sequential(*_features(width, proto_dim))

    def forward(self, ids: Tensor) -> Tensor:
        """Map (B, L) to (B, d)."""
        words = (ids != PADDING).unsqueeze(1)  # (B, 1, L)
        values = self.embedding(ids).transpose(1, 2)  # (B, width, L)
        if self.convolution is not None:
            values = self.convolution(values).relu()
        mean = (values * words).sum(2) / words.sum(2).clamp_min(1)
        features: Tensor = self.features(mean)
        return features


def small_text(
    input_shape: tuple[int, ...], proto_dim: int, num_classes: int, vocabulary: int | None, width: int, *,
    kernel: int | None = None,
) -> SplitModel:  # fmt: skip
    """Embed token ids and average them, after a convolution over neighbours if there is a kernel; id 0 is padding."""
    if vocabulary is None or len(input_shape) != 1:
        raise ModelError(f"it takes token ids (length,), int64, not samples of shape {input_shape}")
    extractor = _TextFeatures(vocabulary, width, proto_dim, kernel)
    return SplitModel(extractor, nn.Linear(proto_dim, num_classes))
