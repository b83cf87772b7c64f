"""Convolutions of a stack of clients, (n, C, B, H, W) with filters (n, O, C/groups, k, k).

A 1×1 convolution of all clients is one batched matrix product. Other shapes are kernels of our own on a GPU, over the
stack as it lies in memory: PyTorch's want another order, run the clients of a dense convolution one after another, and
spend most of a small network's step on the gradient of depthwise filters. Elsewhere they are PyTorch's.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from tinyproto.engine.training.choice import Precision, rounding
from tinyproto.engine.training.stacked.proof import Layer, prove

Pair = tuple[int, int]


DENSE_KERNELS = (3, 7)
"""Widths of filters that the kernel for dense convolutions is right for: Triton 3.6 compiles 5 wrong at some sizes."""


class Geometry(NamedTuple):
    """What a convolution does besides its filters' values."""

    kernel: Pair
    stride: Pair
    padding: Pair
    dilation: Pair
    groups: int
    channels: int
    filters: int

    @property
    def pointwise(self) -> bool:
        """A matrix product."""
        return self.kernel == (1, 1) and self.groups == 1 and self.padding == (0, 0)

    @property
    def depthwise(self) -> bool:
        """One filter per channel."""
        return self.groups == self.channels == self.filters

    @property
    def regular(self) -> bool:
        """The same along both axes, without gaps."""
        return self.dilation == (1, 1) and all(len(set(pair)) == 1 for pair in (self.kernel, self.stride, self.padding))


def geometry(layer: nn.Conv2d) -> Geometry:
    """Of a layer whose padding is given in numbers."""
    kernel, stride, padding, dilation = (
        _pair(value) for value in (layer.kernel_size, layer.stride, layer.padding, layer.dilation)
    )
    return Geometry(kernel, stride, padding, dilation, layer.groups, layer.in_channels, layer.out_channels)


def has_own_kernel(shape: Geometry) -> bool:
    """Whether a GPU computes it without cuDNN."""
    dense = shape.groups == 1 and shape.kernel[0] in DENSE_KERNELS
    return shape.pointwise or (shape.regular and (shape.depthwise or dense))


def convolution(values: Tensor, weight: Tensor, bias: Tensor | None, shape: Geometry) -> Tensor:
    """Every client's samples with its own filters."""
    if shape.pointwise:
        return _pointwise(values[..., :: shape.stride[0], :: shape.stride[1]], weight, bias)
    if not (values.is_cuda and values.dtype == torch.float32 and has_own_kernel(shape)):
        return plain_convolution(values, weight, bias, shape)
    values = values.contiguous()
    name, kernel = ("depthwise", _depthwise(shape)) if shape.depthwise else ("convolution", _dense(shape))
    prove(name, shape, kernel, partial(plain_convolution, bias=None, shape=shape), values, weight)
    return _shifted(kernel(values, weight), bias)


def _depthwise(shape: Geometry) -> Layer:
    from tinyproto.engine.training.stacked.kernels.depthwise import TritonDepthwise

    return lambda maps, filters: TritonDepthwise.on(
        maps, filters[:, :, 0].contiguous(), shape.stride[0], shape.padding[0]
    )


def _dense(shape: Geometry) -> Layer:
    from tinyproto.engine.training.stacked.kernels.convolution import TritonConvolution

    return partial(TritonConvolution.on, stride=shape.stride[0], padding=shape.padding[0])


def plain_convolution(values: Tensor, weight: Tensor, bias: Tensor | None, shape: Geometry) -> Tensor:
    """The same by PyTorch: the clients' channels side by side, in groups."""
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


def _shifted(values: Tensor, bias: Tensor | None) -> Tensor:
    return values if bias is None else values + bias[:, :, None, None, None]


def _pointwise(values: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    product = _ConvolutionProduct.of(weight.flatten(2), values.flatten(2))
    return _shifted(product.view(*product.shape[:2], *values.shape[2:]), bias)


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
        with rounding(_as_convolutions()):
            return torch.bmm(left, right)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        """Of both."""
        left, right = ctx.saved_tensors
        with rounding(_as_convolutions()):
            return torch.bmm(gradients[0], right.transpose(1, 2)), torch.bmm(left.transpose(1, 2), gradients[0])


def _as_convolutions() -> Precision:
    return "tf32" if torch.backends.cudnn.allow_tf32 else "exact"


def _pair(value: Any) -> Pair:
    return (value, value) if isinstance(value, int) else (int(value[0]), int(value[1]))
