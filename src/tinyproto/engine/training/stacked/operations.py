"""Layers on a stack of clients: activations (n, C, B, H, W) or (n, C, B), weights with the clients in front."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional


class CannotStack(Exception):  # noqa: N818
    """A network or a task that has to be computed client by client; says why."""


def linear(values: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """(n, C, L) to (n, O, L)."""
    if bias is None:
        return torch.bmm(weight, values)
    return torch.baddbmm(bias.unsqueeze(2), weight, values)


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


def interleave(first: Tensor, second: Tensor) -> Tensor:
    """A channel of each in turn: shuffle(cat(first, second), 2) at once."""
    return torch.stack((first, second), dim=2).flatten(1, 2)


def gated(values: Tensor, gates: Tensor) -> Tensor:
    """values (n, C, B, H, W) · σ(gates), gates (n, C, B, 1, 1)."""
    if values.is_cuda and values.dtype == torch.float32 and gates.shape == (*values.shape[:3], 1, 1):
        from tinyproto.engine.training.stacked.kernels.gate import TritonGate

        return TritonGate.on(values.contiguous(), gates.contiguous())
    return values * torch.sigmoid(gates)


def drop_samples(values: Tensor, dropped: float) -> Tensor:
    """Stochastic depth: a draw per client and sample."""
    kept = torch.rand(values.shape[0], 1, values.shape[2], 1, 1, device=values.device) >= dropped
    return values * (kept.to(values.dtype) / (1.0 - dropped))


def spatial_mean(values: Tensor, dims: Sequence[int], *, keepdim: bool) -> Tensor:
    """Mean over height and width."""
    if sorted(dim % 4 for dim in dims) != [2, 3] or values.dim() != 5:
        raise CannotStack(f"a mean over axes {tuple(dims)} has no stacked form")
    return values.mean((3, 4), keepdim=keepdim)
