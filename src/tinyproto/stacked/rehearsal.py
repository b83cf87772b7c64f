"""Try a network before its steps are captured or stacked.

A captured step repeats what it did to tensors, and runs no Python code. A stack computes a traced form of the network.
So a step is captured only if the network does the same every time, and stacked only if both forms agree. Networks of
the package are not tried; tests compare them with the eager trainer.
"""

from __future__ import annotations

import copy
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain

import torch
from torch import Tensor, nn

from tinyproto.core.streams import global_randomness, random_states
from tinyproto.core.task import State, TensorData
from tinyproto.errors import one_line
from tinyproto.memory import is_out_of_memory
from tinyproto.models.efficientnet import StochasticDepth
from tinyproto.models.split import DropoutLinear, Output, SplitModel
from tinyproto.stacked.fallback import CannotStack
from tinyproto.stacked.network import StackedModel
from tinyproto.stacked.signature import signature, state

SAMPLES = 3
"""Samples of a client in a trial; of two, normalisation leaves little more than signs."""
PRECISION = 1e-6
"""Largest difference between results in float64, as a share of a result's largest value."""
NOISE = 1e-11
"""The same as a share of the largest value of all results: some gradients are zero up to rounding."""

_DRAWING = (nn.Dropout, StochasticDepth, DropoutLinear)
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_VERDICTS: dict[Hashable, str] = {}
"""Why networks cannot be stacked, or "", by signature and samples: stacks are built anew for more clients."""


def check_repeats(model: nn.Module, data: TensorData) -> None:
    """Raise CannotStack if a step of a network does more than compute on tensors that stay where they are.

    The second pass of a copy in each mode is looked at, since the first may fill caches.
    """
    if not isinstance(model, SplitModel) or model.registered:
        return
    if any(getattr(module, hooks, None) for module in model.modules() for hooks in _HOOKS):
        raise CannotStack("its network has hooks")
    if any(tensor._backward_hooks or tensor._post_accumulate_grad_hooks for tensor in model.parameters()):
        raise CannotStack("a parameter of its network has a hook")
    with _trying("its network cannot be tried"):
        places = [tensor.data_ptr() for tensor in chain(model.parameters(), model.buffers()) if tensor.numel()]
        if len(set(places)) < len(places):  # which those of a copy would not
            raise CannotStack("tensors of its network share memory")
        trial = copy.deepcopy(model)
        if not all(parameter.is_leaf for parameter in trial.parameters()):
            raise CannotStack("its network cannot be copied, as with TorchScript")
        inputs = _samples(data, model)
        for training in (True, False):
            trial.train(training)(inputs)
            before, drawn = state(trial), random_states()
            if any(id(each) in before.met for each in chain(model.modules(), model.parameters(), model.buffers())):
                raise CannotStack("a function in its network refers to layers, and a copy of it to the same ones")
            held = [(each, each._version, each.requires_grad) for each in chain(trial.parameters(), trial.buffers())]
            trial.train(training)  # as before every round
            if any((each._version, each.requires_grad) != (version, trained) for each, version, trained in held):
                raise CannotStack("its network changes tensors when it is set to training or evaluation")
            trial(inputs)
            for name, value in state(trial).attributes.items():
                if name not in before.attributes or before.attributes[name] != value:
                    raise CannotStack(f"its network changes {name} in each step, which a captured step would not")
            for name, value in random_states().items():
                if drawn[name] != value and not (name == "torch" and inputs.device.type == "cpu"):
                    raise CannotStack(f"its network draws random numbers from {name} on the host in each step")


def stacked_form(model: SplitModel, data: TensorData) -> StackedModel:
    """Return a network for a stack; raise CannotStack if its results differ from the model's."""
    if model.registered:
        return StackedModel(model)
    check_repeats(model, data)
    with _trying("its stacked form cannot be tried"):
        stacked = StackedModel(model)
        tried = (signature(model), data.pool.shape[1:], data.pool.dtype)
        if tried not in _VERDICTS:
            try:
                _compare(model, stacked, data)
                _VERDICTS[tried] = ""
            except CannotStack as reason:
                _VERDICTS[tried] = str(reason)
    if _VERDICTS[tried]:
        raise CannotStack(_VERDICTS[tried])
    return stacked


def _compare(model: SplitModel, stacked: StackedModel, data: TensorData) -> None:
    """Raise CannotStack if the results of a network and of its stacked form differ.

    Two copies with different weights are compared on the host in float64, in training and in evaluation: features,
    logits, gradients, buffers. Layers that draw random numbers are compared without.
    """
    held = [tensor for module in model.modules() for tensor in module._parameters.values() if tensor is not None]
    if len(set(held)) < len(held):
        raise CannotStack("layers of its network share a parameter")
    if len({tensor.dtype for tensor in chain(held, model.buffers()) if tensor.is_floating_point()}) > 1:
        raise CannotStack("the weights of its network have several types")
    inputs = torch.stack([_samples(data, model), _samples(data, model).flip(0)]).cpu()
    inputs = inputs.double() if inputs.is_floating_point() else inputs
    for training in (True, False):
        copies = [_varied(model, training) for _ in inputs]
        values, drawn = _stacked(copies), random_states()
        outputs = [each(batch) for each, batch in zip(copies, inputs, strict=True)]
        if random_states() != drawn:
            raise CannotStack("its network draws random numbers outside of a layer")
        expected = _results(
            Output(*map(torch.stack, zip(*outputs, strict=True))),
            *([value for _, value in each.named_parameters()] for each in copies),
        )
        weights = [values[name].requires_grad_(value.requires_grad) for name, value in model.named_parameters()]
        found = _results(stacked(inputs, values, normalise=training, training=False), weights)
        for name, value in values.items():  # a stack counts the batches of all layers when it is stored
            found.append(value + training if name.endswith("num_batches_tracked") else value)
        expected += _stacked(copies).values()
        if not _agree(found, expected):
            when = "training" if training else "evaluation"
            raise CannotStack(f"its stacked form disagrees with its network in {when}")


@contextmanager
def _trying(words: str) -> Iterator[None]:
    """Turn any error but a lack of memory into CannotStack. The run's random draws and gradient mode stay."""
    try:
        with global_randomness(0), torch.enable_grad():
            yield
    except CannotStack:
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise
        raise CannotStack(f"{words} ({one_line(error)})") from error


def _samples(data: TensorData, model: SplitModel) -> Tensor:
    """Return a batch of samples as the network sees them."""
    stored = data.pool[torch.arange(SAMPLES, device=data.pool.device) % len(data.pool)]
    return data.converted(stored, next((weight.dtype for weight in model.parameters()), torch.float32))


def _varied(model: SplitModel, training: bool) -> SplitModel:
    """Return a copy on the host in float64 with weights of its own, without random draws."""
    model = copy.deepcopy(model).cpu().double().train(training)
    for module in model.modules():
        if isinstance(module, _DRAWING):
            if module.training != training:
                raise CannotStack("its network sets the mode of its dropout itself")
            module.eval()
    with torch.no_grad():
        for value in (*model.parameters(), *model.buffers()):
            if value.is_floating_point():
                drawn = torch.rand_like(value)
                value.copy_(torch.where(value == 0, 0.1 * drawn, value * (1 + 0.2 * drawn)))  # zeros would hide much
    return model


def _stacked(models: Sequence[SplitModel]) -> State:
    """Return copies of parameters and buffers, clients in front."""
    named = [{**dict(model.named_parameters()), **dict(model.named_buffers())} for model in models]
    return {name: torch.stack([each[name].detach() for each in named]) for name in named[0]}


def _results(output: Output, *weights: Sequence[Tensor]) -> list[Tensor]:
    """Return features, logits and the gradients of stacked weights or, stacked, of each client's."""
    factors = (torch.linspace(-1, 1, part.numel(), dtype=part.dtype).view_as(part) for part in output)
    total = torch.stack([(part * factor).sum() for part, factor in zip(output, factors, strict=True)]).sum()
    flat = [weight for each in weights for weight in each if weight.requires_grad]
    slopes = torch.autograd.grad(total, flat, allow_unused=True) if flat else ()
    gradients = dict(zip(map(id, flat), slopes, strict=True))
    found = [
        [torch.zeros_like(weight) if gradients.get(id(weight)) is None else gradients[id(weight)] for weight in each]
        for each in weights
    ]
    return [*output, *(found[0] if len(found) == 1 else map(torch.stack, zip(*found, strict=True)))]


def _agree(found: Sequence[Tensor], expected: Sequence[Tensor]) -> bool:
    """Return True if all are equal up to rounding; NaN equals nothing."""
    pairs = [(one.detach().double(), two.detach().double()) for one, two in zip(found, expected, strict=True)]
    largest = max(_largest(two) for _, two in pairs)
    return all(
        one.shape == two.shape and _largest(one - two) <= PRECISION * _largest(two) + NOISE * largest
        for one, two in pairs
    )


def _largest(values: Tensor) -> float:
    return float(values.abs().max()) if values.numel() else 0.0
