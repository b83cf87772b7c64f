"""Convolutions of a stack of clients, (n, C, B, H, W) with filters (n, O, C/groups, k, k).

A 1×1 convolution of all clients is one batched matrix product. Other shapes use our kernels on a GPU, over the stack as
it lies in memory. PyTorch's want another order, run the clients of a dense convolution one after another, and spend
most of a small network's step on the gradient of depthwise filters. Elsewhere PyTorch's are used.
"""

from __future__ import annotations

from functools import partial
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from tinyproto.stacked.capture import branching, current_branch, forked
from tinyproto.stacked.fallback import CannotStack, check_kernel
from tinyproto.stacked.layers import apply

Pair = tuple[int, ...]

DENSE_KERNELS = (3, 7)
"""Filter widths that the kernel for dense convolutions supports: Triton 3.6 compiles 5 wrong at some sizes."""

MOST_POSITIONS = 2**22
"""Positions of a channel, over all samples, up to which the kernels' quotients in floats are exact."""


class Geometry(NamedTuple):
    """A convolution without the values of its filters."""

    kernel: Pair
    stride: Pair
    padding: Pair
    dilation: Pair
    groups: int
    channels: int
    filters: int

    @property
    def pointwise(self) -> bool:
        """Return True if it is a matrix product."""
        return self.kernel == (1, 1) and self.groups == 1 and self.padding == (0, 0)

    @property
    def depthwise(self) -> bool:
        """Return True if it has one filter per channel."""
        return self.groups == self.channels == self.filters

    @property
    def has_kernel(self) -> bool:
        """Return True if a GPU computes it without cuDNN: a matrix product, or square, without gaps, and supported."""
        square = all(len(set(pair)) == 1 for pair in (self.kernel, self.stride, self.padding))
        dense = self.groups == 1 and self.kernel[0] in DENSE_KERNELS
        return self.pointwise or (square and self.dilation == (1, 1) and (self.depthwise or dense))

    def is_countable(self, maps: torch.Size, *, trains: bool) -> bool:
        """Return True if the kernels' numbers hold all positions of maps (n, C, B, H, W) and of their results.

        They are 32-bit integers. All kernels but the forward one for dense convolutions divide them in floats.
        """
        sides = zip(maps[3:], self.kernel, self.stride, self.padding, strict=True)
        results = prod((side + 2 * padding - kernel) // stride + 1 for side, kernel, stride, padding in sides)
        positions = maps[2] * max(prod(maps[3:]), results)
        in_floats = trains or self.depthwise
        return (positions <= MOST_POSITIONS or not in_floats) and positions * max(self.channels, self.filters) < 2**31


def geometry(layer: nn.Conv2d) -> Geometry:
    """Return the geometry of a layer whose padding is given in numbers."""
    assert not isinstance(layer.padding, str)
    sizes = layer.kernel_size, layer.stride, layer.padding, layer.dilation
    return Geometry(*sizes, layer.groups, layer.in_channels, layer.out_channels)


def convolution(values: Tensor, weight: Tensor, bias: Tensor | None, shape: Geometry) -> Tensor:
    """Convolve each client's samples with its own filters."""
    if shape.pointwise:
        values = values[..., :: shape.stride[0], :: shape.stride[1]]
        found = apply(_ConvolutionProduct, weight.flatten(2), values.flatten(2))
        return _add_bias(found.view(*found.shape[:2], *values.shape[2:]), bias)
    if not (values.is_cuda and values.dtype == torch.float32 and shape.has_kernel):
        return plain_convolution(values, weight, bias, shape)
    if not shape.is_countable(values.shape, trains=torch.is_grad_enabled()):
        raise CannotStack("its maps have more positions than our kernels can count")
    values = values.contiguous()
    kernel, plain = partial(_kernel_convolution, shape=shape), partial(plain_convolution, bias=None, shape=shape)
    with branching(None):
        check_kernel("depthwise" if shape.depthwise else "convolution", shape, kernel, plain, [values], [weight])
    return _add_bias(kernel(values, weight), bias)


def _kernel_convolution(values: Tensor, weight: Tensor, shape: Geometry) -> Tensor:
    from tinyproto.stacked.kernels.convolution import TritonConvolution, TritonDepthwise

    if shape.depthwise:
        return apply(TritonDepthwise, values, weight.squeeze(2), shape.stride[0], shape.padding[0])
    return apply(TritonConvolution, values, weight, shape.stride[0], shape.padding[0])


def plain_convolution(values: Tensor, weight: Tensor, bias: Tensor | None, shape: Geometry) -> Tensor:
    """Do the same with PyTorch's grouped convolution, the clients' channels side by side."""
    clients, channels, batch, *_ = values.shape
    side_by_side = values.permute(2, 0, 1, 3, 4).reshape(batch, clients * channels, *values.shape[3:])
    outcome = functional.conv2d(
        side_by_side,
        weight.flatten(0, 1),
        None if bias is None else bias.flatten(),
        shape.stride,
        shape.padding,
        shape.dilation,
        groups=clients * shape.groups,
    )
    return outcome.view(batch, clients, -1, *outcome.shape[2:]).permute(1, 2, 0, 3, 4).contiguous()


def _add_bias(values: Tensor, bias: Tensor | None) -> Tensor:
    return values if bias is None else values + bias[:, :, None, None, None]


class _ConvolutionProduct(torch.autograd.Function):
    """A batched matrix product that is a convolution: it rounds as cuDNN's convolutions do (TF32 by default)."""

    @staticmethod
    def forward(ctx: Any, left: Tensor, right: Tensor) -> Tensor:
        """Multiply (n, O, C) and (n, C, L) to (n, O, L)."""
        ctx.save_for_backward(left, right)
        ctx.branch = current_branch()
        return product(left, right)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradients of both factors."""
        left, right = ctx.saved_tensors
        gradient = gradients[0]
        with forked(ctx.branch, gradient, right):
            of_left = product(gradient, right.transpose(1, 2))
        return of_left, product(left.transpose(1, 2), gradient)


def product(left: Tensor, right: Tensor) -> Tensor:
    """Multiply (n, O, C) and (n, C, L), rounding as convolutions do."""
    products = torch.backends.cuda.matmul
    before = products.allow_tf32
    products.allow_tf32 = torch.backends.cudnn.allow_tf32
    try:
        return torch.bmm(left, right)
    finally:
        products.allow_tf32 = before
