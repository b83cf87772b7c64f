"""Layers of a stack of clients: activations (n, C, B, H, W) or (n, C, B), weights with the clients in front."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from tinyproto.stacked.capture import branching
from tinyproto.stacked.fallback import CannotStack, Layer, check_kernel

Activation = Literal["relu", "relu6", "silu"]
_ACTIVATIONS = {"relu": functional.relu, "relu6": functional.relu6, "silu": functional.silu}


def apply(function: type[torch.autograd.Function], *arguments: Any) -> Tensor:
    """Call a differentiable function that returns one tensor."""
    outcome: Tensor = function.apply(*arguments)  # type: ignore[no-untyped-call]
    return outcome


def linear(values: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Map (n, C, L) to (n, O, L)."""
    if bias is None:
        return torch.bmm(weight, values)
    return torch.baddbmm(bias.unsqueeze(2), weight, values)


class RunningStatistics(NamedTuple):
    """The running mean and variance of a normalisation layer, (n, C) each, and how they are updated."""

    mean: Tensor
    variance: Tensor
    momentum: float
    eps: float


class Depth(NamedTuple):
    """Stochastic depth: a client's sample whose draw (n, B) is below `dropped` is zero, the others are scaled up."""

    draws: Tensor
    dropped: float

    @classmethod
    def drawn(cls, values: Tensor, dropped: float) -> Depth:
        """Draw for values (n, C, B, …)."""
        return cls(torch.rand(values.shape[0], values.shape[2], device=values.device), dropped)

    def apply(self, values: Tensor) -> Tensor:
        """Return (n, C, B, H, W) with samples dropped."""
        kept = (self.draws >= self.dropped).to(values.dtype) / (1.0 - self.dropped)
        return values * kept[:, None, :, None, None]


def normalise(
    values: Tensor, running: RunningStatistics, weight: Tensor | None, bias: Tensor | None, *, by_batch: bool,
    activation: Activation | None = None, added: Tensor | None = None, depth: Depth | None = None,
) -> Tensor:  # fmt: skip
    """Return activation(depth(normal · weight + bias) + added), each client's channels normalised on their own.

    `by_batch` normalises by the statistics of the batch and updates the running ones in place; otherwise the running
    statistics are used.
    """
    supported = values.is_cuda and values.dtype == torch.float32 and (added is None or activation != "silu")
    if depth is not None:
        supported = supported and by_batch and added is not None and activation is None
    with_gradient = torch.is_grad_enabled() and not by_batch
    if not supported or weight is None or bias is None or with_gradient or values[0, 0].numel() < 2:
        return plain_normalise(
            values, running, weight, bias, by_batch=by_batch, activation=activation, added=added, depth=depth
        )
    values, added = values.contiguous(), None if added is None else added.contiguous()
    check_normalisation(
        values, running, weight, bias, by_batch=by_batch, activation=activation, added=added, depth=depth
    )
    return _kernel_normalise(
        values, running, weight, bias, by_batch=by_batch, activation=activation, added=added, depth=depth
    )


def _kernel_normalise(
    values: Tensor, running: RunningStatistics, weight: Tensor, bias: Tensor, *, by_batch: bool,
    activation: Activation | None = None, added: Tensor | None = None, depth: Depth | None = None,
) -> Tensor:  # fmt: skip
    from tinyproto.stacked.kernels.fused import TritonNormalisation, normalise_by_running

    if by_batch:
        return apply(TritonNormalisation, values, weight, bias, added, running, activation, depth)
    return normalise_by_running(values, weight, bias, added, running, activation)


def check_normalisation(
    values: Tensor, running: RunningStatistics, weight: Tensor, bias: Tensor, *, by_batch: bool,
    activation: Activation | None = None, added: Tensor | None = None, depth: Depth | None = None,
) -> None:  # fmt: skip
    """Check the kernels once, statistics included.

    Sums before an activation are far from 0 and 6, where rounding could change a gradient. The eps is so large that the
    gradients of a row of two values are not rounding alone.
    """

    def by(function: Callable[..., Tensor]) -> Callable[..., tuple[Tensor, ...]]:
        def layer(*drawn: Tensor) -> tuple[Tensor, ...]:
            *maps, slope, offset = drawn
            about, *other = (each.sign() + 0.05 * each for each in maps)  # near 1 and -1
            statistics = RunningStatistics(offset.detach() / 2, slope.detach().abs() + 1, running.momentum, eps=0.1)
            outcome = function(
                about, statistics, 8 + 7 * slope.sign() + 0.1 * slope, 0.05 * offset, by_batch=by_batch,
                activation=activation, added=3 * other[0] if other else None, depth=depth and _half(depth),
            )  # fmt: skip
            return outcome, statistics.mean, statistics.variance

        return layer

    key = (by_batch, activation, depth is not None)
    maps = [values] if added is None else [values, added]
    with torch.set_grad_enabled(by_batch):
        check_kernel("normalisation", key, by(_kernel_normalise), by(plain_normalise), maps, [weight, bias])


def _half(depth: Depth) -> Depth:
    """Return stochastic depth that drops half of the samples, always the same."""
    generator = torch.Generator(depth.draws.device).manual_seed(2)
    return Depth(torch.rand(depth.draws.shape, device=depth.draws.device, generator=generator), 0.5)


def plain_normalise(
    values: Tensor, running: RunningStatistics, weight: Tensor | None, bias: Tensor | None, *, by_batch: bool,
    activation: Activation | None = None, added: Tensor | None = None, depth: Depth | None = None,
) -> Tensor:  # fmt: skip
    """Do the same with PyTorch's operations."""
    rows = values.reshape(1, values.shape[0] * values.shape[1], -1)
    scale = None if weight is None else weight.flatten()
    shift = None if bias is None else bias.flatten()
    mean, variance = running.mean.view(-1), running.variance.view(-1)
    normal = functional.batch_norm(rows, mean, variance, scale, shift, by_batch, running.momentum, running.eps)
    outcome = normal.view(values.shape)
    if depth is not None:
        outcome = depth.apply(outcome)
    if added is not None:
        outcome = outcome + added
    return outcome if activation is None else _ACTIVATIONS[activation](outcome)


def layer_norm(values: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """Normalise over the channels of (n, C, B)."""
    normal = functional.layer_norm(values.transpose(1, 2), (values.shape[1],), eps=eps).transpose(1, 2)
    if weight is not None:
        normal = normal * weight.unsqueeze(2)
    return normal if bias is None else normal + bias.unsqueeze(2)


def pool_maps(values: Tensor, pool: torch.nn.Module) -> Tensor:
    """Apply a pooling layer to each feature map."""
    maps: Tensor = pool(values.flatten(0, 2))
    return maps.view(*values.shape[:3], *maps.shape[1:])


def flatten(values: Tensor) -> Tensor:
    """Reshape (n, C, B, H, W) to (n, C·H·W, B)."""
    return values.movedim(2, -1).flatten(1, -2) if values.dim() > 3 else values


def pool_channels(values: Tensor, dim: int) -> Tensor:
    """Average (n, C, B) to (n, d, B)."""
    return functional.adaptive_avg_pool1d(values.transpose(1, 2), dim).transpose(1, 2).contiguous()


def shuffle(values: Tensor, groups: int) -> Tensor:
    """Interleave groups of channels."""
    clients, channels, *rest = values.shape
    return values.reshape(clients, groups, channels // groups, *rest).transpose(1, 2).reshape(values.shape)


def interleave(first: Tensor, second: Tensor) -> Tensor:
    """Alternate the channels of both: shuffle(cat(first, second), 2) at once."""
    return torch.stack((first, second), dim=2).flatten(1, 2)


class Squeeze(NamedTuple):
    """The two layers of squeeze-and-excitation: C to S channels and back, and the activation between them."""

    first: Tensor  # (n, S, C)
    first_bias: Tensor  # (n, S)
    second: Tensor  # (n, C, S)
    second_bias: Tensor  # (n, C)
    activation: Activation


def excite(values: Tensor, squeeze: Squeeze) -> Tensor:
    """Multiply each map of (n, C, B, H, W) by a share in (0, 1) that depends on the means of all its sample's maps."""
    if not (values.is_cuda and values.dtype == torch.float32):
        return plain_excite(values, squeeze)
    values = values.contiguous()
    check_excitation(values, squeeze)
    return _kernel_excite(values, squeeze)


def _kernel_excite(values: Tensor, squeeze: Squeeze) -> Tensor:
    from tinyproto.stacked.kernels.excitation import TritonExcitation

    return apply(TritonExcitation, values, *squeeze)


def check_excitation(values: Tensor, squeeze: Squeeze) -> None:
    """Check the kernels once, with exact products: those in TF32 change the sign of a ReLU's input now and then."""
    *weights, activation = squeeze

    def by(function: Callable[[Tensor, Squeeze], Tensor]) -> Layer:
        def layer(maps: Tensor, first: Tensor, first_bias: Tensor, second: Tensor, second_bias: Tensor) -> Tensor:
            first, second = (each / each.shape[2] ** 0.5 for each in (first, second))  # gates are neither 0 nor 1
            return function(maps, Squeeze(first, first_bias, second, second_bias, activation))

        return layer

    convolutions, products = torch.backends.cudnn, torch.backends.cuda.matmul
    before = convolutions.allow_tf32, products.allow_tf32
    convolutions.allow_tf32 = products.allow_tf32 = False
    try:
        with branching(None):
            check_kernel("squeeze-and-excitation", activation, by(_kernel_excite), by(plain_excite), [values], weights)
    finally:
        convolutions.allow_tf32, products.allow_tf32 = before


def plain_excite(values: Tensor, squeeze: Squeeze) -> Tensor:
    """Do the same with PyTorch's operations."""
    squeezed = linear(values.mean((3, 4)), squeeze.first, squeeze.first_bias)
    gates = linear(_ACTIVATIONS[squeeze.activation](squeezed), squeeze.second, squeeze.second_bias)
    return values * torch.sigmoid(gates)[..., None, None]


def spatial_mean(values: Tensor, dims: Sequence[int], *, keepdim: bool) -> Tensor:
    """Average over height and width."""
    if sorted(dim % 4 for dim in dims) != [2, 3] or values.dim() != 5:
        raise CannotStack(f"a mean over axes {tuple(dims)} has no stacked form")
    return values.mean((3, 4), keepdim=keepdim)
