"""What a well-formed frame may still not say: another federation, a wrong round, values no training gives."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from tinyproto.core.messages import Message
from tinyproto.errors import WireError
from tinyproto.wire.codec import Decoded, decode_body, payload_bytes
from tinyproto.wire.frame import HEADER_BYTES, Header, Kind, unpack

ABSURD_NORM = 1e9
"""No honest row or tensor is longer: count-scaled prototypes of a million samples stay far below."""


_METRICS_ROOM = 4096  # bytes


@dataclass(frozen=True)
class Expectation:
    """What a federation's frames look like, whoever sends them."""

    digest: bytes
    num_classes: int
    row_width: int | None  # None where no rows travel
    tensor_shapes: Mapping[str, tuple[int | None, ...]] = field(default_factory=dict)  # None for a size that varies

    @property
    def largest_frame(self) -> int | None:
        """No frame can be longer, in bytes; None where sizes vary."""
        sizes = [size for shape in self.tensor_shapes.values() for size in shape]
        if None in sizes:
            return None
        values = self.num_classes * (self.row_width or 0)
        values += sum(math.prod(size or 0 for size in shape) for shape in self.tensor_shapes.values())
        names = sum(len(name.encode()) + 4 * len(shape) + 3 for name, shape in self.tensor_shapes.items())
        return 4 * values + names + self.num_classes + HEADER_BYTES + _METRICS_ROOM

    def check_rows(self, num_classes: int, width: int) -> None:
        """Rows have one shape, or are none of this algorithm's."""
        if self.row_width is None:
            raise WireError("rows: this algorithm exchanges none")
        if (num_classes, width) != (self.num_classes, self.row_width):
            due = f"{self.num_classes} × {self.row_width}"
            raise WireError(f"rows: classes × width is {num_classes} × {width}, not {due}")

    def check_tensor(self, name: str, shape: tuple[int, ...]) -> None:
        """A tensor has a name and a shape that both sides know."""
        due = self.tensor_shapes.get(name)
        if due is None:
            raise WireError(f"tensor {name!r}: this algorithm exchanges no such tensor")
        if len(shape) != len(due) or any(size not in (found, None) for found, size in zip(shape, due, strict=True)):
            raise WireError(f"tensor {name!r}: its shape is {shape}, not {due}")


def open_frame(
    frame: bytes, expected: Expectation, client: int, round_number: int | None, kinds: Collection[Kind]
) -> Decoded:
    """Decode a frame and hold it to what was expected; raises a WireError that names the client and the field.

    What the header says is checked before the body is touched. The server knows which round it is; a client learns it
    from the frame (`round_number` None).
    """
    try:
        if expected.largest_frame is not None and len(frame) > expected.largest_frame:
            raise WireError(f"length: {len(frame)} bytes, where no frame has more than {expected.largest_frame}")
        header, body = unpack(frame)
        _check_header(header, expected, client, round_number, kinds)
        message = decode_body(body, expected)
        _check_values_of(message)
    except WireError as error:
        when = "" if round_number is None else f", round {round_number}"
        raise WireError(f"frame of client {client}{when}, refused: {error}") from error
    return Decoded(header, message, payload_bytes(message), len(frame))


def _check_header(
    header: Header, expected: Expectation, client: int, round_number: int | None, kinds: Collection[Kind]
) -> None:
    if header.digest != expected.digest:
        raise WireError(
            "digest: the other side runs another federation; compare algorithm, classes, prototype and CPS "
            "dimension, scaling, masks and mask seed on both ends"
        )
    if header.kind not in kinds:
        raise WireError(f"kind: {header.kind.name.lower()} where {_names(kinds)} was due")
    if header.client != client:
        raise WireError(f"client: the frame says client {header.client}")
    if round_number is not None and header.round_number != round_number:
        raise WireError(f"round: the frame says round {header.round_number}")


def _names(kinds: Iterable[Kind]) -> str:
    return " or ".join(kind.name.lower() for kind in kinds)


def _check_values_of(message: Message) -> None:
    if message.rows is not None:
        _check_values("rows", message.rows.values)
    for name, tensor in message.tensors.items():
        _check_values(f"tensor {name!r}", tensor.reshape(1, -1))
    for name, value in message.metrics.items():
        if not math.isfinite(value):
            raise WireError(f"metric {name!r}: {value} is not a number that can be recorded; did training diverge?")


def _check_values(what: str, values: Tensor) -> None:
    for row in (~values.isfinite().all(1)).nonzero()[:1, 0].tolist():
        kind = "NaN" if bool(values[row].isnan().any()) else "infinity"
        raise WireError(f"{what}: {kind} in row {row}; did training diverge? A smaller learning rate may help")
    norms = torch.linalg.vector_norm(values.double(), dim=1)
    if norms.numel() and float(norms.max()) > ABSURD_NORM:
        raise WireError(f"{what}: norm {float(norms.max()):.3g} of row {int(norms.argmax())} is absurd")
