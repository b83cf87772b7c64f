"""Convolutions of a stack of clients, (n, C, B, H, W) with filters (n, O, C/groups, k, k).

A 1×1 convolution of all clients is one batched matrix product. Other shapes are kernels of our own on a GPU, over the
stack as it lies in memory: PyTorch's want another order, run the clients of a dense convolution one after another, and
spend most of a small network's step on the gradient of depthwise filters. Elsewhere they are PyTorch's.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

Pair = tuple[int, int]


def convolution(
    values: Tensor, weight: Tensor, bias: Tensor | None, *, stride: Pair, padding: Pair, dilation: Pair, groups: int
) -> Tensor:
    """Every client's samples with its own filters."""
    if weight.shape[3:] == (1, 1) and groups == 1 and padding == (0, 0):
        return _pointwise(values[..., :: stride[0], :: stride[1]], weight, bias)
    square = stride[0] == stride[1] and padding[0] == padding[1] and weight.shape[3] == weight.shape[4]
    if not (square and dilation == (1, 1) and values.is_cuda and values.dtype == torch.float32):
        return plain_convolution(values, weight, bias, stride=stride, padding=padding, dilation=dilation, groups=groups)
    if groups == values.shape[1] == weight.shape[1]:
        from tinyproto.engine.training.stacked.kernels.depthwise import TritonDepthwise

        filters = weight[:, :, 0].contiguous()
        return _shifted(TritonDepthwise.on(values.contiguous(), filters, stride[0], padding[0]), bias)
    if groups == 1:
        from tinyproto.engine.training.stacked.kernels.convolution import TritonConvolution

        return _shifted(TritonConvolution.on(values.contiguous(), weight, stride[0], padding[0]), bias)
    return plain_convolution(values, weight, bias, stride=stride, padding=padding, dilation=dilation, groups=groups)


def plain_convolution(
    values: Tensor, weight: Tensor, bias: Tensor | None, *, stride: Pair, padding: Pair, dilation: Pair, groups: int
) -> Tensor:
    """The same by PyTorch: the clients' channels side by side, in groups."""
    clients, channels, batch, *_ = values.shape
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
