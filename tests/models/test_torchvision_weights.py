"""Loading a torchvision state_dict, without torchvision: our whole networks have its names and shapes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from tinyproto.core.streams import global_randomness
from tinyproto.errors import ModelError
from tinyproto.models import SplitModel, load_torchvision
from tinyproto.models.shufflenet_v2 import X0_5, X1_0, ShuffleNetV2, shufflenet_v2

ROOT = Path(__file__).parents[2]


def weights() -> dict[str, Tensor]:
    with global_randomness(1):
        return {**ShuffleNetV2(X0_5, nn.Linear(1024, 1000)).state_dict()}


def model(channels: int = 3, small_images: bool = False) -> SplitModel:
    with global_randomness(2):
        return shufflenet_v2((channels, 32, 32), 20, 5, stages=X0_5, small_images=small_images)


@pytest.mark.parametrize("small_images", [False, True])
def test_the_extractor_takes_the_weights_and_the_head_keeps_its_own(small_images: bool) -> None:
    given, ours, untouched = weights(), model(small_images=small_images), model()
    assert load_torchvision(ours, given) is ours
    own = ours.extractor.state_dict()
    assert own
    assert all(torch.equal(value, given[name]) for name, value in own.items())
    assert all(torch.equal(value, untouched.head.state_dict()[name]) for name, value in ours.head.state_dict().items())


def test_files_from_before_batches_were_counted_load_too() -> None:
    old = {name: value for name, value in weights().items() if not name.endswith("num_batches_tracked")}
    assert torch.equal(load_torchvision(model(), old).extractor.state_dict()["conv1.0.weight"], old["conv1.0.weight"])


@pytest.mark.parametrize(
    ("changes", "channels", "message"),
    [
        ({}, 1, r"'conv1\.0\.weight' has shape \(24, 3, 3, 3\), not \(24, 1, 3, 3\)"),
        ({"stage5.weight": torch.zeros(1)}, 3, r"'stage5\.weight' has shape \(1,\), not \(unknown\)"),
        ({"conv5.0.weight": None}, 3, r"'conv5\.0\.weight' has shape \(missing\), not \(1024, 192, 1, 1\)"),
    ],
)
def test_other_weights_are_refused_with_the_first_that_does_not_fit_and_nothing_changes(
    changes: dict[str, Tensor | None], channels: int, message: str
) -> None:
    given = {name: value for name, value in {**weights(), **changes}.items() if value is not None}
    ours = model(channels)
    before = {name: value.clone() for name, value in ours.state_dict().items()}
    with pytest.raises(ModelError, match=f"not torchvision's weights for ShuffleNetV2: {message}"):
        load_torchvision(ours, given)
    assert all(torch.equal(value, before[name]) for name, value in ours.state_dict().items())


def test_weights_of_another_width_are_refused() -> None:
    with pytest.raises(ModelError, match="shape"):
        load_torchvision(model(), ShuffleNetV2(X1_0, nn.Linear(1024, 1000)).state_dict())


def test_a_network_that_torchvision_does_not_have_is_refused() -> None:
    with pytest.raises(ModelError, match="Linear: 'weight'"):
        load_torchvision(SplitModel(nn.Linear(2, 3), nn.Linear(3, 2)), weights())


def test_the_documentation_s_python_runs_as_it_stands(capsys: pytest.CaptureFixture[str]) -> None:
    (snippet,) = re.findall(
        r"```python\n(.*?)```", (ROOT / "docs" / "reference" / "networks.md").read_text(), re.DOTALL
    )
    exec(snippet, {"__name__": "documentation"})
    assert "[2, 500]" in capsys.readouterr().out
