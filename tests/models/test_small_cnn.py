"""Properties of the four small CNNs that tuning does not change."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from tinyproto.core.streams import global_randomness
from tinyproto.models import SMALL_CNNS, SplitModel

FACTORIES = list(SMALL_CNNS.values())
INDICES = range(len(FACTORIES))
GREY_8 = (1, 8, 8)
COLOUR_32 = (3, 32, 32)
DIM, CLASSES = 20, 7


def network(index: int, image: tuple[int, int, int]) -> SplitModel:
    with global_randomness(0):
        model = FACTORIES[index](image, DIM, CLASSES)
    assert isinstance(model, SplitModel)
    return model


def noise(count: int, image: tuple[int, int, int]) -> Tensor:
    return torch.randn(count, *image, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("image", [GREY_8, COLOUR_32])
@pytest.mark.parametrize("index", INDICES)
def test_features_have_the_prototype_width_and_logits_one_entry_per_class(
    index: int, image: tuple[int, int, int]
) -> None:
    features, logits = network(index, image)(noise(5, image))
    assert features.shape == (5, DIM)
    assert logits.shape == (5, CLASSES)


@pytest.mark.parametrize("image", [GREY_8, COLOUR_32])
@pytest.mark.parametrize("index", INDICES)
def test_features_are_never_negative_and_not_all_zero(index: int, image: tuple[int, int, int]) -> None:
    features = network(index, image)(noise(64, image)).features.detach()
    assert float(features.min()) >= 0.0
    assert float(features.max()) > 0.0


@pytest.mark.parametrize("image", [GREY_8, COLOUR_32])
@pytest.mark.parametrize("index", INDICES)
def test_the_gradient_of_a_training_step_reaches_every_parameter(index: int, image: tuple[int, int, int]) -> None:
    model = network(index, image).train()
    features, logits = model(noise(32, image))
    loss = functional.cross_entropy(logits, torch.arange(32) % CLASSES) + features.square().mean()
    loss.backward()
    untouched = [name for name, value in model.named_parameters() if value.grad is None or not value.grad.any()]
    assert untouched == []


@pytest.mark.parametrize("image", [GREY_8, COLOUR_32])
def test_the_four_networks_differ_in_size(image: tuple[int, int, int]) -> None:
    counts = {sum(value.numel() for value in network(index, image).parameters()) for index in INDICES}
    assert len(counts) == 4


@pytest.mark.parametrize("index", INDICES)
def test_the_head_reads_nothing_but_the_features(index: int) -> None:
    model = network(index, GREY_8).eval()
    features, logits = model(noise(3, GREY_8))
    torch.testing.assert_close(model.head(features), logits)
