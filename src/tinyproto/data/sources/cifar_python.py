"""A reader of CIFAR's python files, which are pickles, that never imports pickle: unpickling can run any code.

A pickle is a program for a small stack machine. This machine knows the instructions of the official files (and Python
3's spellings of them) and four names, none of which it looks up or calls. It leaves the pixels in the file, to be read
straight into their place.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

LARGE = 1 << 16
"""Byte strings of this size or more are left in the file."""

_RECONSTRUCT, _ARRAY, _DTYPE, _ENCODE = "numpy _reconstruct", "numpy.ndarray", "numpy.dtype", "_codecs.encode"
_KNOWN_NAMES = {
    "numpy.core.multiarray._reconstruct": _RECONSTRUCT,
    "numpy._core.multiarray._reconstruct": _RECONSTRUCT,
    "numpy.ndarray": _ARRAY,
    "numpy.dtype": _DTYPE,
    "_codecs.encode": _ENCODE,
}


class Refused(Exception):  # noqa: N818
    """The file holds something that the official ones do not; the message is a predicate of the file's name."""


class Span(NamedTuple):
    """A byte string left in the file."""

    offset: int
    length: int


class _Name(str):
    """A name that the file refers to, as opposed to text that it holds."""


class _Uint8:
    """The array's element type."""


class PickledArray:
    """A uint8 array: its shape, its order and its bytes, or their place in the file."""

    def __init__(self) -> None:
        self.shape: tuple[int, ...] = ()
        self.by_column = False
        self.raw: bytes | Span = b""

    def set_state(self, state: Any) -> None:
        """Set the array's fields from the file; raise Refused if they are inconsistent."""
        match state:
            case (1, tuple() as shape, _Uint8(), bool() | 0 | 1 as by_column, bytes() | Span() as raw):
                self.shape, self.by_column, self.raw = shape, bool(by_column), raw
            case _:
                raise Refused("holds an array that is not of uint8")
        size = raw.length if isinstance(raw, Span) else len(raw)
        if not all(isinstance(length, int) and length > 0 for length in shape) or math.prod(shape) != size:
            raise Refused(f"holds an array of shape {shape} with {size} bytes")

    def read_into(self, file: IO[bytes], target: NDArray[np.uint8]) -> None:
        """Copy the array to `target` of the same shape (N, 3072), without an intermediate copy."""
        if isinstance(self.raw, bytes):
            order: Any = "F" if self.by_column else "C"
            target[:] = np.frombuffer(self.raw, np.uint8).reshape(self.shape, order=order)
            return
        file.seek(self.raw.offset)
        if not self.by_column:
            file.readinto(target)  # type: ignore[attr-defined]
            return
        for column in range(self.shape[1]):
            target[:, column] = np.frombuffer(file.read(self.shape[0]), np.uint8)


def read_batch(file: IO[bytes]) -> Mapping[str, Any]:
    """Return the mapping in a CIFAR batch file: `data` as a PickledArray, labels and names as lists."""
    try:
        found = _Machine(file).run()
    except (IndexError, KeyError, TypeError, ValueError, struct.error) as error:
        raise Refused(f"is not a CIFAR batch ({type(error).__name__} at byte {file.tell()})") from error
    if not isinstance(found, dict):
        raise Refused("does not hold a mapping with data and labels")
    return {_text(key): value for key, value in found.items()}


class _Machine:
    def __init__(self, file: IO[bytes]) -> None:
        self.file = file
        self.size = file.seek(0, 2)
        file.seek(0)
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}

    def run(self) -> Any:
        """Execute instructions up to the stop."""
        while (code := self.take(1)) != b".":
            if code not in _INSTRUCTIONS:
                raise Refused(f"has the instruction {code!r} at byte {self.file.tell() - 1}, unlike the official files")
            _INSTRUCTIONS[code](self)
        return self.stack.pop()

    def take(self, count: int) -> bytes:
        data = self.file.read(count) if count <= self.size else b""  # a wild count must not allocate wild memory
        if len(data) < count:
            raise Refused(f"is truncated: it ends after {self.size} bytes, within an instruction")
        return data

    def number(self, layout: str) -> int:
        value: int = struct.unpack(layout, self.take(struct.calcsize(layout)))[0]
        return value

    def push(self, value: Any) -> None:
        self.stack.append(value)

    def since_mark(self) -> list[Any]:
        mark = self.marks.pop()
        values = self.stack[mark:]
        del self.stack[mark:]
        return values

    def push_bytes(self, length_layout: str) -> None:
        length = self.number(length_layout)
        if length < LARGE:
            self.push(self.take(length))
            return
        offset = self.file.tell()
        if offset + length > self.size:
            missing = offset + length - self.size
            raise Refused(f"is truncated: it has {self.size} bytes, its pixels need at least {missing} more")
        self.file.seek(length, 1)
        self.push(Span(offset, length))

    def push_text(self, length_layout: str) -> None:
        self.push(self.take(self.number(length_layout)).decode())

    def push_name(self, module: str, name: str) -> None:
        full = f"{module}.{name}"
        if full not in _KNOWN_NAMES:
            raise Refused(f"refers to {full}, which official files never do; nothing was executed")
        self.push(_Name(_KNOWN_NAMES[full]))

    def push_named_line(self) -> None:
        module, name = (self.file.readline(200).decode().rstrip("\n") for _ in range(2))
        self.push_name(module, name)

    def push_named_stack(self) -> None:
        name, module = self.stack.pop(), self.stack.pop()
        self.push_name(_text(module), _text(name))

    def push_tuple(self, count: int) -> None:
        values = tuple(self.stack[-count:])
        del self.stack[-count:]
        self.push(values)

    def append(self, values: list[Any]) -> None:
        if not isinstance(self.stack[-1], list):
            raise Refused("appends to an object that is not a list")
        self.stack[-1].extend(values)

    def set_items(self, values: list[Any]) -> None:
        if not isinstance(self.stack[-1], dict):
            raise Refused("sets items of an object that is not a mapping")
        self.stack[-1].update(zip(values[::2], values[1::2], strict=True))

    def reduce(self) -> None:
        """Make what the official files make by a call: an array, its element type, or bytes from text."""
        arguments, name = self.stack.pop(), self.stack.pop()
        match (name, arguments):
            case (_Name() as made, (_Name() as kind, tuple(), _)) if (made, kind) == (_RECONSTRUCT, _ARRAY):
                self.push(PickledArray())
            case (_Name() as made, (bytes() | str() as kind, *_)) if made == _DTYPE:
                if _text(kind) not in ("u1", "|u1"):
                    raise Refused(f"holds an array of {_text(kind)!r}, not of uint8")
                self.push(_Uint8())
            case (_Name() as made, (str() as text, "latin1")) if made == _ENCODE:
                self.push(text.encode("latin-1"))
            case _:
                raise Refused("has a call that official files never have; nothing was executed")

    def build(self) -> None:
        state = self.stack.pop()
        if isinstance(self.stack[-1], PickledArray):
            self.stack[-1].set_state(state)
        elif not isinstance(self.stack[-1], _Uint8):
            raise Refused("sets the state of an object that is not an array")


def _text(value: Any) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)


_INSTRUCTIONS: Mapping[bytes, Callable[[_Machine], object]] = {
    b"\x80": lambda m: m.take(1),  # protocol
    b"\x95": lambda m: m.take(8),  # frame
    b"}": lambda m: m.push({}),
    b"]": lambda m: m.push([]),
    b")": lambda m: m.push(()),
    b"N": lambda m: m.push(None),
    b"\x88": lambda m: m.push(True),
    b"\x89": lambda m: m.push(False),
    b"K": lambda m: m.push(m.number("<B")),
    b"M": lambda m: m.push(m.number("<H")),
    b"J": lambda m: m.push(m.number("<i")),
    b"U": lambda m: m.push_bytes("<B"),
    b"T": lambda m: m.push_bytes("<I"),
    b"C": lambda m: m.push_bytes("<B"),
    b"B": lambda m: m.push_bytes("<I"),
    b"\x8e": lambda m: m.push_bytes("<Q"),
    b"X": lambda m: m.push_text("<I"),
    b"\x8c": lambda m: m.push_text("<B"),
    b"(": lambda m: m.marks.append(len(m.stack)),
    b"t": lambda m: m.push(tuple(m.since_mark())),
    b"\x85": lambda m: m.push_tuple(1),
    b"\x86": lambda m: m.push_tuple(2),
    b"\x87": lambda m: m.push_tuple(3),
    b"a": lambda m: m.append([m.stack.pop()]),
    b"e": lambda m: m.append(m.since_mark()),
    b"s": lambda m: m.set_items([m.stack.pop(-2), m.stack.pop()]),
    b"u": lambda m: m.set_items(m.since_mark()),
    b"q": lambda m: m.memo.__setitem__(m.number("<B"), m.stack[-1]),
    b"r": lambda m: m.memo.__setitem__(m.number("<I"), m.stack[-1]),
    b"\x94": lambda m: m.memo.__setitem__(len(m.memo), m.stack[-1]),
    b"h": lambda m: m.push(m.memo[m.number("<B")]),
    b"j": lambda m: m.push(m.memo[m.number("<I")]),
    b"c": _Machine.push_named_line,
    b"\x93": _Machine.push_named_stack,
    b"R": _Machine.reduce,
    b"b": _Machine.build,
}
