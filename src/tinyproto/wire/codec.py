"""Encode a Message as the body of a frame, and decode it: typed sections for rows, tensors and metrics.

The codec is written by hand because messages must have one encoding, cost few bytes and be validated before memory is
allocated, which no serialisation library offers together. The decoder returns `Sections`, whose rows are a view of the
frame, for a server that folds uploads; `Sections.message()` copies them into a `Message`.

| section | layout |
|---|---|
| rows | tag, value type, K as u16, w as u32, bitmap of the classes present, their scales, their values |
| tensors | tag, count as u16; per tensor, ascending by name: name, value type, axes, sizes as u32, scales, values |
| metrics | tag, count as u8; per metric: code (0: a name follows), wide bit, the value as f32 or f64 |

Metrics have a fixed order: the losses (codes 8 and 9), metrics with a name, ascending, then sizes and scores (codes 1
to 7). A metric is an f64 if an f32 would change it or its magnitude is 3e38 or more, infinities and NaN included.

`wire/values.py` defines the value types and their scales. The rows of a tensor are its first axis; a vector or a scalar
is one row. Each section names its value type.

A malformed body raises a WireError that names the field; nothing is read past the end.

A message has one encoding. Bytes that `encode` never writes are refused, even if their meaning is clear:

- tensors or metrics out of order or repeated, an empty section of either;
- bits of the bitmap above the number of classes;
- a metric of the wrong width, or spelled out although it has a code;
- the values that `wire/values.py` lists.

Rows without any class are valid: they differ from a message without rows.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tinyproto.core.prototypes import Message, PackedRows, Prototypes
from tinyproto.errors import WireError
from tinyproto.wire.frame import HEADER_BYTES, Body, Header, pack, unpack
from tinyproto.wire.values import BY_CODE, FLOAT32, Coding, ValueType, as_matrix

if TYPE_CHECKING:
    from tinyproto.wire.validate import Expectation

_ROWS, _TENSORS, _METRICS = _SECTIONS = 1, 2, 3
_FLOATS, _BYTES = np.dtype("<f4"), np.dtype("u1")
_ROWS_HEAD = struct.Struct("<BBHI")
_TENSORS_HEAD = struct.Struct("<BH")
_TENSOR_HEAD = struct.Struct("<BB")
_METRICS_HEAD = struct.Struct("<BB")
_WIDE = 0x80
_NARROW = struct.Struct("<f")
_METRIC_LAYOUTS = {0: _NARROW, _WIDE: struct.Struct("<d")}
_NARROW_BELOW = 3e38  # of metrics; the largest float32 is slightly greater
_MOST_CLASSES = 0xFFFF
_LARGEST = 1 << 28
_AS_IT_IS = Coding()

METRIC_CODES: Mapping[str, int] = {
    name: code
    for code, name in enumerate(
        (
            "train_samples", "counted_samples", "counted_classes", "test_samples", "correct_head", "correct_global",
            "correct_local", "cross_entropy", "regulariser",
        ),
        start=1,
    )
}  # fmt: skip
"""Metrics whose name takes one byte; the order is part of the protocol."""

_FIRST_METRICS = {"cross_entropy": -2, "regulariser": -1}
_METRIC_PLACES = {name: (_FIRST_METRICS.get(name, code), "") for name, code in METRIC_CODES.items()}
"""Sort keys of metrics with a code; the sort key of other metrics is (0, name)."""

_BEFORE_ALL = (-3, "")
_METRIC_TAGS = {
    code | width: (name, f"metric {name!r}", layout, _METRIC_PLACES[name])
    for name, code in METRIC_CODES.items()
    for width, layout in _METRIC_LAYOUTS.items()
}


@dataclass(frozen=True)
class Decoded:
    """A decoded frame with its cost."""

    header: Header
    message: Message
    payload_bytes: int
    wire_bytes: int
    body: Body


class Sections(NamedTuple):
    """A decoded body: rows as a view of the frame, tensors and metrics as copies."""

    rows: PackedRows | None
    tensors: Mapping[str, Tensor]
    metrics: Mapping[str, float]
    payload_bytes: int = 0  # of values and scales

    @property
    def parameters(self) -> int:
        """Return the number of values in the payload, as `Message.parameters` counts them."""
        rows = 0 if self.rows is None else self.rows.parameters
        return rows + sum(tensor.numel() for tensor in self.tensors.values())

    def message(self) -> Message:
        """Return the message, independent of the frame."""
        return Message(None if self.rows is None else self.rows.unpacked(), self.tensors, self.metrics)


def payload_bytes(message: Message, values: ValueType = FLOAT32) -> int:
    """Return the bytes of values and scales of a message on the wire."""
    size = 0
    if message.rows is not None:
        size += values.payload(int(message.rows.present.sum()), message.rows.width)
    return size + sum(values.payload(*as_matrix(tuple(tensor.shape))) for tensor in message.tensors.values())


def encode(header: Header, message: Message | Body, coding: Coding = _AS_IT_IS) -> bytes:
    """Encode a message, or take its encoded body, as one frame."""
    return pack(header, encode_body(message, coding) if isinstance(message, Message) else message)


def encode_body(message: Message, coding: Coding = _AS_IT_IS) -> Body:
    """Encode a message as the body of frames; empty sections are omitted. Values may be views of the message's."""
    pieces: list[bytes | memoryview] = []  # joined once, since a network's values are megabytes
    if message.rows is not None:
        pieces += _encode_rows(message.rows, coding)
    if message.tensors:
        pieces += _encode_tensors(message.tensors, coding)
    if message.metrics:
        pieces += _encode_metrics(message.metrics)
    return Body(*pieces)


def rows_frame_bytes(num_classes: int, width: int, values: ValueType, metrics: int = 0) -> int:
    """Return the bytes of a frame with a row of each class, and this many bytes of metrics."""
    bitmap = (num_classes + 7) // 8
    return HEADER_BYTES + _ROWS_HEAD.size + bitmap + values.payload(num_classes, width) + metrics


def decode(frame: bytes, digest: bytes) -> Decoded:
    """Decode a frame of the federation with this digest; raise WireError if it is malformed."""
    header, body = unpack(frame, digest)
    sections = decode_body(body)
    return Decoded(header, sections.message(), sections.payload_bytes, len(frame), Body(body))


def decode_body(body: memoryview, expected: Expectation | None = None, agreed: ValueType | None = None) -> Sections:
    """Decode a body; shapes other than the expected ones and types other than the agreed one are refused first."""
    reader = _Reader(body, agreed)
    rows: PackedRows | None = None
    tensors: dict[str, Tensor] = {}
    metrics: dict[str, float] = {}
    last_tag = 0
    while reader.at < reader.end:
        tag = body[reader.at]
        if tag not in _SECTIONS:
            raise WireError(f"section: unknown type {tag}")
        if tag <= last_tag:
            raise WireError(f"section: type {tag} is repeated or out of order")
        last_tag = tag
        if tag == _ROWS:
            rows = _decode_rows(reader, expected)
        elif tag == _TENSORS:
            tensors = _decode_tensors(reader, expected)
        else:
            metrics = _decode_metrics(reader)
    return Sections(rows, tensors, metrics, reader.payload)


class _Reader:
    """A cursor over the body that never reads past its end."""

    __slots__ = ("agreed", "at", "body", "end", "payload")

    def __init__(self, body: memoryview, agreed: ValueType | None) -> None:
        self.body = body
        self.agreed = agreed
        self.payload = 0  # bytes of values and scales read so far
        self.at = 0
        self.end = len(body)

    def skip(self, size: int, what: str) -> int:
        """Advance by so many bytes and return the position before; raise WireError if fewer are left."""
        start = self.at
        self.at = start + size
        if self.at > self.end:
            raise WireError(f"{what}: needs {size} bytes, {self.end - start} are left")
        return start

    def byte(self, what: str) -> int:
        return self.body[self.skip(1, what)]

    def fields(self, layout: struct.Struct, what: str) -> tuple[Any, ...]:
        return layout.unpack_from(self.body, self.skip(layout.size, what))

    def value_type(self, code: int, what: str) -> ValueType:
        """Return the type with this code; raise WireError if it is unknown or not the agreed one."""
        known = BY_CODE.get(code)
        if known is None:
            names = ", ".join(f"{other.code} ({other.name})" for other in BY_CODE.values())
            raise WireError(f"dtype: {what} have type {code}, this side knows {names}")
        if known is not self.agreed and self.agreed is not None:
            raise WireError(f"dtype: {what} are {known.name}, where {self.agreed.name} was agreed on")
        return known

    def values(self, known: ValueType, shape: tuple[int, int], what: str) -> NDArray[np.float32]:
        """Return a matrix of values; float32 as a view of the body."""
        size = 4 * shape[0] * shape[1] if known is FLOAT32 else known.payload(*shape)
        start = self.skip(size, what)
        self.payload += size
        if known is FLOAT32:
            return np.ndarray(shape, _FLOATS, self.body, start)
        try:
            return known.decode(np.ndarray(size, _BYTES, self.body, start), *shape)
        except WireError as error:
            raise WireError(f"{what}: {error}") from error

    def text(self, size: int, what: str) -> str:
        start = self.skip(size, what)
        try:
            return str(self.body[start : self.at], "utf-8")
        except UnicodeDecodeError as error:
            raise WireError(f"{what}: a name is not valid UTF-8") from error


def _check_size(shape: tuple[int, ...], what: str) -> None:
    """Refuse a shape that is too large: rows and empty tensors take fewer bytes than their shape suggests."""
    values = 1
    for size in shape:
        values *= size or 1
    if values > _LARGEST:
        raise WireError(f"{what}: {' × '.join(map(str, shape))} values are more than any federation has")


def _value_bytes(values: Tensor, shape: tuple[int, int], coding: Coding) -> bytes | memoryview:
    if values.dtype != torch.float32:
        raise ValueError(f"only float32 can be encoded, not {values.dtype}")
    return coding.values.encode(values.detach().cpu().contiguous().numpy().reshape(shape), coding.rounding)


def _encode_rows(rows: Prototypes, coding: Coding) -> list[bytes | memoryview]:
    if rows.num_classes > _MOST_CLASSES:
        raise ValueError(f"a frame holds at most {_MOST_CLASSES} classes, not {rows.num_classes}")
    present = rows.present.cpu()
    bitmap = np.packbits(present.numpy(), bitorder="little").tobytes()
    head = _ROWS_HEAD.pack(_ROWS, coding.values.code, rows.num_classes, rows.width)
    sent = rows.values.cpu()[present]
    return [head, bitmap, _value_bytes(sent, (len(sent), rows.width), coding)]


def _decode_rows(reader: _Reader, expected: Expectation | None) -> PackedRows:
    _, code, num_classes, width = reader.fields(_ROWS_HEAD, "rows")
    known = reader.agreed
    if known is None or code != known.code:
        known = reader.value_type(code, "rows")
    if expected is None:
        _check_size((num_classes, width), "rows")
    else:
        expected.check_rows(num_classes, width)
    size = (num_classes + 7) // 8
    bitmap = np.ndarray(size, _BYTES, reader.body, reader.skip(size, "rows bitmap"))
    classes = np.unpackbits(bitmap, None, None, "little").nonzero()[0]
    count = len(classes)
    if count and classes[-1] >= num_classes:
        raise WireError(f"rows bitmap: has a class above the {num_classes} of the section")
    return PackedRows(num_classes, classes, reader.values(known, (count, width), "rows values"))


def _encode_tensors(tensors: Mapping[str, Tensor], coding: Coding) -> list[bytes | memoryview]:
    pieces: list[bytes | memoryview] = [_TENSORS_HEAD.pack(_TENSORS, len(tensors))]
    for name, tensor in sorted(tensors.items()):  # so that draws meet the same values in any order of the mapping
        encoded = name.encode()
        if len(encoded) > 255:
            raise ValueError(f"a tensor's name has at most 255 bytes, {name[:40]!r}… has {len(encoded)}")
        pieces.append(bytes((len(encoded),)) + encoded + bytes((coding.values.code, tensor.dim())))
        pieces.append(struct.pack(f"<{tensor.dim()}I", *tensor.shape))
        pieces.append(_value_bytes(tensor, as_matrix(tuple(tensor.shape)), coding))
    return pieces


def _decode_tensors(reader: _Reader, expected: Expectation | None) -> dict[str, Tensor]:
    _, count = reader.fields(_TENSORS_HEAD, "tensors")
    if not count:
        raise WireError("tensors: the section is empty; without tensors it is left out")
    tensors: dict[str, Tensor] = {}
    last: str | None = None
    for _ in range(count):
        name = reader.text(reader.byte("tensor name"), "tensor name")
        code, axes = reader.fields(_TENSOR_HEAD, f"tensor {name!r}")
        known = reader.value_type(code, f"values of tensor {name!r}")
        shape = reader.fields(struct.Struct(f"<{axes}I"), f"tensor {name!r} shape")
        if last is not None and name <= last:
            fault = "appears twice" if name in tensors else f"out of order, it follows {last!r}"
            raise WireError(f"tensor {name!r}: {fault}")
        last = name
        if expected is not None:
            expected.check_tensor(name, shape)
        _check_size(shape, f"tensor {name!r}")
        values = reader.values(known, as_matrix(shape), f"tensor {name!r} values")
        owned = values.astype(np.float32, copy=known is FLOAT32)  # a copy, independent of the frame
        tensors[name] = torch.from_numpy(owned).view(shape)
    return tensors


def _is_wide(value: float) -> bool:
    """Return True if a metric is encoded as f64."""
    return not abs(value) < _NARROW_BELOW or _NARROW.unpack(_NARROW.pack(value))[0] != value


def _encode_metrics(metrics: Mapping[str, float]) -> list[bytes]:
    pieces = [_METRICS_HEAD.pack(_METRICS, len(metrics))]
    for name in sorted(metrics, key=lambda name: _METRIC_PLACES.get(name, (0, name))):
        value = metrics[name]
        width = _WIDE if _is_wide(value) else 0
        code = METRIC_CODES.get(name, 0)
        pieces.append(bytes((code | width,)))
        if code == 0:
            pieces.append(bytes((len(name.encode()),)) + name.encode())
        pieces.append(_METRIC_LAYOUTS[width].pack(value))
    return pieces


def _decode_metrics(reader: _Reader) -> dict[str, float]:
    _, count = reader.fields(_METRICS_HEAD, "metrics")
    if not count:
        raise WireError("metrics: the section is empty; without metrics it is left out")
    metrics: dict[str, float] = {}
    last = _BEFORE_ALL
    for _ in range(count):
        tag = reader.byte("metric")
        known = _METRIC_TAGS.get(tag)
        if known is not None:
            name, what, layout, place = known
        elif tag & ~_WIDE == 0:
            name = reader.text(reader.byte("metric name"), "metric name")
            what, layout, place = f"metric {name!r}", _METRIC_LAYOUTS[tag], (0, name)
            if name in METRIC_CODES:
                raise WireError(f"{what}: spelled out although it has code {METRIC_CODES[name]}")
        else:
            raise WireError(f"metric: unknown code {tag & ~_WIDE}")
        if place <= last:
            fault = "appears twice" if name in metrics else f"out of order, it follows {next(reversed(metrics))!r}"
            raise WireError(f"{what}: {fault}")
        last = place
        (value,) = reader.fields(layout, what)
        if layout is _NARROW:
            if not abs(value) < _NARROW_BELOW:
                raise WireError(f"{what}: {value:g} as an f32, where only values below {_NARROW_BELOW:g} are narrow")
        elif not _is_wide(value):
            raise WireError(f"{what}: {value:g} as an f64, where an f32 holds it exactly")
        metrics[name] = value
    return metrics
