"""The size of a network: parameters, width of its features, multiply-accumulates for one image."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tinyproto.models.split import PoolFeatures, SplitModel


@dataclass(frozen=True)
class NetworkSize:
    """The cost of storing and running a network."""

    extractor_parameters: int
    head_parameters: int
    feature_width: int  # C, before pooling to d; d if the network does not pool
    macs: int  # of convolutions and linear layers, for one image; without pooling, normalisation and activations


def count_parameters(module: nn.Module) -> int:
    """Return the number of trained parameters."""
    return sum(parameter.numel() for parameter in module.parameters())


def measure(model: SplitModel, input_shape: tuple[int, ...]) -> NetworkSize:
    """Run one image through a network in eval mode and count; the model is not changed."""
    macs = pooled_from = 0

    def watch(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        nonlocal macs, pooled_from
        if isinstance(module, PoolFeatures):
            pooled_from = inputs[0].shape[1]
        elif isinstance(module, nn.Conv2d | nn.Linear) and isinstance(output, Tensor):
            # Each output is a sum over one filter: the weights of one output channel.
            macs += output.numel() * module.weight[0].numel()

    handles = [module.register_forward_hook(watch) for module in model.modules()]
    modes = [(module, module.training) for module in model.modules()]
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    try:
        with torch.no_grad():
            features = model.eval()(torch.zeros(1, *input_shape, device=device)).features
    finally:
        for handle in handles:
            handle.remove()
        for module, training in modes:
            module.training = training
    return NetworkSize(
        extractor_parameters=count_parameters(model.extractor),
        head_parameters=count_parameters(model.head),
        feature_width=pooled_from or features.shape[1],
        macs=macs,
    )
