"""The weights of n clients' modules, one tensor per weight, clients in front; copied in before a fit, out after."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from tinyproto.core.task import State


class StackedState:
    """Parameters and float buffers of one module of n clients; the buffers lie in one piece of memory."""

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        first = modules[0]
        self.clients = len(modules)
        self.parameters: State = {
            name: torch.empty(self.clients, *value.shape, device=value.device, dtype=value.dtype).requires_grad_()
            for name, value in first.named_parameters()
        }
        sizes = {name: value.shape for name, value in _statistics(first)}
        device, dtype = next((value.device, value.dtype) for value in self.parameters.values())
        self.flat = torch.empty(self.clients * sum(size.numel() for size in sizes.values()), device=device, dtype=dtype)
        pieces = torch.split(self.flat, [self.clients * size.numel() for size in sizes.values()]) if sizes else ()
        self.buffers: State = {
            name: piece.view(self.clients, *size) for (name, size), piece in zip(sizes.items(), pieces, strict=True)
        }
        owners = [torch.arange(self.clients).repeat_interleave(size.numel()) for size in sizes.values()]
        self.owner = torch.cat(owners).to(device) if owners else torch.zeros(0, dtype=torch.int64, device=device)

    @property
    def tensors(self) -> State:
        """All of it by name."""
        return {**self.parameters, **self.buffers}

    def load(self, modules: Sequence[nn.Module]) -> None:
        """Take the modules' weights."""
        ours, theirs = self._pairs(modules)
        with torch.no_grad():
            torch._foreach_copy_(ours, theirs)

    def store(self, modules: Sequence[nn.Module], steps: Sequence[int]) -> None:
        """Give the weights back; a client took so many steps, which its normalisation layers count."""
        ours, theirs = self._pairs(modules)
        with torch.no_grad():
            torch._foreach_copy_(theirs, ours)
        for module, count in zip(modules, steps, strict=True):
            for name, value in module.named_buffers():
                if name.endswith("num_batches_tracked"):
                    value += count

    def of(self, client: int) -> StackedState:
        """A stack of one of its clients, in the same memory."""
        alone = StackedState.__new__(StackedState)
        alone.clients = 1
        alone.parameters = {
            name: value.detach()[client : client + 1].requires_grad_() for name, value in self.parameters.items()
        }
        alone.buffers = {name: value[client : client + 1] for name, value in self.buffers.items()}
        alone.flat, alone.owner = self.flat[:0], self.owner[:0]
        return alone

    def _pairs(self, modules: Sequence[nn.Module]) -> tuple[list[Tensor], list[Tensor]]:
        stacked = {name: value.detach() for name, value in self.tensors.items()}
        ours, theirs = [], []
        for client, module in enumerate(modules):
            own: Mapping[str, Tensor] = {**dict(module.named_parameters()), **dict(_statistics(module))}
            for name, value in stacked.items():
                ours.append(value[client])
                theirs.append(own[name].detach())
        return ours, theirs


def _statistics(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    return ((name, value) for name, value in module.named_buffers() if value.is_floating_point())
