"""Each of our kernels is compared with PyTorch before it is used."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tinyproto.stacked import fallback, layers
from tinyproto.stacked.convolution import MOST_POSITIONS, geometry, plain_convolution
from tinyproto.stacked.fallback import CannotStack, check_kernel
from tinyproto.stacked.layers import (
    Activation,
    Depth,
    RunningStatistics,
    Squeeze,
    check_excitation,
    plain_excite,
    plain_normalise,
)

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
        check_kernel("own", "same", mine, PLAIN, [VALUES], [WEIGHT])
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
        check_kernel("odd", "other", mine, PLAIN, [VALUES], [WEIGHT])


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


def test_squeeze_and_excitation_of_a_client_that_diverged_is_checked_with_other_weights(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, first_bias, second, second_bias = (
        torch.full(shape, torch.nan) for shape in ((2, 3, 6), (2, 3), (2, 6, 3), (2, 6))
    )
    monkeypatch.setattr(layers, "_kernel_excite", plain_excite)
    check_excitation(torch.zeros(2, 6, 4, 5, 5), Squeeze(first, first_bias, second, second_bias, "silu"))


def test_without_gradients_outputs_of_some_samples_are_compared() -> None:
    values, asked = torch.zeros(2, 3, 150, 5, 5), list[int]()

    def plain(maps: Tensor, filters: Tensor) -> Tensor:
        asked.append(maps.shape[2])
        return PLAIN(maps, filters)

    def wrong_from(sample: int) -> fallback.Layer:
        return lambda maps, filters: PLAIN(maps, filters) * (torch.arange(150) < sample)[:, None, None]

    with torch.no_grad():
        check_kernel("own", "features", PLAIN, plain, [values], [WEIGHT])
        with pytest.raises(CannotStack, match="odd kernel"):
            check_kernel("odd", "features", wrong_from(140), plain, [values], [WEIGHT])
    assert asked == [50, 50]
    with pytest.raises(CannotStack, match="own kernel"):  # for training it is checked anew, with gradients
        check_kernel("own", "features", wrong_from(149), plain, [values], [WEIGHT])


class OnGpu(Tensor):
    """Looks as if it were on a GPU."""

    is_cuda = True


def forgets_statistics(values: Tensor, running: RunningStatistics, *rest: Tensor, **options: Any) -> Tensor:
    return plain_normalise(values, running._replace(variance=running.variance.clone()), *rest, **options)


def drops_others(*inputs: Any, depth: Depth | None, **options: Any) -> Tensor:
    return plain_normalise(*inputs, depth=depth and depth._replace(draws=depth.draws.flip(1)), **options)


def adds_twice(*inputs: Any, added: Tensor | None, **options: Any) -> Tensor:
    return plain_normalise(*inputs, added=None if added is None else 2 * added, **options)


def skips_activation(*inputs: Any, activation: Activation | None, **options: Any) -> Tensor:
    return plain_normalise(*inputs, activation=None, **options)


def turns_gradients(values: Tensor, *rest: Any, **options: Any) -> Tensor:
    turned: Tensor = WrongGradient.apply(values)  # type: ignore[no-untyped-call]
    return plain_normalise(turned, *rest, **options)


CASES: list[dict[str, Any]] = [
    *({"activation": activation} for activation in (None, "relu", "relu6", "silu")),
    *({"activation": activation, "added": True} for activation in (None, "relu", "relu6")),
    {"added": True, "depth": True},
]


def normalise_once(case: dict[str, Any], shape: tuple[int, ...], *, by_batch: bool = True) -> None:
    """Normalise maps of this shape; all weights are lost, as a check must not use them."""
    values, lost = torch.zeros(shape).as_subclass(OnGpu), torch.full(shape[:2], torch.nan)
    running = RunningStatistics(lost, lost, 0.1, 1e-5)
    added = values if case.get("added") else None
    depth = Depth(torch.zeros(shape[0], shape[2]), 0.1) if case.get("depth") else None
    layers.normalise(
        values, running, lost, lost, by_batch=by_batch, activation=case.get("activation"), added=added, depth=depth
    )


@pytest.mark.parametrize("shape", [(2, 6, 4, 5, 5), (1, 1, 2, 1, 1), (3, 16, 32, 16, 16)])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_normalisation_that_rounds_differently_is_used_and_draws_nothing(
    monkeypatch: pytest.MonkeyPatch, case: dict[str, Any], shape: tuple[int, ...]
) -> None:
    def rounding(values: Tensor, running: RunningStatistics, *rest: Tensor, **options: Any) -> Tensor:
        noise = 1e-6 * (torch.arange(values.numel()) % 7 - 3)
        return plain_normalise(values + noise.view(values.shape), running, *rest, **options)

    monkeypatch.setattr(layers, "_kernel_normalise", rounding)
    state = torch.get_rng_state()
    normalise_once(case, shape)
    with torch.no_grad():
        normalise_once({**case, "depth": False}, shape, by_batch=False)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    ("kernel", "case"),
    [
        (forgets_statistics, {"activation": "relu"}), (skips_activation, {"activation": "relu6"}),
        (adds_twice, {"activation": "relu", "added": True}), (drops_others, {"added": True, "depth": True}),
        (turns_gradients, {}),
    ],
)  # fmt: skip
def test_a_normalisation_that_does_not_agree_is_refused(
    monkeypatch: pytest.MonkeyPatch, kernel: Callable[..., Tensor], case: dict[str, Any]
) -> None:
    monkeypatch.setattr(layers, "_kernel_normalise", kernel)
    with pytest.raises(CannotStack, match="normalisation kernel"):
        normalise_once(case, (2, 6, 4, 5, 5))
    if kernel in (skips_activation, adds_twice):
        with torch.no_grad(), pytest.raises(CannotStack, match="normalisation kernel"):
            normalise_once(case, (2, 6, 4, 5, 5), by_batch=False)


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


@pytest.mark.parametrize(
    ("layer", "maps", "trains", "countable"),
    [
        (nn.Conv2d(4, 4, 3, 1, 1, groups=4), (2, 4, 1024, 64, 64), False, True),
        (nn.Conv2d(4, 4, 3, 1, 1, groups=4), (2, 4, 1024, 112, 112), False, False),
        (nn.Conv2d(4, 4, 3, 1, 2, groups=4), (2, 4, 1024, 64, 64), False, False),  # its results are larger
        (nn.Conv2d(3, 8, 3, 1, 1), (2, 3, 1024, 112, 112), False, True),
        (nn.Conv2d(3, 8, 3, 1, 1), (2, 3, 1024, 112, 112), True, False),
        (nn.Conv2d(3, 256, 3, 1, 1), (2, 3, 1024, 112, 112), False, False),
    ],
)
def test_maps_too_large_for_a_kernel_s_numbers_are_known(
    layer: nn.Conv2d, maps: tuple[int, ...], trains: bool, countable: bool
) -> None:
    assert geometry(layer).is_countable(torch.Size(maps), trains=trains) == countable


@pytest.mark.parametrize("divisor", [3, 7, 28, 49, 64, 196, 3136, 12544])
def test_quotients_in_floats_are_exact_up_to_the_most_positions(divisor: int) -> None:
    positions = torch.arange(MOST_POSITIONS)
    in_floats = ((positions.float() + 0.5) * torch.tensor(1.0 / divisor)).int()  # as `quotient` of the kernels
    assert torch.equal(in_floats.long(), positions // divisor)
