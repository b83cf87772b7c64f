"""The weights of n clients' modules: one tensor per weight, clients in front. Loaded before a fit, stored after it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from tinyproto.core.task import State
from tinyproto.stacked.fallback import CannotStack


class _ModuleTensors(NamedTuple):
    """A module's tensors by name."""

    parameters: State  # that are trained
    fixed: State  # float buffers, and parameters that are frozen
    counters: list[Tensor]  # of batches, in normalisation layers

    @property
    def values(self) -> list[Tensor]:
        """Return the tensors that a stack copies."""
        return [*self.parameters.values(), *self.fixed.values()]

    @property
    def is_current(self) -> bool:
        """Return True if the same parameters are trained now."""
        trained = all(value.requires_grad for value in self.parameters.values())
        return trained and not any(value.requires_grad for value in self.fixed.values())


_TENSORS: WeakKeyDictionary[nn.Module, _ModuleTensors] = WeakKeyDictionary()
"""A cache: walking through a module takes longer than copying it, and a module keeps its tensors."""


def _tensors(module: nn.Module) -> _ModuleTensors:
    known = _TENSORS.get(module)
    if known is None or not known.is_current:
        parameters, buffers = dict(module.named_parameters()), dict(module.named_buffers())
        frozen = {name: value for name, value in parameters.items() if not value.requires_grad}
        known = _TENSORS[module] = _ModuleTensors(
            {name: value for name, value in parameters.items() if value.requires_grad},
            {name: value for name, value in {**frozen, **buffers}.items() if value.is_floating_point()},
            [value for name, value in buffers.items() if name.endswith("num_batches_tracked")],
        )
    return known


class StackedState:
    """Parameters and float buffers of one module for n clients; what is not trained shares one piece of memory."""

    def __init__(self, module: nn.Module, clients: int) -> None:
        held = _tensors(module)
        if not held.values:
            raise CannotStack(f"{type(module).__name__} has no weights")
        self.parameters: State = {
            name: torch.zeros(clients, *value.shape, device=value.device, dtype=value.dtype).requires_grad_()
            for name, value in held.parameters.items()
        }
        sizes = {name: value.shape for name, value in held.fixed.items()}
        device, dtype = next((value.device, value.dtype) for value in held.values)
        self.flat = torch.zeros(clients * sum(size.numel() for size in sizes.values()), device=device, dtype=dtype)
        pieces = torch.split(self.flat, [clients * size.numel() for size in sizes.values()]) if sizes else ()
        self.buffers: State = {
            name: piece.view(clients, *size) for (name, size), piece in zip(sizes.items(), pieces, strict=True)
        }
        clients_of_values = [torch.arange(clients).repeat_interleave(size.numel()) for size in sizes.values()]
        self.client_of_value = torch.cat([torch.zeros(0, dtype=torch.int64), *clients_of_values]).to(device)
        self._by_client = [[value.detach()[client] for value in self.tensors.values()] for client in range(clients)]

    @property
    def tensors(self) -> State:
        """Return parameters and buffers by name."""
        return {**self.parameters, **self.buffers}

    def load(self, modules: Sequence[nn.Module]) -> None:
        """Copy the modules' weights into the stack."""
        with torch.no_grad():
            torch._foreach_copy_(self._stacked(len(modules)), _values(modules))

    def store(self, modules: Sequence[nn.Module], batches: Sequence[int]) -> None:
        """Copy the weights back, and add each client's batches to the counters of its normalisation layers."""
        with torch.no_grad():
            torch._foreach_copy_(_values(modules), self._stacked(len(modules)))
            for module, count in zip(modules, batches, strict=True):
                counters = _tensors(module).counters
                if counters:
                    torch._foreach_add_(counters, count)

    def slice(self, start: int, stop: int) -> StackedState:
        """Return the clients from `start` to before `stop`, in the same memory."""
        part = StackedState.__new__(StackedState)
        part.parameters = {name: value.detach()[start:stop].requires_grad_() for name, value in self.parameters.items()}
        part.buffers = {name: value[start:stop] for name, value in self.buffers.items()}
        part.flat, part.client_of_value = self.flat, self.client_of_value  # of all clients: the others count as idle
        part._by_client = self._by_client[start:stop]
        return part

    def restore_idle(self, before: Tensor, active: Tensor) -> None:
        """Reset the buffers of clients that are not active to the values they had before."""
        self.flat.copy_(torch.where(active[self.client_of_value] > 0, self.flat, before))

    def _stacked(self, clients: int) -> list[Tensor]:
        return [value for values in self._by_client[:clients] for value in values]


def _values(modules: Sequence[nn.Module]) -> list[Tensor]:
    return [value for module in modules for value in _tensors(module).values]
