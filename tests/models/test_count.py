"""Counting, on a network small enough to count by hand."""

from __future__ import annotations

import torch
from torch import nn

from tinyproto.models import SplitModel
from tinyproto.models.count import NetworkSize, measure
from tinyproto.models.split import PoolFeatures


def tiny() -> SplitModel:
    extractor = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False),  # 4·4·8 outputs of 3·9 products: 3456
        nn.BatchNorm2d(8),
        nn.Conv2d(8, 8, 3, stride=2, padding=1, groups=8),  # 2·2·8 outputs of 9 products: 288
        nn.Dropout(0.5),
        nn.Conv2d(8, 6, 1),  # 2·2·6 outputs of 8 products: 192
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        PoolFeatures(4),
    )
    return SplitModel(extractor, nn.Linear(4, 5))  # 5 outputs of 4 products: 20


def test_parameters_width_and_products_are_those_counted_by_hand() -> None:
    # Extractor: 8·27, 2·8, 8·9 + 8, 6·8 + 6; head: 5·4 + 5.
    assert measure(tiny(), (3, 4, 4)) == NetworkSize(216 + 16 + 80 + 54, 25, 6, 3456 + 288 + 192 + 20)


def test_without_pooling_the_width_is_that_of_the_features() -> None:
    model = SplitModel(nn.Sequential(nn.Flatten(), nn.Linear(12, 7)), nn.Linear(7, 2))
    assert measure(model, (3, 2, 2)) == NetworkSize(91, 16, 7, 12 * 7 + 14)


def test_counting_changes_nothing() -> None:
    model = tiny().train()
    model.extractor[1].eval()  # type: ignore[index]
    before = {key: value.clone() for key, value in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    measure(model, (3, 4, 4))
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert not any(module._forward_hooks for module in model.modules())
