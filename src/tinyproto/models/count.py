"""The size of a network: parameters, width of its features, multiply-accumulates and memory for one sample."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.flop_counter import FlopCounterMode

from tinyproto.models.split import PoolFeatures, SplitModel


@dataclass(frozen=True)
class NetworkSize:
    """The cost of storing and running a network."""

    extractor_parameters: int
    head_parameters: int
    feature_width: int  # C, before pooling to d; d if the network does not pool
    macs: int  # of convolutions and linear layers, for one sample; without pooling, normalisation and activations


def count_parameters(module: nn.Module) -> int:
    """Return the number of trained parameters."""
    return sum(parameter.numel() for parameter in module.parameters())


def measure(model: SplitModel, input_shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> NetworkSize:
    """Run one sample through a network in eval mode and count; the model is not changed."""
    model = copy.deepcopy(model).eval()
    widths: list[int] = []
    for module in model.modules():
        if isinstance(module, PoolFeatures):
            module.register_forward_pre_hook(lambda _, inputs: widths.append(inputs[0].shape[1]))
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        features = model(torch.zeros(1, *input_shape, dtype=dtype, device=device)).features
    return NetworkSize(
        extractor_parameters=count_parameters(model.extractor),
        head_parameters=count_parameters(model.head),
        feature_width=widths[0] if widths else features.shape[1],
        macs=counter.get_total_flops() // 2,
    )


class StepSize(NamedTuple):
    """Bytes that a network takes in training."""

    weights: int  # parameters and buffers
    saved: int  # what one sample keeps for the backward pass
    widest: int  # the largest part of it

    def beside(self, other: StepSize) -> StepSize:
        """Return the size of both networks trained together."""
        return StepSize(self.weights + other.weights, self.saved + other.saved, max(self.widest, other.widest))


def step_size(model: SplitModel, batch: Tensor) -> StepSize:
    """Run a batch forward in training mode and count what autograd keeps; running statistics change."""
    model.train()
    own = {value.untyped_storage().data_ptr(): value.nbytes for value in (*model.parameters(), *model.buffers())}
    kept: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        kept.setdefault(tensor.untyped_storage().data_ptr(), tensor)
        return tensor

    with saved_tensors_hooks(keep, lambda tensor: tensor):
        model(batch)
    sizes = [tensor.untyped_storage().nbytes() for place, tensor in kept.items() if place not in own]
    return StepSize(sum(own.values()), sum(sizes) // len(batch), max(sizes, default=0) // len(batch))
