"""Describe all of a module but the values of its weights: classes, shapes, attributes, functions.

Modules with equal signatures compute alike, so they may share what was captured or stacked for one of them. A module
whose state differs after a step does more in it than a captured step repeats.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Mapping
from types import CellType, FunctionType, MethodType
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

DEEPEST = 20
"""Levels of containers and objects that are looked into."""

_SIMPLE = (bool, int, float, complex, str, torch.dtype, torch.device, type(None))
_OWN = frozenset(vars(nn.Module()))  # what every module has
_LIBRARIES = ("torch", "tinyproto", "builtins")  # whose classes hold no state
_KINDS: dict[Hashable, int] = {}
_SIGNATURES: WeakKeyDictionary[nn.Module, tuple[list[nn.Parameter], list[bool], Hashable]] = WeakKeyDictionary()
"""Parameters, which of them are trained, and the signature: a network may freeze other layers in each round."""


def signature(module: nn.Module) -> Hashable:
    """Return a value that is equal for modules that differ only in the values of parameters and buffers.

    Of an object that cannot be looked into, only its class counts. A module that cannot be described equals no other.
    """
    known = _SIGNATURES.get(module)
    if known is None or [each.requires_grad for each in known[0]] != known[1]:
        found: Hashable
        try:
            described = tuple(Description(module, _content).attributes.items())
            found = _KINDS.setdefault(described, len(_KINDS))
        except Exception:  # the code of any object may run here
            found = object()
        parameters = list(module.parameters())
        known = _SIGNATURES[module] = parameters, [each.requires_grad for each in parameters], found
    return known[2]


def state(module: nn.Module) -> Description:
    """Return all that a step may change, but what parameters and buffers hold."""
    return Description(module, lambda tensor: (_Same(tensor), tensor._version), _Same)


class Description:
    """The attributes of a module and of all modules in it, by name; an object met again is told by its number.

    `tensors` describes tensors; `weights` describes parameters and buffers, by default by shape and type.
    """

    def __init__(
        self,
        module: nn.Module,
        tensors: Callable[[Tensor], Hashable],
        weights: Callable[[Tensor], Hashable] = lambda held: (tuple(held.shape), held.dtype, held.requires_grad),
    ) -> None:
        self.tensors = tensors
        self.met: dict[int, tuple[int, object]] = {}  # by id; objects are kept, so that no other gets their id
        self.attributes: dict[str, Hashable] = {}
        paths = list(module.named_modules(remove_duplicate=False))
        new = [(path, child) for path, child in paths if self._is_new(child)]
        self.attributes["its layers"] = tuple((path, self._number(child)) for path, child in paths)
        for path, child in new:
            for owner in (child._parameters, child._buffers):
                for name, tensor in owner.items():
                    if tensor is not None:
                        known = None if self._is_new(tensor) else self._number(tensor)
                        self.attributes[f"{path}.{name}".lstrip(".")] = known, weights(tensor)
        for path, child in new:
            self.attributes[f"the class of {path or 'the network'}"] = self._class(type(child))
            for name, value in vars(child).items():
                if name not in _OWN:
                    self.attributes[f"{path}.{name}".lstrip(".")] = self._value(value)

    def _is_new(self, thing: object) -> bool:
        number = len(self.met)
        return self.met.setdefault(id(thing), (number, thing))[0] == number

    def _number(self, thing: object) -> int:
        return self.met[id(thing)][0]

    def _value(self, value: Any, depth: int = DEEPEST) -> Hashable:
        """Return the content of a value, or its class where that cannot be looked into."""
        kind = type(value)
        if isinstance(value, _SIMPLE):
            return kind, repr(value)  # NaN equals itself then
        if isinstance(value, bytes | bytearray):
            return kind, hashlib.blake2b(value).digest()
        if isinstance(value, type):
            return value.__module__, value.__qualname__
        if depth == 0:
            return (kind,)
        if not self._is_new(value):
            return "met", self._number(value)
        return self._class(kind), self._content(value, lambda inner: self._value(inner, depth - 1))

    def _content(self, value: Any, inner: Callable[[Any], Hashable]) -> Hashable:
        if isinstance(value, Tensor):
            return self.tensors(value)
        if isinstance(value, nn.Module):  # that is no layer, as in a list
            return inner(vars(value))
        if isinstance(value, list | tuple):
            return tuple(map(inner, value))
        if isinstance(value, set | frozenset):
            return frozenset(map(inner, value))
        if isinstance(value, Mapping):
            return tuple((inner(key), inner(item)) for key, item in value.items())
        if isinstance(value, MethodType):
            return inner(value.__func__), inner(value.__self__)
        if isinstance(value, FunctionType):
            if _is_library(value) and not value.__closure__:
                return value.__qualname__
            cells = [cell.cell_contents for cell in value.__closure__ or () if cell != CellType()]
            used = {name: value.__globals__.get(name) for name in value.__code__.co_names}
            used = {name: item for name, item in used.items() if _is_state(item, value.__module__)}
            parts = (value.__defaults__, value.__kwdefaults__, cells, vars(value), used)
            return value.__code__, *map(inner, parts)
        try:
            reduced = value.__reduce_ex__(4)  # how it would be copied
        except Exception:
            return None
        if isinstance(reduced, str):
            return reduced
        made, arguments, *more = reduced
        listed = [list(part) if hasattr(part, "__next__") else part for part in more]  # its items come as iterators
        return inner(made), inner(arguments), *map(inner, listed)

    def _class(self, kind: type) -> Hashable:
        """Return the attributes and methods of a user's class, which may count; two calls may define the same one."""
        described: list[Hashable] = []
        for each in kind.__mro__:
            items = None
            if not _is_library(each) and self._is_new(each):
                items = {key: item for key, item in vars(each).items() if not key.startswith("__") or callable(item)}
            described.append((each.__module__, each.__qualname__, self._value(items)))
        return tuple(described)


class _Same:
    """Equal only if it holds the same object, whatever that equals."""

    def __init__(self, value: object) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


def _content(tensor: Tensor) -> Hashable:
    tensor = tensor.detach().cpu().resolve_conj().resolve_neg()
    dense = tensor if tensor.layout is torch.strided else tensor.to_dense()
    values = dense.contiguous().flatten().view(torch.uint8).numpy()
    return tuple(tensor.shape), tensor.dtype, tensor.layout, hashlib.blake2b(values.tobytes()).digest()


def _is_library(thing: type | FunctionType) -> bool:
    return str(thing.__module__).partition(".")[0] in _LIBRARIES


def _is_state(item: object, module: str) -> bool:
    """Return True for a global value that a function may count in, and for another function of its module."""
    if isinstance(item, FunctionType):
        return item.__module__ == module
    return isinstance(item, (*_SIMPLE, list, tuple, set, dict, Tensor))
