"""A reader of CIFAR's python files, which are pickles, that never imports pickle: unpickling can run any code.

A pickle is a program for a small stack machine. This machine knows the instructions of the official files, which
Python 2 wrote, and three names, none of which it looks up or calls. It leaves the pixels in the file, to be read
straight into their place.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

_RECONSTRUCT, _ARRAY, _DTYPE = "numpy.core.multiarray._reconstruct", "numpy.ndarray", "numpy.dtype"


class Refused(Exception):  # noqa: N818
    """The file holds something that the official ones do not; the message is a predicate of the file's name."""


class _Span(NamedTuple):
    """A byte string left in the file."""

    offset: int
    length: int


class _Name(str):
    """A name that the file refers to, as opposed to text that it holds."""


class _Uint8:
    """The array's element type."""


class PickledArray:
    """A uint8 matrix: its shape, its order and the place of its bytes in the file."""

    shape = (0, 0)
    by_column = False
    offset = 0

    def set_state(self, state: Any) -> None:
        """Set the array's fields from the file; raise Refused if they are inconsistent."""
        match state:
            case (1, (int() as rows, int() as columns), _Uint8(), bool() | 0 | 1 as by_column, _Span() as span):
                self.shape, self.by_column, self.offset = (rows, columns), bool(by_column), span.offset
            case _:
                raise Refused("holds an array that is not a matrix of uint8")
        if min(self.shape) < 1 or rows * columns != span.length:
            raise Refused(f"holds an array of shape {self.shape} with {span.length} bytes")

    def read_into(self, file: IO[bytes], target: NDArray[np.uint8]) -> None:
        """Copy the array to `target` of the same shape (N, 3072), without an intermediate copy."""
        file.seek(self.offset)
        if not self.by_column:
            file.readinto(target)  # type: ignore[attr-defined]
            return
        for column in range(self.shape[1]):
            target[:, column] = np.frombuffer(file.read(self.shape[0]), np.uint8)


def read_batch(file: IO[bytes]) -> Mapping[str, Any]:
    """Return the mapping in a CIFAR batch file: `data` as a PickledArray, labels and names as lists."""
    try:
        found = _Machine(file).run()
        return {key.decode("latin-1"): value for key, value in found.items()}
    except (AttributeError, IndexError, KeyError, TypeError, ValueError, struct.error) as error:
        raise Refused(f"is not a CIFAR batch ({type(error).__name__} at byte {file.tell()})") from error


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
        data = self.file.read(count)
        if len(data) < count:
            raise Refused(f"is truncated: it ends after {self.size} bytes, within an instruction")
        return data

    def number(self, layout: str) -> int:
        value: int = struct.unpack(layout, self.take(struct.calcsize(layout)))[0]
        return value

    def push(self, value: Any) -> None:
        self.stack.append(value)

    def since(self, mark: int) -> list[Any]:
        values = self.stack[mark:]
        del self.stack[mark:]
        return values

    def push_span(self) -> None:
        """Skip a long byte string, such as the pixels."""
        length, offset = self.number("<I"), self.file.tell()
        if offset + length > self.size:
            missing = offset + length - self.size
            raise Refused(f"is truncated: it has {self.size} bytes, its pixels need at least {missing} more")
        self.file.seek(length, 1)
        self.push(_Span(offset, length))

    def push_name(self) -> None:
        module, name = (self.file.readline(100).decode("latin-1").rstrip("\n") for _ in range(2))
        found = _Name(f"{module}.{name}")
        if found not in (_RECONSTRUCT, _ARRAY, _DTYPE):
            raise Refused(f"refers to {found}, which official files never do; nothing was executed")
        self.push(found)

    def append(self, values: list[Any]) -> None:
        if not isinstance(self.stack[-1], list):
            raise Refused("appends to an object that is not a list")
        self.stack[-1].extend(values)

    def set_items(self, values: list[Any]) -> None:
        if not isinstance(self.stack[-1], dict):
            raise Refused("sets items of an object that is not a mapping")
        self.stack[-1].update(zip(values[::2], values[1::2], strict=True))

    def reduce(self) -> None:
        """Make what the official files make by a call: an array, or its element type."""
        arguments, name = self.stack.pop(), self.stack.pop()
        match (name, arguments):
            case (_Name() as made, (_Name() as kind, tuple(), _)) if (made, kind) == (_RECONSTRUCT, _ARRAY):
                self.push(PickledArray())
            case (_Name() as made, (bytes() as kind, *_)) if made == _DTYPE:
                if kind not in (b"u1", b"|u1"):
                    raise Refused(f"holds an array of {kind.decode('latin-1')!r}, not of uint8")
                self.push(_Uint8())
            case _:
                raise Refused("has a call that official files never have; nothing was executed")

    def build(self) -> None:
        state = self.stack.pop()
        if isinstance(self.stack[-1], PickledArray):
            self.stack[-1].set_state(state)
        elif not isinstance(self.stack[-1], _Uint8):
            raise Refused("sets the state of an object that is not an array")


_INSTRUCTIONS: Mapping[bytes, Callable[[_Machine], object]] = {
    b"\x80": lambda m: m.take(1),  # protocol
    b"}": lambda m: m.push({}),
    b"]": lambda m: m.push([]),
    b")": lambda m: m.push(()),
    b"N": lambda m: m.push(None),
    b"\x88": lambda m: m.push(True),
    b"\x89": lambda m: m.push(False),
    b"K": lambda m: m.push(m.number("<B")),
    b"M": lambda m: m.push(m.number("<H")),
    b"J": lambda m: m.push(m.number("<i")),
    b"U": lambda m: m.push(m.take(m.number("<B"))),
    b"T": _Machine.push_span,
    b"(": lambda m: m.marks.append(len(m.stack)),
    b"t": lambda m: m.push(tuple(m.since(m.marks.pop()))),
    b"\x85": lambda m: m.push(tuple(m.since(-1))),
    b"\x86": lambda m: m.push(tuple(m.since(-2))),
    b"\x87": lambda m: m.push(tuple(m.since(-3))),
    b"a": lambda m: m.append(m.since(-1)),
    b"e": lambda m: m.append(m.since(m.marks.pop())),
    b"s": lambda m: m.set_items(m.since(-2)),
    b"u": lambda m: m.set_items(m.since(m.marks.pop())),
    b"q": lambda m: m.memo.__setitem__(m.number("<B"), m.stack[-1]),
    b"r": lambda m: m.memo.__setitem__(m.number("<I"), m.stack[-1]),
    b"h": lambda m: m.push(m.memo[m.number("<B")]),
    b"j": lambda m: m.push(m.memo[m.number("<I")]),
    b"c": _Machine.push_name,
    b"R": _Machine.reduce,
    b"b": _Machine.build,
}
