"""Depthwise convolution of a stack of clients, (n, C, B, H, W) with filters (n, C, k, k).

On a GPU it is three Triton kernels over the stack as it lies in memory; PyTorch's own want another order and spend most
of a small network's step on the gradient of the filters. Elsewhere it is PyTorch's.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

Pair = tuple[int, int]


def depthwise_convolution(values: Tensor, weight: Tensor, stride: Pair, padding: Pair) -> Tensor:
    """Each channel of each client with its own filter."""
    if values.is_cuda and stride[0] == stride[1] and padding[0] == padding[1]:
        from tinyproto.engine.training.stacked.depthwise_triton import TritonDepthwise

        return TritonDepthwise.on(values.contiguous(), weight.contiguous(), stride[0], padding[0])
    return plain_depthwise(values, weight, stride, padding)


def plain_depthwise(values: Tensor, weight: Tensor, stride: Pair, padding: Pair) -> Tensor:
    """The same by PyTorch."""
    clients, channels, batch, *_ = values.shape
    side_by_side = values.permute(2, 0, 1, 3, 4).reshape(batch, clients * channels, *values.shape[3:])
    filters = weight.flatten(0, 1).unsqueeze(1)
    outcome = functional.conv2d(side_by_side, filters, None, stride, padding, groups=clients * channels)
    return outcome.view(batch, clients, channels, *outcome.shape[2:]).permute(1, 2, 0, 3, 4).contiguous()
