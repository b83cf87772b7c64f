"""The stack on a GPU: our kernels compared with PyTorch's, captured steps with the eager trainer."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn

import tinyproto as tp
from tinyproto.stacked.convolution import convolution, geometry, plain_convolution
from tinyproto.stacked.fallback import CannotStack, check_kernel
from tinyproto.stacked.layers import (
    Activation,
    Depth,
    RunningStatistics,
    Squeeze,
    excite,
    normalise,
    plain_excite,
    plain_normalise,
)

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


@pytest.fixture(autouse=True)
def exact_products_of_the_same_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    torch.manual_seed(0)


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, device="cuda", requires_grad=True)


def assert_same(mine: Callable[..., Tensor], plain: Callable[..., Tensor], *inputs: Tensor) -> None:
    """Compare values and gradients of all inputs with float64; sums of many terms may cancel."""
    exact = [each.detach().double().requires_grad_() for each in inputs]
    outcome, expected = mine(*inputs), plain(*exact)
    upstream = torch.randn_like(outcome)
    found = (outcome, *torch.autograd.grad(outcome, inputs, upstream))
    wanted = (expected, *torch.autograd.grad(expected, exact, upstream.double()))
    for one, two in zip(found, wanted, strict=True):
        assert float((one - two).detach().abs().max()) <= 1e-5 * (10.0 + float(two.detach().abs().max()))


@pytest.mark.parametrize(("kernel", "stride"), [(3, 1), (3, 2), (5, 1), (5, 2)])
@pytest.mark.parametrize("size", [1, 2, 4, 5, 8, 16])
@pytest.mark.parametrize("kind", ["depthwise", "dense"])
def test_the_convolution_kernels_give_pytorch_s_values_and_gradients(
    kind: str, kernel: int, stride: int, size: int
) -> None:
    groups = 7 if kind == "depthwise" else 1
    values, weight = drawn(3, 7, 5, size, size), drawn(3, 7 if groups > 1 else 40, 7 // groups, kernel, kernel)
    bias = drawn(3, weight.shape[1])
    shape = geometry(nn.Conv2d(7, weight.shape[1], kernel, stride, kernel // 2, groups=groups))
    mine, plain = (partial(each, shape=shape) for each in (convolution, plain_convolution))
    assert_same(mine, plain, values, weight, bias)


@pytest.mark.parametrize(
    ("channels", "outputs", "size", "kernel", "stride"),
    [
        (3, 64, 32, 7, 2), (64, 64, 8, 3, 1), (64, 128, 8, 3, 2), (128, 256, 4, 3, 2), (256, 256, 2, 3, 1),
        (24, 48, 16, 3, 2), (24, 48, 32, 7, 2), (8, 8, 16, 3, 3),
    ],
)  # fmt: skip
def test_the_dense_kernel_gives_pytorch_s_at_the_sizes_of_resnet8_and_others(
    channels: int, outputs: int, size: int, kernel: int, stride: int
) -> None:
    values, weight = drawn(5, channels, 32, size, size), drawn(5, outputs, channels, kernel, kernel)
    shape = geometry(nn.Conv2d(channels, outputs, kernel, stride, kernel // 2))
    mine, plain = (partial(each, bias=None, shape=shape) for each in (convolution, plain_convolution))
    assert_same(mine, plain, values, weight)


@pytest.mark.parametrize(
    "shape", [(3, 5, 8), (3, 5, 2, 1, 1), (2, 33, 32, 4, 4), (1, 3, 32, 16, 16), (1, 2, 20, 32, 32)]
)
@pytest.mark.parametrize("activation", [None, "relu", "relu6", "silu"])
@pytest.mark.parametrize("with_addition", [False, True])
def test_the_normalisation_kernels_give_pytorch_s_values_gradients_and_statistics(
    shape: tuple[int, ...], activation: Activation | None, with_addition: bool
) -> None:
    inputs = [drawn(*shape), drawn(*shape[:2]), drawn(*shape[:2]), *([drawn(*shape)] if with_addition else [])]
    mine, other = (
        RunningStatistics(zeros, torch.ones_like(zeros), 0.1, 1e-5)
        for zeros in (torch.zeros(shape[:2], device="cuda", dtype=dtype) for dtype in (torch.float32, torch.float64))
    )

    def by(kernel: Callable[..., Tensor], gathered: RunningStatistics) -> Callable[..., Tensor]:
        def apply(values: Tensor, weight: Tensor, bias: Tensor, added: Tensor | None = None) -> Tensor:
            return kernel(values, gathered, weight, bias, by_batch=True, activation=activation, added=added)

        return apply

    assert_same(by(normalise, mine), by(plain_normalise, other), *inputs)
    assert torch.allclose(mine.mean, other.mean.float(), atol=1e-6)
    assert torch.allclose(mine.variance, other.variance.float(), atol=1e-5)
    values, weight, bias, added = (*inputs, None)[:4]
    assert values is not None
    with torch.no_grad():
        found = normalise(values, mine, weight, bias, by_batch=False, activation=activation, added=added)
        expected = plain_normalise(values, mine, weight, bias, by_batch=False, activation=activation, added=added)
    assert torch.allclose(found, expected, atol=1e-5)


def test_what_is_not_a_number_stays_so_through_normalisation_and_activation() -> None:
    values, ones = torch.full((1, 2, 8), torch.nan, device="cuda"), torch.ones(1, 2, device="cuda")
    gathered = RunningStatistics(torch.zeros_like(ones), torch.ones_like(ones), 0.1, 1e-5)
    for activation in ("relu", "relu6", "silu"):
        found = normalise(values, gathered, ones, ones, by_batch=True, activation=activation)
        assert bool(found.isnan().all())


@pytest.mark.parametrize("shape", [(2, 33, 32, 4, 4), (3, 5, 7, 1, 1), (1, 2, 20, 32, 32)])
def test_stochastic_depth_inside_the_normalisation_kernels_is_pytorch_s(shape: tuple[int, ...]) -> None:
    inputs = drawn(*shape), drawn(*shape[:2]), drawn(*shape[:2]), drawn(*shape)
    depth = Depth.drawn(inputs[0], 0.4)

    def by(kernel: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def apply(values: Tensor, weight: Tensor, bias: Tensor, added: Tensor) -> Tensor:
            zeros = torch.zeros(shape[:2], device="cuda", dtype=values.dtype)
            running = RunningStatistics(zeros, torch.ones_like(zeros), 0.1, 1e-5)
            return kernel(values, running, weight, bias, by_batch=True, added=added, depth=depth)

        return apply

    assert_same(by(normalise), by(plain_normalise), *inputs)


@pytest.mark.parametrize("size", [1, 4, 40])
@pytest.mark.parametrize("activation", ["relu", "silu"])
def test_the_excitation_kernels_give_pytorch_s_values_and_gradients(size: int, activation: Activation) -> None:
    inputs = drawn(3, 7, 5, size, size), drawn(3, 4, 7), drawn(3, 4), drawn(3, 7, 4), drawn(3, 7)

    def by(kernel: Callable[[Tensor, Squeeze], Tensor]) -> Callable[..., Tensor]:
        def apply(values: Tensor, first: Tensor, one: Tensor, second: Tensor, two: Tensor) -> Tensor:
            return kernel(values, Squeeze(first, one, second, two, activation))

        return apply

    assert_same(by(excite), by(plain_excite), *inputs)


@pytest.mark.parametrize("trainer", ["graphed", "stacked"])
@pytest.mark.parametrize(
    "algorithm",
    [
        "local", "anchors", "fml", "fedkd", "feddistill", "fedgh", "fedproto", "fedtgp", "protonorm", "fedsa",
        "fedorgp", "tinyproto_ft", "tinyproto_sphere",
    ],
)  # fmt: skip
def test_captured_steps_give_the_reference_s_numbers_up_to_rounding(algorithm: str, trainer: str) -> None:
    def simulated(trainer: str) -> tp.Result:
        train = {"device": "cuda", "batch_size": 16, "trainer": trainer, "precision": "exact"}
        networks = ["small_cnn_a", "small_cnn_c"]
        return tp.simulate(algorithm=algorithm, models=networks, num_clients=6, rounds=3, settings={"train": train})

    # The gradient of |cos| in FedORGP's fit jumps at 0: weights changed by 1e-6 move its accuracy by 0.04 on a CPU.
    tolerance = 0.05 if algorithm == "fedorgp" else 0.02
    eager, captured = simulated("eager"), simulated(trainer)
    for mine, other in zip(captured.rounds, eager.rounds, strict=True):
        assert mine.traffic == other.traffic
        assert mine.loss == pytest.approx(other.loss, rel=1e-2, abs=1e-4)
        for rule, accuracy in other.accuracy.items():
            assert mine.accuracy[rule] == (None if accuracy is None else pytest.approx(accuracy, abs=tolerance))


def test_a_kernel_that_disagrees_is_refused_before_it_is_used() -> None:
    values, weight = drawn(1, 2, 3, 4, 4), drawn(1, 2, 2, 3, 3)
    shape = geometry(nn.Conv2d(2, 2, 3, 1, 1))
    plain = partial(plain_convolution, bias=None, shape=shape)
    with pytest.raises(CannotStack, match="odd kernel"):
        check_kernel("odd", "once", lambda maps, filters: plain(maps, filters).flip(-1), plain, [values], [weight])
