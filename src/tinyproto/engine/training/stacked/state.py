"""The weights of n clients' modules, one tensor per weight, clients in front; copied in before a fit, out after."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from tinyproto.core.task import State


class _Held(NamedTuple):
    """A module's tensors by name; walking through a module costs more than copying it."""

    parameters: State
    statistics: State  # float buffers
    counters: list[Tensor]  # of batches, in normalisation layers

    @property
    def values(self) -> list[Tensor]:
        """What is copied in and out."""
        return [*self.parameters.values(), *self.statistics.values()]


_HELD: WeakKeyDictionary[nn.Module, _Held] = WeakKeyDictionary()


def _held(module: nn.Module) -> _Held:
    """Remembered: modules keep their parameters and buffers, whose values and layout may change."""
    held = _HELD.get(module)
    if held is None:
        buffers = dict(module.named_buffers())
        held = _HELD[module] = _Held(
            dict(module.named_parameters()),
            {name: value for name, value in buffers.items() if value.is_floating_point()},
            [value for name, value in buffers.items() if name.endswith("num_batches_tracked")],
        )
    return held


class StackedState:
    """Parameters and float buffers of one module, for n clients; the buffers lie in one piece of memory."""

    def __init__(self, module: nn.Module, clients: int) -> None:
        held = _held(module)
        self.clients = clients
        self.parameters: State = {
            name: torch.zeros(clients, *value.shape, device=value.device, dtype=value.dtype).requires_grad_()
            for name, value in held.parameters.items()
        }
        sizes = {name: value.shape for name, value in held.statistics.items()}
        device, dtype = next((value.device, value.dtype) for value in self.parameters.values())
        self.flat = torch.zeros(clients * sum(size.numel() for size in sizes.values()), device=device, dtype=dtype)
        pieces = torch.split(self.flat, [clients * size.numel() for size in sizes.values()]) if sizes else ()
        self.buffers: State = {
            name: piece.view(clients, *size) for (name, size), piece in zip(sizes.items(), pieces, strict=True)
        }
        owners = [torch.arange(clients).repeat_interleave(size.numel()) for size in sizes.values()]
        self.owner = torch.cat(owners).to(device) if owners else torch.zeros(0, dtype=torch.int64, device=device)
        self._own = [[value.detach()[client] for value in self.tensors.values()] for client in range(clients)]

    @property
    def tensors(self) -> State:
        """All of it by name."""
        return {**self.parameters, **self.buffers}

    def load(self, modules: Sequence[nn.Module]) -> None:
        """Take the modules' weights."""
        with torch.no_grad():
            torch._foreach_copy_(self._ours(len(modules)), _theirs(modules))

    def store(self, modules: Sequence[nn.Module], steps: Sequence[int]) -> None:
        """Give the weights back; a client took so many steps, which its normalisation layers count."""
        with torch.no_grad():
            torch._foreach_copy_(_theirs(modules), self._ours(len(modules)))
            for module, count in zip(modules, steps, strict=True):
                counters = _held(module).counters
                if counters:
                    torch._foreach_add_(counters, count)

    def of(self, start: int, stop: int) -> StackedState:
        """The clients from `start` to before `stop`, in the same memory."""
        part = StackedState.__new__(StackedState)
        part.clients = stop - start
        part.parameters = {name: value.detach()[start:stop].requires_grad_() for name, value in self.parameters.items()}
        part.buffers = {name: value[start:stop] for name, value in self.buffers.items()}
        part.flat, part.owner = self.flat, self.owner  # of all clients: who is not of this part counts as idle
        part._own = self._own[start:stop]
        return part

    def keep(self, before: Tensor, active: Tensor) -> None:
        """Give the buffers of clients that are not active the values they had before."""
        self.flat.copy_(torch.where(active[self.owner] > 0, self.flat, before))

    def _ours(self, clients: int) -> list[Tensor]:
        return [value for own in self._own[:clients] for value in own]


def _theirs(modules: Sequence[nn.Module]) -> list[Tensor]:
    return [value for module in modules for value in _held(module).values]
