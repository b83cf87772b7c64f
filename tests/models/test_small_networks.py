"""Networks for tables, signals and text."""

from __future__ import annotations

import pytest
import torch

from tinyproto.errors import ModelError
from tinyproto.models import CNNS_1D, MLPS, SMALL_CNNS, TEXT, ModelShape, build_model, small_networks


@pytest.mark.parametrize(
    ("input_shape", "vocabulary", "expected"),
    [((13,), None, MLPS), ((2, 64), None, CNNS_1D), ((3, 8, 8), None, SMALL_CNNS), ((2, 2, 2, 2), None, MLPS),
     ((20,), 100, TEXT)],
)  # fmt: skip
def test_each_kind_of_input_has_networks_that_take_it(
    input_shape: tuple[int, ...], vocabulary: int | None, expected: object
) -> None:
    found = small_networks(input_shape, vocabulary)
    assert found is expected
    for name in found:
        build_model(name, ModelShape(input_shape, 12, 4, vocabulary=vocabulary), seed=0)


@pytest.mark.parametrize("name", TEXT)
def test_padding_does_not_change_what_a_text_means(name: str) -> None:
    model = build_model(name, ModelShape((6,), 12, 4, vocabulary=9), seed=0).eval()
    with torch.no_grad():
        short = model.extractor(torch.tensor([[3, 4, 5]]))
        padded = model.extractor(torch.tensor([[3, 4, 5, 0, 0, 0]]))
        empty = model.extractor(torch.zeros(1, 6, dtype=torch.int64))
    torch.testing.assert_close(short, padded)
    assert torch.isfinite(empty).all()


@pytest.mark.parametrize(
    ("name", "shape", "says"),
    [
        ("small_text_a", ModelShape((6,), 12, 4), "small_text_a: it takes token ids"),
        ("small_cnn1d_a", ModelShape((6,), 12, 4), r"small_cnn1d_a: it takes signals \(channels, steps\)"),
        (
            "small_mlp_a",
            ModelShape((6,), 12, 4, vocabulary=9),
            "small_mlp_a fails on a batch.*: small_text_a, small_text_b",
        ),
        ("small_cnn_a", ModelShape((6,), 12, 4), "small_cnn_a fails on a batch.*: small_mlp_a, small_mlp_b"),
    ],
)
def test_a_network_for_other_inputs_says_so(name: str, shape: ModelShape, says: str) -> None:
    with pytest.raises(ModelError, match=says):
        build_model(name, shape, seed=0)
