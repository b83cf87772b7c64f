"""A network traced once and computed for a whole stack of clients."""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from tinyproto.core.task import State
from tinyproto.models.efficientnet import StochasticDepth
from tinyproto.models.shufflenet_v2 import shuffle_channels
from tinyproto.models.split import DropoutLinear, Output, PoolFeatures, SplitModel, average_map
from tinyproto.stacked import layers
from tinyproto.stacked.convolution import convolution, geometry
from tinyproto.stacked.fallback import CannotStack
from tinyproto.stacked.fusion import NORMS, Excited, Fusion, Normalised

_LEAVES = (PoolFeatures, StochasticDepth, DropoutLinear)
_POINTWISE_MODULES = (nn.ReLU, nn.ReLU6, nn.SiLU, nn.Sigmoid, nn.Tanh, nn.GELU, nn.Identity, nn.LeakyReLU, nn.Hardswish)
_POINTWISE_FUNCTIONS = {
    operator.add, operator.mul, operator.sub, torch.add, torch.mul, torch.sub, torch.relu, torch.sigmoid, torch.tanh,
    functional.relu, functional.relu6, functional.silu, functional.gelu, operator.getitem,
}  # fmt: skip
_POOLS = (nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d)
_MODULES = (
    *_LEAVES, *_POINTWISE_MODULES, *NORMS, *_POOLS, nn.Linear, nn.Dropout, nn.Conv2d, nn.Flatten, nn.LayerNorm,
)  # fmt: skip

GetTensor = Callable[[str], Any]
"""Returns a layer's stacked tensor by its name in the layer; None if it has none."""


class StackedModel:
    """A SplitModel for a stack: (n, B, C, H, W) to features (n, B, d) and logits (n, B, K)."""

    def __init__(self, model: SplitModel) -> None:
        self.extractor, self.head = StackedModule(model.extractor), StackedModule(model.head)
        self.alone = self.extractor.alone or self.head.alone
        self.repeats = self.extractor.repeats or self.head.repeats

    def features(self, inputs: Tensor, state: State, *, normalise: bool, training: bool) -> Tensor:
        """Map (n, B, …) to (n, B, d)."""
        return self._features(inputs, state, normalise, training).transpose(1, 2)

    def __call__(self, inputs: Tensor, state: State, *, normalise: bool, training: bool) -> Output:
        """Map (n, B, …) to features and logits."""
        features = self._features(inputs, state, normalise, training)
        logits = self.head(features, _part(state, "head."), normalise=normalise, training=training)
        return Output(features.transpose(1, 2), logits.transpose(1, 2))

    def _features(self, inputs: Tensor, state: State, normalise: bool, training: bool) -> Tensor:
        stacked = inputs.transpose(1, 2).contiguous()  # (n, C, B, …), as all layers want it
        return self.extractor(stacked, _part(state, "extractor."), normalise=normalise, training=training)


def _part(state: State, prefix: str) -> State:
    """Return the tensors whose names begin with `prefix`, by the rest of their names."""
    return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}


class _Tracer(fx.Tracer):
    def __init__(self) -> None:
        super().__init__(autowrap_functions=(average_map, shuffle_channels))

    def is_leaf_module(self, module: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(module, _LEAVES) or super().is_leaf_module(module, module_qualified_name)


class StackedModule:
    """One traced module; the caller passes its parameters and buffers, stacked.

    `alone` if it may use cuDNN, `repeats` if a layer is used more than once.
    """

    def __init__(self, module: nn.Module) -> None:
        # A copy, since tracing runs the network's own code; in training, where all layers are used; without weights,
        # which the caller passes; and in a Sequential, so that a single layer is one of the graph, too.
        try:
            wrapped = nn.Sequential(copy.deepcopy(module)).train().to("meta")
            self.graph = _Tracer().trace(wrapped)
        except Exception as error:
            raise CannotStack(f"its network cannot be traced ({type(error).__name__})") from error
        self.modules = dict(wrapped.named_modules())
        for node in self.graph.nodes:
            self._check(node)
        convolutions = [module for module in self.modules.values() if isinstance(module, nn.Conv2d)]
        self.alone = not all(geometry(module).has_kernel for module in convolutions)
        called = [node.target for node in self.graph.nodes if node.op == "call_module"]
        self.repeats = len(set(called)) < len(called)
        self.fusion = Fusion(self.graph, self.modules)
        self.order = [node for node in self.graph.nodes if node not in self.fusion.absorbed]
        last = {used: node for node in self.order for used in self.fusion.inputs(node)}
        self.last_used_by: dict[fx.Node, list[fx.Node]] = {node: [] for node in self.order}
        for used, node in last.items():
            self.last_used_by[node].append(used)

    def __call__(self, values: Tensor, state: State, *, normalise: bool, training: bool) -> Tensor:
        """Compute all layers of (n, C, B, …).

        `normalise` by the statistics of the batch rather than the running ones; `training` enables dropout.
        """
        found: dict[fx.Node, Any] = {}
        for node in self.order:
            if node.op == "placeholder":
                found[node] = values
            elif node.op == "output":
                outcome: Tensor = fx.node.map_arg(node.args[0], lambda argument: found[argument])
                return outcome
            else:
                found[node] = self._compute(node, found, state, normalise, training)
            for unused in self.last_used_by[node]:
                del found[unused]
        raise AssertionError("a traced graph ends in an output")

    def _compute(
        self, node: fx.Node, found: Mapping[fx.Node, Any], state: State, normalise: bool, training: bool
    ) -> Any:
        fused = self.fusion.fused.get(node)
        if isinstance(fused, Normalised):
            (argument,) = fused.norm.all_input_nodes
            module, get = self._layer(fused.norm, state)
            added = None if fused.added is None else found[fused.added]
            assert isinstance(module, NORMS)
            assert module.momentum is not None
            running = layers.RunningStatistics(get("running_mean"), get("running_var"), module.momentum, module.eps)
            dropped = self.modules[str(fused.depth.target)].dropped if fused.depth is not None and training else 0.0
            return layers.normalise(
                found[argument], running, get("weight"), get("bias"), by_batch=normalise,
                activation=fused.activation, added=added,
                depth=layers.Depth.drawn(found[argument], dropped) if dropped else None,
            )  # fmt: skip
        if isinstance(fused, Excited):
            (_, first), (_, second) = self._layer(fused.first, state), self._layer(fused.second, state)
            return layers.excite(
                found[fused.values],
                layers.Squeeze(
                    first("weight").flatten(2), first("bias"), second("weight").flatten(2), second("bias"),
                    fused.activation,
                ),
            )  # fmt: skip
        if fused is not None:
            return fused.function(found[fused.first], found[fused.second])
        if node.op == "call_module":
            (argument,) = node.all_input_nodes
            return _apply_layer(*self._layer(node, state), found[argument], training)
        return _apply_function(node.target, fx.node.map_arg(node.args, lambda each: found[each]), node.kwargs)

    def _layer(self, node: fx.Node, state: State) -> tuple[nn.Module, GetTensor]:
        """Return a node's layer and access to its stacked tensors."""
        name = str(node.target)
        prefix = f"{name}."[2:]  # without the name of the layer inside `wrapped`
        return self.modules[name], lambda tensor: state.get(prefix + tensor)

    def _check(self, node: fx.Node) -> None:
        """Raise CannotStack if a node has no stacked form."""
        if node.op == "call_module":
            module = self.modules[str(node.target)]
            odd_norm = isinstance(module, NORMS) and (module.momentum is None or not module.track_running_stats)
            odd_padding = isinstance(module, nn.Conv2d) and (
                isinstance(module.padding, str) or module.padding_mode != "zeros"
            )
            computed = hasattr(module, "parametrizations")  # weights from other tensors
            if not isinstance(module, _MODULES) or odd_norm or odd_padding or computed:
                raise CannotStack(f"{type(module).__name__} has no stacked form")
        elif node.op == "call_function":
            if node.target not in _POINTWISE_FUNCTIONS | {torch.cat, average_map, shuffle_channels}:
                raise CannotStack(f"{getattr(node.target, '__name__', node.target)} has no stacked form")
        elif node.op == "call_method":
            if node.target not in ("chunk", "mean"):
                raise CannotStack(f".{node.target}() has no stacked form")
        elif node.op == "get_attr":
            raise CannotStack(f"its network uses {node.target} outside of a layer")


def _apply_layer(module: nn.Module, get: GetTensor, values: Tensor, training: bool) -> Tensor:
    weight, bias = get("weight"), get("bias")
    if isinstance(module, nn.Conv2d):
        return convolution(values, weight, bias, geometry(module))
    if isinstance(module, nn.Linear):
        if isinstance(module, DropoutLinear):
            values = functional.dropout(values, module.dropout, training)
        return layers.linear(values, weight, bias)
    if isinstance(module, nn.Dropout):
        return functional.dropout(values, module.p, training)
    if isinstance(module, StochasticDepth):
        return layers.Depth.drawn(values, module.dropped).apply(values) if training and module.dropped else values
    if isinstance(module, PoolFeatures):
        return layers.pool_channels(values, module.dim)
    if isinstance(module, nn.LayerNorm):
        return layers.layer_norm(values, weight, bias, module.eps)
    if isinstance(module, nn.Flatten):
        return layers.flatten(values)
    if isinstance(module, _POOLS):
        return layers.pool_maps(values, module)
    outcome: Tensor = module(values)
    return outcome


def _apply_function(target: Any, arguments: Any, options: Mapping[str, Any]) -> Any:
    if target is torch.cat:
        return torch.cat(arguments[0], dim=_channels(options.get("dim", *arguments[1:2])))
    if target == "chunk":
        return arguments[0].chunk(arguments[1], dim=_channels(options.get("dim", *arguments[2:3])))
    if target == "mean":
        return layers.spatial_mean(*arguments, keepdim=bool(options.get("keepdim", False)))
    if target is average_map:
        return layers.spatial_mean(arguments[0], (2, 3), keepdim=False)
    if target is shuffle_channels:
        return layers.shuffle(arguments[0], 2)
    return target(*arguments, **options)


def _channels(dim: Any = 0) -> int:
    if dim != 1:
        raise CannotStack("its network joins parts along an axis other than channels")
    return 1
