"""Try a network before its steps are captured or stacked, and tell which networks may share what was captured.

A captured step repeats what it did to tensors, and runs no Python code. A stack computes a traced form of the network.
So a step is captured only if the network does the same every time, and stacked only if both forms agree. Networks of
the package are not tried; tests compare them with the eager trainer.
"""

from __future__ import annotations

import copy
import hashlib
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from types import FunctionType, MethodType
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

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

SAMPLES = 3
"""Samples of a client in a trial; of two, normalisation leaves little more than signs."""
PRECISION = 1e-6
"""Largest difference between results in float64, as a share of the largest value."""
DEEPEST = 6
"""Levels of containers and objects that are looked into."""

_DRAWING = (nn.Dropout, StochasticDepth, DropoutLinear)
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_SIMPLE = (bool, int, float, complex, str, bytes, type, torch.dtype, torch.device, type(None))


def signature(module: nn.Module) -> Hashable:
    """Return a value that is equal for modules that differ only in the values of parameters and buffers.

    Classes, shapes and attributes count, such as numbers, functions and tensors that are no buffers. Of an object that
    cannot be looked into, only its class does.
    """
    if module not in _SIGNATURES:
        _SIGNATURES[module] = tuple(_attributes(module, _CONTENT).items())
    return _SIGNATURES[module]


_SIGNATURES: WeakKeyDictionary[nn.Module, Hashable] = WeakKeyDictionary()


def check_repeats(model: nn.Module, data: TensorData) -> None:
    """Raise CannotStack if a step of a network does more than compute on tensors that stay where they are.

    The second step of a copy is looked at, since the first may fill caches.
    """
    if not isinstance(model, SplitModel) or model.registered:
        return
    if any(getattr(module, hooks, None) for module in model.modules() for hooks in _HOOKS):
        raise CannotStack("its network has hooks")
    if any(tensor._backward_hooks or tensor._post_accumulate_grad_hooks for tensor in model.parameters()):
        raise CannotStack("a parameter of its network has a hook")
    with _trying("its network cannot be tried"):
        trial = copy.deepcopy(model).train()
        if not all(parameter.is_leaf for parameter in trial.parameters()):
            raise CannotStack("its network cannot be copied, as with TorchScript")
        inputs = _samples(data, model)
        trial(inputs)
        before = _state(trial)
        trial(inputs)
        after = _state(trial)
    changed = [name for name, value in after.items() if name not in before or before[name] != value]
    if changed:
        raise CannotStack(f"its network changes {changed[0]} in each step, which a captured step would not")


def stacked_form(model: SplitModel, data: TensorData) -> StackedModel:
    """Return a network for a stack; raise CannotStack if its results differ from the model's.

    Two copies with different weights are compared on the host in float64, in training and in evaluation: features,
    logits, gradients, buffers. Layers that draw random numbers are compared without.
    """
    check_repeats(model, data)
    stacked = StackedModel(model)
    if model.registered:
        return stacked
    with _trying("its stacked form cannot be tried"):
        inputs = torch.stack([_samples(data, model), _samples(data, model).flip(0)]).cpu()
        inputs = inputs.double() if inputs.is_floating_point() else inputs
        for training in (True, False):
            copies = [_varied(model, training) for _ in inputs]
            state = _stacked(copies)
            outputs = [each(batch) for each, batch in zip(copies, inputs, strict=True)]
            expected = _results(
                Output(*map(torch.stack, zip(*outputs, strict=True))),
                *([value for _, value in each.named_parameters()] for each in copies),
            )
            weights = [state[name].requires_grad_(value.requires_grad) for name, value in model.named_parameters()]
            found = _results(stacked(inputs, state, normalise=training, training=False), weights)
            found.append(_flat(state.values()))
            expected.append(_flat(_stacked(copies).values()))
            if not all(map(_close, found, expected)):
                when = "training" if training else "evaluation"
                raise CannotStack(f"its stacked form disagrees with its network in {when}")
    return stacked


@contextmanager
def _trying(words: str) -> Iterator[None]:
    """Leave the run's random draws alone, and turn any error but a lack of memory into CannotStack."""
    try:
        with global_randomness(0):
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
            module.eval()
    with torch.no_grad():
        for value in (*model.parameters(), *model.buffers()):
            if value.is_floating_point():
                value.mul_(1 + 0.2 * torch.rand_like(value))
    return model


def _stacked(models: Sequence[SplitModel]) -> State:
    """Return copies of parameters and buffers, clients in front; without the counters, which stacks keep apart."""
    named = [{**dict(model.named_parameters()), **dict(model.named_buffers())} for model in models]
    return {
        name: torch.stack([each[name].detach() for each in named])
        for name in named[0]
        if not name.endswith("num_batches_tracked")
    }


def _results(output: Output, *weights: Sequence[Tensor]) -> list[Tensor]:
    """Return features, logits and, in one piece, the gradients of stacked weights or of each client's."""
    factors = (torch.linspace(-1, 1, part.numel(), dtype=part.dtype).view_as(part) for part in output)
    total = torch.stack([(part * factor).sum() for part, factor in zip(output, factors, strict=True)]).sum()
    flat = [weight for each in weights for weight in each if weight.requires_grad]
    gradients = dict(zip(map(id, flat), torch.autograd.grad(total, flat, allow_unused=True), strict=True))
    found = [
        [torch.zeros_like(weight) if gradients.get(id(weight)) is None else gradients[id(weight)] for weight in each]
        for each in weights
    ]
    return [*output, _flat(found[0] if len(found) == 1 else map(torch.stack, zip(*found, strict=True)))]


def _flat(tensors: Iterable[Tensor]) -> Tensor:
    return torch.cat([tensor.detach().flatten() for tensor in tensors])


def _close(found: Tensor, expected: Tensor) -> bool:
    """Return True if both are equal up to rounding, as a share of the largest value: some gradients are zero."""
    found, expected = found.detach(), expected.detach()
    same = found.shape == expected.shape
    return same and bool((found - expected).abs().max() <= PRECISION * expected.abs().max())


class _Same:
    """Equal only if it holds the same object, whatever that equals."""

    def __init__(self, value: object) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


class _Seen(NamedTuple):
    """What tensors are compared by: parameters and buffers, and others."""

    registered: Callable[[Tensor], Hashable]
    other: Callable[[Tensor], Hashable]


def _digest(tensor: Tensor) -> Hashable:
    values = tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()
    return tuple(tensor.shape), tensor.dtype, hashlib.blake2b(values.tobytes()).digest()


_CONTENT = _Seen(lambda tensor: (tuple(tensor.shape), tensor.dtype, tensor.requires_grad), _digest)
_PLACE = _Seen(_Same, lambda tensor: (_Same(tensor), tensor._version))


def _state(module: nn.Module) -> dict[str, Hashable]:
    """Return all that a step may change, by name, except what parameters and buffers hold."""
    return _attributes(module, _PLACE) | random_states()


def _attributes(module: nn.Module, seen: _Seen) -> dict[str, Hashable]:
    """Return a module's attributes and those of all modules in it, by name."""
    found: dict[str, Hashable] = {}
    for path, child in module.named_modules():
        found[path] = _comparable(type(child), seen.other)
        for name, value in vars(child).items():
            place = f"{path}.{name}".lstrip(".")
            if name in ("_parameters", "_buffers"):
                held = {f"{path}.{key}".lstrip("."): tensor for key, tensor in value.items()}
                found |= {key: tensor is not None and seen.registered(tensor) for key, tensor in held.items()}
            elif name not in ("training", "_modules") and "hooks" not in name:
                found[place] = _comparable(value, seen.other)
    return found


def _comparable(value: Any, tensors: Callable[[Tensor], Hashable], depth: int = DEEPEST) -> Hashable:
    """Return what a value is compared by: its content, or its class where that cannot be looked into."""
    inner = partial(_comparable, tensors=tensors, depth=depth - 1)
    kind = type(value)
    if isinstance(value, _SIMPLE):
        return kind, value
    if isinstance(value, Tensor):
        return tensors(value)
    if depth == 0 or isinstance(value, nn.Module):
        return (kind,)
    if isinstance(value, FunctionType):
        cells = [cell.cell_contents for cell in value.__closure__ or ()]
        return value.__code__, inner(value.__defaults__), inner(cells)
    if isinstance(value, MethodType):
        return inner(value.__func__), inner(value.__self__)
    if isinstance(value, partial):
        return inner(value.func), inner(value.args), inner(value.keywords)
    if isinstance(value, list | tuple | deque):
        return kind, tuple(map(inner, value))
    if isinstance(value, set | frozenset):
        return kind, frozenset(map(inner, value))
    if isinstance(value, Mapping):
        return kind, tuple((inner(key), inner(item)) for key, item in value.items())
    return kind, inner(vars(value)) if hasattr(value, "__dict__") else None
