"""Message ↔ the body of a frame: typed sections for rows, tensors and metrics.

There is one decoder. It gives `Sections`, whose rows are a view of the frame; a server that folds uploads takes these,
everyone else the `Message` made of them.

| section | layout |
|---|---|
| rows | tag, value type, K as u16, w as u32, bitmap of the classes present, their values |
| tensors | tag, count as u16; per tensor: name, value type, number of axes, sizes as u32, values |
| metrics | tag, count as u8; per metric: code (0: a name follows), wide bit, the value as f32 or f64 |

Anything a malformed body can get wrong ends in a WireError that names the field; nothing is read past the end.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tinyproto.core.messages import Message
from tinyproto.core.prototypes import PackedRows, Prototypes
from tinyproto.errors import WireError
from tinyproto.wire.frame import Header, pack, unpack

_ROWS, _TENSORS, _METRICS = _SECTIONS = 1, 2, 3
_FLOAT32 = 1
_FLOATS, _BYTES = np.dtype("<f4"), np.dtype("u1")
_ROWS_HEAD = struct.Struct("<BBHI")
_TENSORS_HEAD = struct.Struct("<BH")
_TENSOR_HEAD = struct.Struct("<BB")
_METRICS_HEAD = struct.Struct("<BB")
_WIDE = 0x80
_METRIC_LAYOUTS = {0: struct.Struct("<f"), _WIDE: struct.Struct("<d")}
_MOST_CLASSES = 0xFFFF
_LARGEST = 1 << 28

METRIC_CODES: Mapping[str, int] = {
    name: code
    for code, name in enumerate(
        (
            "train_samples",
            "counted_samples",
            "counted_classes",
            "test_samples",
            "correct_head",
            "correct_global",
            "correct_local",
            "cross_entropy",
            "regulariser",
        ),
        start=1,
    )
}
"""Metrics every frame may carry, one byte each for the name; the order is part of the protocol."""

_METRIC_TAGS = {
    code | width: (name, f"metric {name!r}", layout)
    for name, code in METRIC_CODES.items()
    for width, layout in _METRIC_LAYOUTS.items()
}


@dataclass(frozen=True)
class Decoded:
    """A frame taken apart, with what it cost."""

    header: Header
    message: Message
    payload_bytes: int
    wire_bytes: int


class Sections(NamedTuple):
    """The body of a frame taken apart: rows as a view of the frame, tensors and metrics in memory of their own."""

    rows: PackedRows | None
    tensors: Mapping[str, Tensor]
    metrics: Mapping[str, float]

    @property
    def parameters(self) -> int:
        """How many numbers travel as payload, as `Message.parameters` counts them."""
        rows = 0 if self.rows is None else self.rows.parameters
        return rows + sum(tensor.numel() for tensor in self.tensors.values())

    def message(self) -> Message:
        """The message that was encoded; the frame may go."""
        return Message(None if self.rows is None else self.rows.unpacked(), self.tensors, self.metrics)


class Payload(Protocol):
    """What travels, whole or taken apart."""

    @property
    def parameters(self) -> int:
        """How many numbers."""
        ...


def payload_bytes(message: Payload) -> int:
    """Bytes of values in a message: what a paper would count, in float32."""
    return 4 * message.parameters


def encode(header: Header, message: Message) -> bytes:
    """A message as one frame; sections with nothing in them are left out."""
    sections = []
    if message.rows is not None:
        sections.append(_encode_rows(message.rows))
    if message.tensors:
        sections.append(_encode_tensors(message.tensors))
    if message.metrics:
        sections.append(_encode_metrics(message.metrics))
    return pack(header, b"".join(sections))


class Shapes(Protocol):
    """Says what may arrive, before memory is taken for it; raises a WireError for anything else."""

    def check_rows(self, num_classes: int, width: int) -> None:
        """Rows of this shape."""
        ...

    def check_tensor(self, name: str, shape: tuple[int, ...]) -> None:
        """A tensor of this name and shape."""
        ...


def decode(frame: bytes) -> Decoded:
    """The frame's header and message, whatever its federation, or a WireError."""
    header, body = unpack(frame)
    message = decode_body(body).message()
    return Decoded(header, message, payload_bytes(message), len(frame))


def decode_body(body: memoryview, shapes: Shapes | None = None) -> Sections:
    """The sections of a frame; `shapes` is asked before any value is read."""
    reader = _Reader(body)
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
            rows = _decode_rows(reader, shapes)
        elif tag == _TENSORS:
            tensors = _decode_tensors(reader, shapes)
        else:
            metrics = _decode_metrics(reader)
    return Sections(rows, tensors, metrics)


class _Reader:
    """A cursor over the body that refuses to run past its end."""

    __slots__ = ("at", "body", "end")

    def __init__(self, body: memoryview) -> None:
        self.body = body
        self.at = 0
        self.end = len(body)

    def byte(self, what: str) -> int:
        start = self.at
        self.at = start + 1
        if self.at > self.end:
            raise self._short(start, what)
        return self.body[start]

    def fields(self, layout: struct.Struct, what: str) -> tuple[Any, ...]:
        start = self.at
        self.at = start + layout.size
        if self.at > self.end:
            raise self._short(start, what)
        return layout.unpack_from(self.body, start)

    def array(self, dtype: np.dtype[Any], shape: tuple[int, int], what: str) -> NDArray[Any]:
        """A view of the body."""
        start = self.at
        self.at = start + dtype.itemsize * shape[0] * shape[1]
        if self.at > self.end:
            raise self._short(start, what)
        return np.ndarray(shape, dtype, self.body, start)

    def text(self, size: int, what: str) -> str:
        start = self.at
        self.at = start + size
        if self.at > self.end:
            raise self._short(start, what)
        try:
            return str(self.body[start : self.at], "utf-8")
        except UnicodeDecodeError as error:
            raise WireError(f"{what}: a name is not valid UTF-8") from error

    def _short(self, start: int, what: str) -> WireError:
        return WireError(f"{what}: needs {self.at - start} bytes, {self.end - start} are left")


def _check_size(shape: tuple[int, ...], what: str) -> None:
    """Rows and empty tensors cost fewer bytes than their shape says, so the shape itself has to be sane."""
    values = 1
    for size in shape:
        values *= size or 1
    if values > _LARGEST:
        raise WireError(f"{what}: {' × '.join(map(str, shape))} values are more than any federation has")


def _float_bytes(values: Tensor) -> bytes:
    if values.dtype != torch.float32:
        raise ValueError(f"only float32 travels, not {values.dtype}")
    return values.detach().cpu().contiguous().numpy().astype("<f4", copy=False).tobytes()


def _check_float32(value_type: int, what: str) -> None:
    if value_type != _FLOAT32:
        raise WireError(f"dtype: {what} have type {value_type}, this side knows {_FLOAT32} (float32)")


def _encode_rows(rows: Prototypes) -> bytes:
    if rows.num_classes > _MOST_CLASSES:
        raise ValueError(f"a frame holds at most {_MOST_CLASSES} classes, not {rows.num_classes}")
    present = rows.present.cpu()
    bitmap = np.packbits(present.numpy(), bitorder="little").tobytes()
    head = _ROWS_HEAD.pack(_ROWS, _FLOAT32, rows.num_classes, rows.width)
    return b"".join((head, bitmap, _float_bytes(rows.values.cpu()[present])))


def _decode_rows(reader: _Reader, shapes: Shapes | None) -> PackedRows:
    _, value_type, num_classes, width = reader.fields(_ROWS_HEAD, "rows")
    _check_float32(value_type, "rows")
    if shapes is None:
        _check_size((num_classes, width), "rows")
    else:
        shapes.check_rows(num_classes, width)
    bitmap = reader.array(_BYTES, (1, (num_classes + 7) // 8), "rows bitmap")
    classes = np.unpackbits(bitmap, None, None, "little").nonzero()[0]  # axis None: bits in one row
    count = len(classes)
    if count and classes[-1] >= num_classes:
        raise WireError(f"rows bitmap: names a class beyond the {num_classes} there are")
    return PackedRows(num_classes, classes, reader.array(_FLOATS, (count, width), "rows values"))


def _encode_tensors(tensors: Mapping[str, Tensor]) -> bytes:
    pieces = [_TENSORS_HEAD.pack(_TENSORS, len(tensors))]
    for name, tensor in tensors.items():
        encoded = name.encode()
        if len(encoded) > 255:
            raise ValueError(f"a tensor's name has at most 255 bytes, {name[:40]!r}… has {len(encoded)}")
        pieces.append(bytes((len(encoded),)) + encoded + bytes((_FLOAT32, tensor.dim())))
        pieces.append(struct.pack(f"<{tensor.dim()}I", *tensor.shape) + _float_bytes(tensor))
    return b"".join(pieces)


def _decode_tensors(reader: _Reader, shapes: Shapes | None) -> dict[str, Tensor]:
    _, count = reader.fields(_TENSORS_HEAD, "tensors")
    tensors: dict[str, Tensor] = {}
    for _ in range(count):
        name = reader.text(reader.byte("tensor name"), "tensor name")
        value_type, axes = reader.fields(_TENSOR_HEAD, f"tensor {name!r}")
        _check_float32(value_type, f"values of tensor {name!r}")
        shape = reader.fields(struct.Struct(f"<{axes}I"), f"tensor {name!r} shape")
        if name in tensors:
            raise WireError(f"tensor {name!r}: appears twice")
        if shapes is not None:
            shapes.check_tensor(name, shape)
        _check_size(shape, f"tensor {name!r}")
        values = reader.array(_FLOATS, (1, math.prod(shape)), f"tensor {name!r} values")
        tensors[name] = torch.from_numpy(values.astype(np.float32)).view(shape)  # astype copies: the frame may go
    return tensors


def _encode_metrics(metrics: Mapping[str, float]) -> bytes:
    pieces = [_METRICS_HEAD.pack(_METRICS, len(metrics))]
    for name, value in metrics.items():
        wide = struct.unpack("<f", struct.pack("<f", value))[0] != value if abs(value) < 3e38 else True
        code = METRIC_CODES.get(name, 0)
        pieces.append(bytes((code | (_WIDE if wide else 0),)))
        if code == 0:
            pieces.append(bytes((len(name.encode()),)) + name.encode())
        pieces.append(struct.pack("<d" if wide else "<f", value))
    return b"".join(pieces)


def _decode_metrics(reader: _Reader) -> dict[str, float]:
    _, count = reader.fields(_METRICS_HEAD, "metrics")
    metrics: dict[str, float] = {}
    for _ in range(count):
        tag = reader.byte("metric")
        known = _METRIC_TAGS.get(tag)
        if known is not None:
            name, what, layout = known
        elif tag & ~_WIDE == 0:
            name = reader.text(reader.byte("metric name"), "metric name")
            what, layout = f"metric {name!r}", _METRIC_LAYOUTS[tag]
        else:
            raise WireError(f"metric: unknown code {tag & ~_WIDE}")
        if name in metrics:
            raise WireError(f"{what}: appears twice")
        (metrics[name],) = reader.fields(layout, what)
    return metrics
