"""A network traced once and computed for a whole stack of clients."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from tinyproto.core.task import State
from tinyproto.engine.training.stacked import operations
from tinyproto.engine.training.stacked.convolution import convolution, geometry, has_own_kernel
from tinyproto.engine.training.stacked.fusion import NORMS, Fusion, Gated, Normalised
from tinyproto.engine.training.stacked.normalisation import Activation, Gathered, normalised
from tinyproto.engine.training.stacked.operations import CannotStack
from tinyproto.models.efficientnet import StochasticDepth
from tinyproto.models.shufflenet_v2 import shuffle_channels
from tinyproto.models.split import DropoutLinear, Output, PoolFeatures, SplitModel, average_map

_LEAVES = (PoolFeatures, StochasticDepth, DropoutLinear)
_POINTWISE_MODULES = (nn.ReLU, nn.ReLU6, nn.SiLU, nn.Sigmoid, nn.Tanh, nn.GELU, nn.Identity, nn.LeakyReLU, nn.Hardswish)
_POINTWISE_FUNCTIONS = {
    operator.add, operator.mul, operator.sub, torch.add, torch.mul, torch.sub, torch.relu, torch.sigmoid, torch.tanh,
    functional.relu, functional.relu6, functional.silu, functional.gelu, operator.getitem,
}  # fmt: skip
_POOLS = (nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d)


class _Tracer(fx.Tracer):
    def __init__(self) -> None:
        super().__init__(autowrap_functions=(average_map, shuffle_channels))

    def is_leaf_module(self, module: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(module, _LEAVES) or super().is_leaf_module(module, module_qualified_name)


class StackedModule:
    """One traced module; parameters and buffers come from outside, stacked."""

    def __init__(self, module: nn.Module) -> None:
        whole = nn.Sequential(module)  # so that a single layer is a layer of something, too
        try:
            self.graph = _Tracer().trace(whole)
        except Exception as error:
            raise CannotStack(f"it cannot be traced ({type(error).__name__})") from error
        self.modules = dict(whole.named_modules())
        for node in self.graph.nodes:
            self._check(node)
        convolutions = [module for module in self.modules.values() if isinstance(module, nn.Conv2d)]
        self.alone = not all(has_own_kernel(geometry(module)) for module in convolutions)
        self.fusion = Fusion(self.graph, self.modules)
        self.order = [node for node in self.graph.nodes if node not in self.fusion.absorbed]
        last = {used: node for node in self.order for used in self.fusion.inputs(node)}
        self.last_used_by: dict[fx.Node, list[fx.Node]] = {node: [] for node in self.order}
        for used, node in last.items():
            self.last_used_by[node].append(used)

    def __call__(self, values: Tensor, state: Mapping[str, Tensor], *, normalise: bool, training: bool) -> Tensor:
        """(n, C, B, …) through all layers; `normalise` by the batch's own statistics, `training` for dropout."""
        how = _How(state, normalise, training)
        found: dict[fx.Node, Any] = {}
        for node in self.order:
            if node.op == "placeholder":
                found[node] = values
            elif node.op == "output":
                outcome: Tensor = fx.node.map_arg(node.args[0], lambda argument: found[argument])
                return outcome
            else:
                found[node] = self._compute(node, found, how)
            for done in self.last_used_by[node]:
                del found[done]
        raise AssertionError("a traced graph ends in an output")

    def _compute(self, node: fx.Node, found: Mapping[fx.Node, Any], how: _How) -> Any:
        fused = self.fusion.fused.get(node)
        if isinstance(fused, Normalised):
            (argument,) = fused.norm.all_input_nodes
            layer = self.modules[str(fused.norm.target)]
            added = None if fused.added is None else found[fused.added]
            return how.normalised(layer, str(fused.norm.target), found[argument], fused.activation, added)
        if isinstance(fused, Gated):
            return operations.gated(found[fused.values], found[fused.gates])
        if fused is not None:
            return operations.interleave(found[fused.first], found[fused.second])
        if node.op == "call_module":
            (argument,) = node.all_input_nodes
            return _layer(self.modules[str(node.target)], found[argument], how.of(str(node.target)), how.training)
        return _call(node, fx.node.map_arg(node.args, lambda each: found[each]), node.kwargs)

    def _check(self, node: fx.Node) -> None:
        """Everything the network does has to have a stacked form."""
        if node.op == "call_module":
            module = self.modules[str(node.target)]
            plain = isinstance(module, (*_LEAVES, *_POINTWISE_MODULES, *NORMS, *_POOLS, nn.Linear, nn.Dropout))
            known = plain or isinstance(module, nn.Conv2d | nn.Flatten | nn.LayerNorm)
            odd_norm = isinstance(module, NORMS) and (module.momentum is None or not module.track_running_stats)
            odd_padding = isinstance(module, nn.Conv2d) and (
                isinstance(module.padding, str) or module.padding_mode != "zeros"
            )
            if not known or odd_norm or odd_padding:
                raise CannotStack(f"{type(module).__name__} has no stacked form")
        elif node.op == "call_function":
            if node.target not in _POINTWISE_FUNCTIONS | {torch.cat, average_map, shuffle_channels}:
                raise CannotStack(f"{getattr(node.target, '__name__', node.target)} has no stacked form")
        elif node.op == "call_method":
            if node.target not in ("chunk", "mean"):
                raise CannotStack(f".{node.target}() has no stacked form")
        elif node.op == "get_attr":
            raise CannotStack(f"it uses {node.target} outside of a layer")


class _How:
    """The stacked weights, and in which mode layers are."""

    def __init__(self, state: Mapping[str, Tensor], normalise: bool, training: bool) -> None:
        self.state = state
        self.normalise = normalise
        self.training = training

    def of(self, layer: str) -> _Named:
        return _Named(self.state, layer[2:])

    def normalised(
        self, module: nn.Module, name: str, values: Tensor, activation: Activation | None, added: Tensor | None
    ) -> Tensor:
        assert isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d)
        assert module.momentum is not None
        own = self.of(name)
        gathered = Gathered(own["running_mean"], own["running_var"], module.momentum, module.eps)
        return normalised(
            values,
            gathered,
            own.get("weight"),
            own.get("bias"),
            by_batch=self.normalise,
            activation=activation,
            added=added,
        )


class _Named:
    """The stacked tensors of one layer."""

    def __init__(self, state: Mapping[str, Tensor], prefix: str) -> None:
        self.state = state
        self.prefix = prefix

    def __getitem__(self, name: str) -> Tensor:
        return self.state[f"{self.prefix}.{name}" if self.prefix else name]

    def get(self, name: str) -> Tensor | None:
        return self.state.get(f"{self.prefix}.{name}" if self.prefix else name)


def _layer(module: nn.Module, values: Tensor, own: _Named, training: bool) -> Tensor:
    if isinstance(module, nn.Conv2d):
        return convolution(values, own["weight"], own.get("bias"), geometry(module))
    if isinstance(module, nn.Linear):
        if isinstance(module, DropoutLinear):
            values = functional.dropout(values, module.dropout, training)
        return operations.linear(values, own["weight"], own.get("bias"))
    if isinstance(module, nn.Dropout):
        return functional.dropout(values, module.p, training)
    if isinstance(module, StochasticDepth):
        return operations.drop_samples(values, module.dropped) if training and module.dropped else values
    if isinstance(module, PoolFeatures):
        return operations.pool_channels(values, module.dim)
    if isinstance(module, nn.LayerNorm):
        return operations.layer_norm(values, own.get("weight"), own.get("bias"), module.eps)
    if isinstance(module, nn.Flatten):
        return operations.flatten(values)
    if isinstance(module, _POOLS):
        return operations.per_map(values, module)
    outcome: Tensor = module(values)
    return outcome


def _call(node: fx.Node, arguments: Any, options: Mapping[str, Any]) -> Any:
    target: Any = node.target
    if target is torch.cat:
        return torch.cat(arguments[0], dim=_channels(options.get("dim", *arguments[1:2])))
    if target == "chunk":
        return arguments[0].chunk(arguments[1], dim=_channels(options.get("dim", *arguments[2:3])))
    if target == "mean":
        return operations.spatial_mean(*arguments, keepdim=bool(options.get("keepdim", False)))
    if target is average_map:
        return operations.spatial_mean(arguments[0], (2, 3), keepdim=False)
    if target is shuffle_channels:
        return operations.shuffle(arguments[0], 2)
    function: Callable[..., Any] = target
    return function(*arguments, **options)


def _channels(dim: Any = 0) -> int:
    if dim != 1:
        raise CannotStack("parts are joined along another axis than channels")
    return 1


class StackedModel:
    """A SplitModel for a stack: (n, B, C, H, W) to features (n, B, d) and logits (n, B, K)."""

    on_demand = False

    def __init__(self, model: SplitModel) -> None:
        self.extractor, self.head = StackedModule(model.extractor), StackedModule(model.head)
        self.alone = self.extractor.alone or self.head.alone

    def features(self, inputs: Tensor, state: State, *, normalise: bool, training: bool) -> Tensor:
        """(n, B, …) to (n, B, d)."""
        return self._features(inputs, state, normalise, training).transpose(1, 2)

    def __call__(self, inputs: Tensor, state: State, *, normalise: bool, training: bool) -> Output:
        """(n, B, …) to both ends."""
        features = self._features(inputs, state, normalise, training)
        logits = self.head(features, part(state, "head."), normalise=normalise, training=training)
        return Output(features.transpose(1, 2), logits.transpose(1, 2))

    def _features(self, inputs: Tensor, state: State, normalise: bool, training: bool) -> Tensor:
        stacked = inputs.transpose(1, 2).contiguous()  # (n, C, B, …), as all layers want it
        return self.extractor(stacked, part(state, "extractor."), normalise=normalise, training=training)


def part(state: State, prefix: str) -> State:
    """The tensors whose names begin so, by the rest of their names."""
    return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
