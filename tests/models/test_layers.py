"""Pooling to d, worked by hand."""

from __future__ import annotations

import pytest
import torch

from tinyproto.models.split import PoolFeatures, average_map


@pytest.mark.parametrize(
    ("features", "dim", "expected"),
    [
        ([1.0, 2.0, 4.0, 8.0, 16.0], 2, [7 / 3, 28 / 3]),  # windows 0–2 and 2–4 share the middle one
        ([1.0, 2.0, 4.0, 8.0], 2, [1.5, 6.0]),
        ([1.0, 3.0], 3, [1.0, 2.0, 3.0]),  # fewer than d: neighbours are repeated and averaged
        ([1.0, 3.0], 4, [1.0, 1.0, 3.0, 3.0]),
        ([1.0, -3.0], 2, [1.0, -3.0]),  # as wide as d: nothing happens, and nothing is cut off at zero
    ],
)
def test_pooling_averages_neighbouring_features(features: list[float], dim: int, expected: list[float]) -> None:
    pooled = PoolFeatures(dim)(torch.tensor([features, [0.0] * len(features)]))
    torch.testing.assert_close(pooled, torch.tensor([expected, [0.0] * dim]))


def test_a_map_is_averaged_by_channel() -> None:
    values = torch.tensor([[[[1.0, 2.0], [3.0, 6.0]], [[0.0, 0.0], [0.0, 4.0]]]])
    assert average_map(values).tolist() == [[3.0, 1.0]]
