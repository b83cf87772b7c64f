"""torchvision's weights give torchvision's output; runs where torchvision is, which our set-up leaves out."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tinyproto.core.streams import global_randomness
from tinyproto.models import ModelShape, SplitModel, build_model, load_torchvision
from tinyproto.models.efficientnet import EfficientNetB0, StochasticDepth
from tinyproto.models.mobilenet_v2 import MobileNetV2
from tinyproto.models.shufflenet_v2 import X0_5, X1_0, ShuffleNetV2

try:
    torchvision: Any = importlib.import_module("torchvision.models")
except (ImportError, RuntimeError, OSError):  # not there, or built for another torch
    pytest.skip("torchvision does not import here", allow_module_level=True)

TOLERANCE = 1e-5
SIZES = (32, 64, 224)


def classifier(width: int) -> nn.Linear:
    return nn.Linear(width, 1000)


CASES: list[tuple[str, str, Callable[[], nn.Module]]] = [
    ("mobilenet_v2", "mobilenet_v2", lambda: MobileNetV2(classifier(1280))),
    ("shufflenet_v2", "shufflenet_v2_x1_0", lambda: ShuffleNetV2(X1_0, classifier(1024))),
    ("shufflenet_v2_x0_5", "shufflenet_v2_x0_5", lambda: ShuffleNetV2(X0_5, classifier(1024))),
    ("efficientnet_b0", "efficientnet_b0", lambda: EfficientNetB0(nn.Sequential(nn.Dropout(0.2), classifier(1280)))),
]
every_network = pytest.mark.parametrize(("name", "their_name", "make"), CASES, ids=[case[0] for case in CASES])


def noise(count: int, size: int) -> Tensor:
    return torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(size))


def untrained(their_name: str) -> nn.Module:
    with global_randomness(0):
        model: nn.Module = getattr(torchvision, their_name)(weights=None)
    return model.eval()


@torch.no_grad()
def measured(their_name: str, size: int) -> nn.Module:
    """Random weights, and statistics of real activations, without which next to nothing of an image arrives."""
    model = untrained(their_name)
    with global_randomness(1):
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                nn.init.uniform_(module.weight, 0.5, 1.5)
                nn.init.normal_(module.bias, std=0.2)
                module.momentum = None  # the plain mean over all batches
                module.train()
        model(noise(4 if size > 64 else 16, size))
    return model.eval()


@every_network
def test_names_and_shapes_are_torchvisions(name: str, their_name: str, make: Callable[[], nn.Module]) -> None:
    expected = [(key, value.shape) for key, value in untrained(their_name).state_dict().items()]
    assert [(key, value.shape) for key, value in make().state_dict().items()] == expected


@every_network
@torch.no_grad()
def test_an_untrained_network_gives_torchvisions_logits(
    name: str, their_name: str, make: Callable[[], nn.Module]
) -> None:
    reference, ours = untrained(their_name), make().eval()
    ours.load_state_dict(reference.state_dict())
    images = noise(2, 224)
    torch.testing.assert_close(ours(images), reference(images), rtol=0, atol=TOLERANCE)


@every_network
@pytest.mark.parametrize("size", SIZES)
@torch.no_grad()
def test_the_whole_network_gives_torchvisions_logits(
    name: str, their_name: str, make: Callable[[], nn.Module], size: int
) -> None:
    reference, ours, images = measured(their_name, size), make().eval(), noise(2, size)
    ours.load_state_dict(reference.state_dict())
    logits = reference(images)
    assert float((logits[0] - logits[1]).abs().mean()) > 1e-3  # or any network would pass
    torch.testing.assert_close(ours(images), logits, rtol=0, atol=TOLERANCE)
    exact = reference.double()(images.double())
    torch.testing.assert_close(ours.double()(images.double()), exact, rtol=0, atol=1e-9)


@every_network
@pytest.mark.parametrize("size", SIZES)
@torch.no_grad()
def test_a_clients_features_are_torchvisions_pooled_to_d(
    name: str, their_name: str, make: Callable[[], nn.Module], size: int
) -> None:
    reference, images = measured(their_name, size), noise(2, size)
    model: SplitModel = build_model(name, ModelShape((3, size, size), proto_dim=500, num_classes=10), seed=1)
    load_torchvision(model, reference.state_dict()).eval()
    setattr(reference, "fc" if hasattr(reference, "fc") else "classifier", nn.Identity())
    pooled = functional.adaptive_avg_pool1d(reference(images), 500)
    torch.testing.assert_close(model(images).features, pooled, rtol=0, atol=TOLERANCE)


def test_blocks_are_skipped_as_often_as_torchvisions() -> None:
    layers = untrained("efficientnet_b0").modules()
    expected = [float(layer.p) for layer in layers if type(layer).__name__ == "StochasticDepth"]  # type: ignore[arg-type]
    chances = [
        module.dropped for module in EfficientNetB0(nn.Identity()).modules() if isinstance(module, StochasticDepth)
    ]
    assert chances == pytest.approx(expected)


@every_network
def test_weights_are_drawn_as_widely_as_torchvisions(name: str, their_name: str, make: Callable[[], nn.Module]) -> None:
    with global_randomness(3):
        own = dict(make().named_parameters())
    for key, value in untrained(their_name).named_parameters():
        if value.dim() == 4 and value.numel() > 10_000:
            assert float(own[key].detach().std()) == pytest.approx(float(value.detach().std()), rel=0.05), key
