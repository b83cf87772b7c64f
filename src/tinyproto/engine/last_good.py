"""The last good state of clients: a copy before training, put back for a client whose training diverged.

The memory for copies stays from round to round, and a round copies the weights twice. A copy of tensors as large and
as many as those of 20 networks of the paper takes about 2 ms on an H200; cloning each tensor would take 55 ms.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from tinyproto.algorithms.base import Client
from tinyproto.core.prototypes import Prototypes
from tinyproto.core.task import State

_Place = tuple[Mapping[str, Tensor | None], str]


class _Weights:
    """A client's parameters and buffers, and memory for two copies of them."""

    def __init__(self, client: Client) -> None:
        # Places rather than tensors, since a network may replace a buffer; walking it costs more than copying it.
        self._places: list[_Place] = [
            (owner, name)
            for root in (client.model, client.modules)
            for module in root.modules()
            for owner in (module._parameters, module._buffers)
            for name in owner
        ]
        self.before = _Copy(self.tensors())
        self.after = _Copy(self.floats())

    def tensors(self) -> list[Tensor]:
        """As they are now."""
        return [tensor for owner, name in self._places if (tensor := owner[name]) is not None]

    def floats(self) -> list[Tensor]:
        """Those that can diverge."""
        return [tensor for tensor in self.tensors() if tensor.is_floating_point()]


class _Copy:
    """Memory for tensors like these: one piece for each type, and each tensor's view of it."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self.views: list[Tensor] = [tensor.detach() for tensor in tensors]
        self.pieces: list[Tensor] = []
        for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
            own = [index for index, tensor in enumerate(tensors) if tensor.dtype == dtype]
            sizes = [tensors[index].numel() for index in own]
            piece = torch.empty(sum(sizes), dtype=dtype, device=tensors[own[0]].device)
            for index, part in zip(own, torch.split(piece, sizes), strict=True):
                self.views[index] = part.view(tensors[index].shape)
            self.pieces.append(piece)


class _Rest(NamedTuple):
    """What else a client remembers; tensors that are replaced rather than changed need no copy."""

    state: State
    local: Prototypes
    received: Prototypes | None


class LastGood:
    """Keeps clients as they were, and says which have weights that are no numbers."""

    def __init__(self) -> None:
        self._weights: dict[int, tuple[nn.Module, _Weights]] = {}  # with the network they are of
        self._rest: dict[int, _Rest] = {}

    @torch.no_grad()
    def keep(self, clients: Sequence[Client]) -> None:
        """Remember these clients as they are now."""
        if not clients:
            return
        weights = [self._of(client) for client in clients]
        torch._foreach_copy_(
            [view for own in weights for view in own.before.views],
            [tensor for own in weights for tensor in own.tensors()],
        )
        self._rest = {
            client.id: _Rest(
                {name: tensor.clone() for name, tensor in client.state.items()}, client.local, client.received
            )
            for client in clients
        }

    @torch.no_grad()
    def put_back(self, client: Client) -> None:
        """Give a client the state that was kept last."""
        weights = self._of(client)
        torch._foreach_copy_(weights.tensors(), weights.before.views)
        rest = self._rest[client.id]
        client.state, client.local, client.received = dict(rest.state), rest.local, rest.received

    @torch.no_grad()
    def diverged(self, clients: Sequence[Client]) -> set[int]:
        """Return the clients with a weight that is NaN or infinite: their sum is no finite number.

        The device is waited for once.
        """
        weights = [self._of(client) for client in clients]
        if not weights:
            return set()
        torch._foreach_copy_(
            [view for own in weights for view in own.after.views],
            [tensor for own in weights for tensor in own.floats()],
        )
        sums = [torch.stack([piece.sum(dtype=torch.float64) for piece in own.after.pieces]).sum() for own in weights]
        good = torch.stack(sums).isfinite().tolist()
        return {client.id for client, finite in zip(clients, good, strict=True) if not finite}

    def forget(self) -> None:
        """Free the memory."""
        self._weights.clear()
        self._rest.clear()

    def _of(self, client: Client) -> _Weights:
        model, weights = self._weights.get(client.id, (None, None))
        if weights is None or model is not client.model:
            weights = _Weights(client)
            self._weights[client.id] = client.model, weights
        return weights
