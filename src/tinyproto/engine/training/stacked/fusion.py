"""Which of a traced network's nodes are computed as one: fewer, larger kernels, and no difference in what they give.

A normalisation takes along what is added to it and the activation after it, a gate its sigmoid, and two halves that are
joined and then shuffled are interleaved at once; each only where nobody else looks at what lies between.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import fx, nn
from torch.nn import functional

from tinyproto.engine.training.stacked.normalisation import Activation
from tinyproto.models.shufflenet_v2 import shuffle_channels

NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)
_MODULES: dict[type[nn.Module], Activation] = {nn.ReLU: "relu", nn.ReLU6: "relu6", nn.SiLU: "silu"}
_FUNCTIONS: dict[object, Activation] = {
    functional.relu: "relu", torch.relu: "relu", functional.relu6: "relu6", functional.silu: "silu",
}  # fmt: skip
_SUMS = (operator.add, torch.add)
_SIGMOIDS = (torch.sigmoid, functional.sigmoid)


@dataclass(frozen=True)
class Normalised:
    """activation(norm(…) + added)."""

    norm: fx.Node
    activation: Activation | None
    added: fx.Node | None


@dataclass(frozen=True)
class Gated:
    """values · σ(gates)."""

    values: fx.Node
    gates: fx.Node


@dataclass(frozen=True)
class Interleaved:
    """Two halves of the channels, one channel of each in turn."""

    first: fx.Node
    second: fx.Node


Fused = Normalised | Gated | Interleaved


class Fusion:
    """By the last node of each chain what to compute there; `absorbed` are the nodes before it."""

    def __init__(self, graph: fx.Graph, modules: Mapping[str, nn.Module]) -> None:
        self.modules = modules
        self.fused: dict[fx.Node, Fused] = {}
        self.absorbed: set[fx.Node] = set()
        for node in graph.nodes:
            for chain, fused in self._chains(node):
                self.fused[chain[-1]] = fused
                self.absorbed |= set(chain[:-1])

    def inputs(self, node: fx.Node) -> list[fx.Node]:
        """What has to be known before a node can be computed."""
        fused = self.fused.get(node)
        if fused is None:
            return list(node.all_input_nodes)
        if isinstance(fused, Normalised):
            return [*fused.norm.all_input_nodes, *([] if fused.added is None else [fused.added])]
        return [fused.values, fused.gates] if isinstance(fused, Gated) else [fused.first, fused.second]

    def _chains(self, node: fx.Node) -> Iterator[tuple[list[fx.Node], Fused]]:
        if self._is(node, NORMS):
            yield self._after_norm(node)
        elif node.target in (operator.mul, torch.mul) and len(node.args) == 2:
            values, other = node.args
            if isinstance(values, fx.Node) and isinstance(other, fx.Node) and self._is_gate(other):
                yield [other, node], Gated(values, other.all_input_nodes[0])
        elif node.target is shuffle_channels:
            (joined,) = node.all_input_nodes
            parts = joined.args[0] if joined.target is torch.cat and len(joined.users) == 1 else ()
            if isinstance(parts, tuple | list) and len(parts) == 2:
                first, second = parts
                if isinstance(first, fx.Node) and isinstance(second, fx.Node):
                    yield [joined, node], Interleaved(first, second)

    def _after_norm(self, norm: fx.Node) -> tuple[list[fx.Node], Normalised]:
        chain, added, activation = [norm], None, None
        follower = _only_user(norm)
        if follower is not None and follower.target in _SUMS and not follower.kwargs:
            others = [node for node in follower.args if isinstance(node, fx.Node) and node is not norm]
            if len(others) == 1 and not self._taken(follower):
                added = others[0]
                chain.append(follower)
                follower = _only_user(follower)
        wanted = None if follower is None else self._activation(follower)
        free = follower is not None and not self._taken(follower)
        if follower is not None and free and wanted is not None and (added is None or wanted != "silu"):
            activation = wanted
            chain.append(follower)
        return chain, Normalised(norm, activation, added)

    def _is_gate(self, node: fx.Node) -> bool:
        return len(node.users) == 1 and (node.target in _SIGMOIDS or self._is(node, (nn.Sigmoid,)))

    def _taken(self, node: fx.Node) -> bool:
        """Of two normalisations that are added up, the first takes the sum along."""
        return node in self.absorbed or node in self.fused

    def _activation(self, node: fx.Node) -> Activation | None:
        if node.op == "call_module":
            return _MODULES.get(type(self.modules[str(node.target)]))
        return _FUNCTIONS.get(node.target) if len(node.all_input_nodes) == 1 else None

    def _is(self, node: fx.Node, kinds: tuple[type[nn.Module], ...]) -> bool:
        return node.op == "call_module" and isinstance(self.modules[str(node.target)], kinds)


def _only_user(node: fx.Node) -> fx.Node | None:
    users = list(node.users)
    return users[0] if len(users) == 1 else None
