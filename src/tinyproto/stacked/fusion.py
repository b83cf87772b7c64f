"""Find nodes of a traced network that can be computed as one: fewer, larger kernels with the same results.

A normalisation absorbs an addition and the activation after it, a product absorbs the sigmoid of its gate, and two
halves that are joined and then shuffled are interleaved at once. Nothing is absorbed that another node uses.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from tinyproto.models.shufflenet_v2 import shuffle_channels
from tinyproto.stacked.layers import Activation, gate, interleave

NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)
_MODULES: dict[type[nn.Module], Activation] = {nn.ReLU: "relu", nn.ReLU6: "relu6", nn.SiLU: "silu"}
_FUNCTIONS: dict[object, Activation] = {
    functional.relu: "relu", torch.relu: "relu", functional.relu6: "relu6", functional.silu: "silu",
}  # fmt: skip
_SUMS = (operator.add, torch.add)
_SIGMOIDS = (torch.sigmoid, functional.sigmoid)


class Normalised(NamedTuple):
    """activation(norm(…) + added)."""

    norm: fx.Node
    activation: Activation | None
    added: fx.Node | None


class Fused(NamedTuple):
    """A function of two values."""

    function: Callable[[Tensor, Tensor], Tensor]
    first: fx.Node
    second: fx.Node


class Fusion:
    """Fused chains of nodes: `fused` by the last node of each, `absorbed` are the nodes before it."""

    def __init__(self, graph: fx.Graph, modules: Mapping[str, nn.Module]) -> None:
        self.modules = modules
        self.fused: dict[fx.Node, Normalised | Fused] = {}
        self.absorbed: set[fx.Node] = set()
        for node in graph.nodes:
            self._fuse(node)

    def inputs(self, node: fx.Node) -> list[fx.Node]:
        """Return the nodes whose values a node needs."""
        fused = self.fused.get(node)
        if fused is None:
            return list(node.all_input_nodes)
        if isinstance(fused, Normalised):
            return [*fused.norm.all_input_nodes, *([] if fused.added is None else [fused.added])]
        return [fused.first, fused.second]

    def _fuse(self, node: fx.Node) -> None:
        if self._is(node, NORMS):
            self._fuse_after_norm(node)
        elif node.target in (operator.mul, torch.mul) and len(node.args) == 2:
            values, other = node.args
            if isinstance(values, fx.Node) and isinstance(other, fx.Node) and self._is_gate(other):
                self._add([other, node], Fused(gate, values, other.all_input_nodes[0]))
        elif node.target is shuffle_channels:
            (joined,) = node.all_input_nodes
            parts = joined.args[0] if joined.target is torch.cat and len(joined.users) == 1 else ()
            if isinstance(parts, tuple | list) and len(parts) == 2:
                first, second = parts
                if isinstance(first, fx.Node) and isinstance(second, fx.Node):
                    self._add([joined, node], Fused(interleave, first, second))

    def _fuse_after_norm(self, norm: fx.Node) -> None:
        chain, added, activation = [norm], None, None
        follower = self._follower(norm)
        if follower is not None and follower.target in _SUMS and not follower.kwargs:
            others = [node for node in follower.args if isinstance(node, fx.Node) and node is not norm]
            if len(others) == 1:
                added = others[0]
                chain.append(follower)
                follower = self._follower(follower)
        wanted = None if follower is None else self._activation(follower)
        if follower is not None and wanted is not None and (added is None or wanted != "silu"):
            activation = wanted
            chain.append(follower)
        self._add(chain, Normalised(norm, activation, added))

    def _add(self, chain: list[fx.Node], fused: Normalised | Fused) -> None:
        self.fused[chain[-1]] = fused
        self.absorbed |= set(chain[:-1])

    def _follower(self, node: fx.Node) -> fx.Node | None:
        """Return the only user of a node unless it is fused already, as the sum of two normalisations may be."""
        users = list(node.users)
        free = len(users) == 1 and users[0] not in self.absorbed and users[0] not in self.fused
        return users[0] if free else None

    def _is_gate(self, node: fx.Node) -> bool:
        return len(node.users) == 1 and (node.target in _SIGMOIDS or self._is(node, (nn.Sigmoid,)))

    def _activation(self, node: fx.Node) -> Activation | None:
        if node.op == "call_module":
            return _MODULES.get(type(self.modules[str(node.target)]))
        return _FUNCTIONS.get(node.target) if len(node.all_input_nodes) == 1 else None

    def _is(self, node: fx.Node, kinds: tuple[type[nn.Module], ...]) -> bool:
        return node.op == "call_module" and isinstance(self.modules[str(node.target)], kinds)
