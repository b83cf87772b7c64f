"""Each of our kernels is compared with PyTorch before it is used."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor, nn

from tinyproto.stacked import fallback, layers
from tinyproto.stacked.convolution import geometry, plain_convolution
from tinyproto.stacked.fallback import CannotStack, check_kernel
from tinyproto.stacked.layers import Squeeze, check_excitation, plain_excite

VALUES, WEIGHT = torch.zeros(2, 3, 4, 5, 5), torch.zeros(2, 6, 3, 3, 3)
PLAIN = partial(plain_convolution, bias=None, shape=geometry(nn.Conv2d(3, 6, 3, 1, 1)))


@pytest.fixture(autouse=True)
def nothing_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fallback, "_CHECKED", set())


def test_a_kernel_that_agrees_is_asked_once() -> None:
    asked = 0

    def mine(values: Tensor, weight: Tensor) -> Tensor:
        nonlocal asked
        asked += 1
        return PLAIN(values, weight) * (1 + 1e-4)

    state = torch.get_rng_state()
    for _ in range(3):
        check_kernel("own", "same", mine, PLAIN, VALUES, WEIGHT)
    assert asked == 1
    assert torch.equal(torch.get_rng_state(), state)  # a run's own draws are not touched


class WrongGradient(torch.autograd.Function):
    """The right values, the wrong gradient."""

    @staticmethod
    def forward(ctx: object, values: Tensor) -> Tensor:
        return values.clone()

    @staticmethod
    def backward(ctx: object, *gradients: Tensor) -> Tensor:
        return gradients[0].flip(-1)


@pytest.mark.parametrize(
    "mine",
    [
        lambda values, weight: PLAIN(values, weight).flip(-1),
        lambda values, weight: PLAIN(WrongGradient.apply(values), weight),  # type: ignore[no-untyped-call]
        lambda values, weight: PLAIN(values, weight) * float("nan"),
    ],
    ids=["values", "gradient", "nan"],
)
def test_a_kernel_that_does_not_agree_is_refused(mine: fallback.Layer) -> None:
    with pytest.raises(CannotStack, match="odd kernel"):
        check_kernel("odd", "other", mine, PLAIN, VALUES, WEIGHT)


def test_squeeze_and_excitation_is_checked_with_exact_products(monkeypatch: pytest.MonkeyPatch) -> None:
    values = torch.zeros(2, 6, 4, 5, 5)
    to_three, back = (torch.randn(2, 3, 6), torch.randn(2, 3)), (torch.randn(2, 6, 3), torch.randn(2, 6))
    squeeze, seen = Squeeze(*to_three, *back, "silu"), set[bool]()

    def mine(maps: Tensor, to: Squeeze) -> Tensor:
        seen.add(torch.backends.cudnn.allow_tf32)
        return plain_excite(maps, to) * (1 + 1e-4)

    before = torch.backends.cudnn.allow_tf32
    monkeypatch.setattr(layers, "_kernel_excite", mine)
    check_excitation(values, squeeze)
    assert seen == {False}
    assert torch.backends.cudnn.allow_tf32 == before
    monkeypatch.setattr(layers, "_kernel_excite", lambda maps, to: plain_excite(maps, to).flip(1))
    check_excitation(values, squeeze)  # these sizes were checked
    with pytest.raises(CannotStack, match="squeeze-and-excitation kernel"):
        check_excitation(values[..., :3], squeeze)


@pytest.mark.parametrize(
    ("layer", "own"),
    [
        (nn.Conv2d(4, 8, 1), True),
        (nn.Conv2d(4, 8, 3, 2, 1), True),
        (nn.Conv2d(4, 4, 5, 1, 2, groups=4), True),
        (nn.Conv2d(4, 8, 5, 1, 2), False),
        (nn.Conv2d(4, 8, 3, groups=2), False),
        (nn.Conv2d(4, 8, 3, dilation=2), False),
        (nn.Conv2d(4, 8, (3, 1)), False),
    ],
)
def test_only_regular_convolutions_have_a_kernel_of_their_own(layer: nn.Conv2d, own: bool) -> None:
    assert geometry(layer).has_kernel == own
