"""Layers on a stack of clients: activations (n, C, B, H, W) or (n, C, B), weights with the clients in front."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from tinyproto.engine.training.stacked.depthwise import depthwise_convolution

Pair = tuple[int, int]


class CannotStack(Exception):  # noqa: N818
    """A network or a task that has to be computed client by client; says why."""


def convolution(
    values: Tensor, weight: Tensor, bias: Tensor | None, *, stride: Pair, padding: Pair, dilation: Pair, groups: int
) -> Tensor:
    """Every client's samples with its own filters; weight (n, O, C/groups, k, k)."""
    clients, channels, batch, *_ = values.shape
    if weight.shape[3:] == (1, 1) and groups == 1 and padding == (0, 0):
        return _pointwise(values[..., :: stride[0], :: stride[1]], weight, bias)
    if groups == channels == weight.shape[1] and dilation == (1, 1) and bias is None:
        return depthwise_convolution(values, weight[:, :, 0], stride, padding)
    side_by_side = values.permute(2, 0, 1, 3, 4).reshape(batch, clients * channels, *values.shape[3:])
    outcome = functional.conv2d(
        side_by_side,
        weight.flatten(0, 1),
        None if bias is None else bias.flatten(),
        stride,
        padding,
        dilation,
        groups=clients * groups,
    )
    return outcome.view(batch, clients, -1, *outcome.shape[2:]).permute(1, 2, 0, 3, 4).contiguous()


def _pointwise(values: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    product = _ConvolutionProduct.of(weight.flatten(2), values.flatten(2))
    product = product.view(*product.shape[:2], *values.shape[2:])
    return product if bias is None else product + bias[:, :, None, None, None]


class _ConvolutionProduct(torch.autograd.Function):
    """A batched matrix product that is a convolution, so it rounds as convolutions are told to (TF32 by default)."""

    @classmethod
    def of(cls, left: Tensor, right: Tensor) -> Tensor:
        """(n, O, C) and (n, C, L) to (n, O, L)."""
        product: Tensor = cls.apply(left, right)  # type: ignore[no-untyped-call]
        return product

    @staticmethod
    def forward(ctx: Any, left: Tensor, right: Tensor) -> Tensor:
        """(n, O, C) and (n, C, L) to (n, O, L)."""
        ctx.save_for_backward(left, right)
        with _rounding_of_convolutions():
            return torch.bmm(left, right)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        """Of both."""
        left, right = ctx.saved_tensors
        with _rounding_of_convolutions():
            return torch.bmm(gradients[0], right.transpose(1, 2)), torch.bmm(left.transpose(1, 2), gradients[0])


@contextmanager
def _rounding_of_convolutions() -> Iterator[None]:
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def linear(values: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """(n, C, L) to (n, O, L)."""
    if bias is None:
        return torch.bmm(weight, values)
    return torch.baddbmm(bias.unsqueeze(2), weight, values)


def batch_norm(
    values: Tensor, mean: Tensor, variance: Tensor, weight: Tensor | None, bias: Tensor | None, *, training: bool,
    momentum: float, eps: float,
) -> Tensor:  # fmt: skip
    """Each client's channels by their own statistics, which `training` moves in place."""
    rows = values.reshape(1, values.shape[0] * values.shape[1], -1)
    scale = None if weight is None else weight.flatten()
    shift = None if bias is None else bias.flatten()
    normal = functional.batch_norm(rows, mean.view(-1), variance.view(-1), scale, shift, training, momentum, eps)
    return normal.view(values.shape)


def layer_norm(values: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """Over the channels of (n, C, B)."""
    normal = functional.layer_norm(values.transpose(1, 2), (values.shape[1],), eps=eps).transpose(1, 2)
    if weight is not None:
        normal = normal * weight.unsqueeze(2)
    return normal if bias is None else normal + bias.unsqueeze(2)


def per_map(values: Tensor, pool: torch.nn.Module) -> Tensor:
    """A pooling that treats every feature map alone."""
    maps: Tensor = pool(values.flatten(0, 2))
    return maps.view(*values.shape[:3], *maps.shape[1:])


def flatten(values: Tensor) -> Tensor:
    """(n, C, B, H, W) to (n, C·H·W, B)."""
    return values.movedim(2, -1).flatten(1, -2) if values.dim() > 3 else values


def pool_channels(values: Tensor, dim: int) -> Tensor:
    """(n, C, B) to (n, d, B)."""
    return functional.adaptive_avg_pool1d(values.transpose(1, 2), dim).transpose(1, 2).contiguous()


def shuffle(values: Tensor, groups: int) -> Tensor:
    """Interleave groups of channels."""
    clients, channels, *rest = values.shape
    return values.reshape(clients, groups, channels // groups, *rest).transpose(1, 2).reshape(values.shape)


def drop_samples(values: Tensor, dropped: float) -> Tensor:
    """Stochastic depth: a draw per client and sample."""
    kept = torch.rand(values.shape[0], 1, values.shape[2], 1, 1, device=values.device) >= dropped
    return values * (kept.to(values.dtype) / (1.0 - dropped))


def spatial_mean(values: Tensor, dims: Sequence[int], *, keepdim: bool) -> Tensor:
    """Mean over height and width."""
    if sorted(dim % 4 for dim in dims) != [2, 3] or values.dim() != 5:
        raise CannotStack(f"a mean over axes {tuple(dims)} has no stacked form")
    return values.mean((3, 4), keepdim=keepdim)
