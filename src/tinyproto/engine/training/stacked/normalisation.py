"""Batch normalisation of a stack, with what is added to it and the activation after it."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

Activation = Literal["relu", "relu6", "silu"]
_ACTIVATIONS = {"relu": functional.relu, "relu6": functional.relu6, "silu": functional.silu}


class Gathered(NamedTuple):
    """What a layer has gathered, (n, C) each, and how it goes on gathering."""

    mean: Tensor
    variance: Tensor
    momentum: float
    eps: float


def normalised(
    values: Tensor, gathered: Gathered, weight: Tensor | None, bias: Tensor | None, *, by_batch: bool,
    activation: Activation | None = None, added: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """activation(normal · weight + bias + added): each client's channels by the batch's statistics, or by the gathered.

    Statistics of the batch move the gathered ones in place.
    """
    fits = values.is_cuda and values.dtype == torch.float32 and weight is not None and bias is not None
    with_gradient = torch.is_grad_enabled() and not by_batch
    ours = added is None or activation != "silu"
    if not fits or with_gradient or not ours or values[0, 0].numel() < 2:
        return plain_normalised(values, gathered, weight, bias, by_batch=by_batch, activation=activation, added=added)
    from tinyproto.engine.training.stacked.kernels.normalisation import TritonNormalisation, normalise_by_gathered

    assert weight is not None
    assert bias is not None
    added = None if added is None else added.contiguous()
    kernel = TritonNormalisation.on if by_batch else normalise_by_gathered
    return kernel(values.contiguous(), weight, bias, added, gathered, activation)


def plain_normalised(
    values: Tensor, gathered: Gathered, weight: Tensor | None, bias: Tensor | None, *, by_batch: bool,
    activation: Activation | None = None, added: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """The same by PyTorch."""
    rows = values.reshape(1, values.shape[0] * values.shape[1], -1)
    scale = None if weight is None else weight.flatten()
    shift = None if bias is None else bias.flatten()
    mean, variance = gathered.mean.view(-1), gathered.variance.view(-1)
    normal = functional.batch_norm(rows, mean, variance, scale, shift, by_batch, gathered.momentum, gathered.eps)
    outcome = normal.view(values.shape)
    if added is not None:
        outcome = outcome + added
    return outcome if activation is None else _ACTIVATIONS[activation](outcome)
