"""Find nodes of a traced network that can be computed as one: fewer, larger kernels with the same results.

A normalisation absorbs an addition and the activation after it, or stochastic depth and the addition after that. The
layers of squeeze-and-excitation are one. Two halves that are joined and then shuffled are interleaved at once. Nothing
is absorbed that another node uses.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from tinyproto.models.efficientnet import StochasticDepth
from tinyproto.models.shufflenet_v2 import shuffle_channels
from tinyproto.stacked.convolution import geometry
from tinyproto.stacked.layers import Activation, interleave

NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)
_MODULES: dict[type[nn.Module], Activation] = {nn.ReLU: "relu", nn.ReLU6: "relu6", nn.SiLU: "silu"}
_FUNCTIONS: dict[object, Activation] = {
    functional.relu: "relu", torch.relu: "relu", functional.relu6: "relu6", functional.silu: "silu",
}  # fmt: skip
_SUMS = (operator.add, torch.add)
_SIGMOIDS = (torch.sigmoid, functional.sigmoid)


class Normalised(NamedTuple):
    """activation(depth(norm(…)) + added)."""

    norm: fx.Node
    activation: Activation | None
    added: fx.Node | None
    depth: fx.Node | None


class Excited(NamedTuple):
    """values · σ(second(activation(first(means of values))))."""

    values: fx.Node
    first: fx.Node
    second: fx.Node
    activation: Activation


class Fused(NamedTuple):
    """A function of two values."""

    function: Callable[[Tensor, Tensor], Tensor]
    first: fx.Node
    second: fx.Node


class Fusion:
    """Fused chains of nodes: `fused` by the last node of each, `absorbed` are the nodes before it."""

    def __init__(self, graph: fx.Graph, modules: Mapping[str, nn.Module]) -> None:
        self.modules = modules
        self.fused: dict[fx.Node, Normalised | Excited | Fused] = {}
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
        if isinstance(fused, Excited):
            return [fused.values]
        return [fused.first, fused.second]

    def _fuse(self, node: fx.Node) -> None:
        if self._is(node, NORMS):
            self._fuse_after_norm(node)
        elif node.target in (operator.mul, torch.mul) and len(node.args) == 2:
            self._fuse_excitation(node)
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
        depth = follower if follower is not None and self._is(follower, (StochasticDepth,)) else None
        if depth is not None:
            follower = self._follower(depth)
        if follower is not None and follower.target in _SUMS and not follower.kwargs:
            others = [node for node in follower.args if isinstance(node, fx.Node) and node is not (depth or norm)]
            if len(others) == 1:
                added = others[0]
                chain += [follower] if depth is None else [depth, follower]
                follower = self._follower(follower)
        if depth is not None:
            self._add(chain, Normalised(norm, None, added, depth if added is not None else None))
            return
        wanted = None if follower is None else self._activation(follower)
        if follower is not None and wanted is not None and (added is None or wanted != "silu"):
            activation = wanted
            chain.append(follower)
        self._add(chain, Normalised(norm, activation, added, None))

    def _fuse_excitation(self, node: fx.Node) -> None:
        """Go back from a product by way of its gate, two layers and the means to the values that it multiplies."""
        values, gate = node.args
        if not (isinstance(values, fx.Node) and isinstance(gate, fx.Node) and self._is_gate(gate)):
            return
        second = self._source(gate)
        active = second and self._is_layer(second) and self._source(second)
        first = active and self._source(active)
        means = first and self._is_layer(first) and self._source(first)
        activation = self._activation(active) if active else None
        if not (second and active and first and means) or activation is None or len(means.users) != 1:
            return
        over_maps = means.target == "mean" and means.kwargs == {"keepdim": True} and set(means.args[1:]) == {(2, 3)}
        if over_maps and means.args[0] is values:
            self._add([means, first, active, second, gate, node], Excited(values, first, second, activation))

    def _source(self, node: fx.Node) -> fx.Node | None:
        """Return the only input of a node if nothing else uses it."""
        sources = node.all_input_nodes
        return sources[0] if len(sources) == 1 and len(sources[0].users) == 1 else None

    def _is_layer(self, node: fx.Node) -> bool:
        """Return True for a convolution that is a matrix product with a bias."""
        module = self.modules[str(node.target)] if self._is(node, (nn.Conv2d,)) else None
        return isinstance(module, nn.Conv2d) and geometry(module).pointwise and module.bias is not None

    def _add(self, chain: list[fx.Node], fused: Normalised | Excited | Fused) -> None:
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
