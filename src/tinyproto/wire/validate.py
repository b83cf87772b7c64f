"""What a well-formed frame may still not say: another federation, a wrong round, values no training gives."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tinyproto.core.messages import AtMost, Shape
from tinyproto.errors import WireError
from tinyproto.wire.codec import Decoded, Sections, decode_body
from tinyproto.wire.frame import HEADER_BYTES, Header, Kind, unpack
from tinyproto.wire.values import EXACT, FLOAT32, VALUE_TYPES, Coding, ValueType, WireSettings, as_matrix

ABSURD_NORM = 1e9
"""No honest row or tensor is longer: count-scaled prototypes of a million samples stay far below."""

ABSURD_METRIC = 1e100
"""A loss of float32 stays far below, and a mean over all clients stays finite."""

_METRICS_ROOM = 4096  # bytes
_MOST_AT_ONCE = 1 << 20
_SURELY_BELOW = ABSURD_NORM**2 / 4
_FIRST = np.zeros(1, np.intp)


@dataclass(frozen=True)
class Expectation:
    """What a federation's frames look like, whoever sends them."""

    digest: bytes
    num_classes: int
    row_width: int | None  # None where no rows travel
    tensor_shapes: Mapping[str, Shape] = field(default_factory=dict)
    tensor_parts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # tensors that may travel in one's place
    wire: WireSettings = EXACT

    @cached_property
    def up(self) -> ValueType:
        """What clients write their values in."""
        return VALUE_TYPES[self.wire.up]

    @cached_property
    def down(self) -> ValueType:
        """What the server writes its values in."""
        return VALUE_TYPES[self.wire.down]

    @cached_property
    def agreed(self) -> Sequence[ValueType]:
        """What the values of a frame of each kind are written in, by its number; a hello has metrics alone."""
        types = {Kind.TRAIN: self.down, Kind.EVALUATE: self.down, Kind.UPDATE: self.up, Kind.EVALUATION: self.up}
        return [types.get(Kind(number), FLOAT32) if number else FLOAT32 for number in range(max(Kind) + 1)]

    def coding(self, kind: Kind, draws: Callable[[], torch.Generator]) -> Coding:
        """How whoever sends such a frame writes its values; the draws are for stochastic rounding alone."""
        return Coding(self.agreed[kind], draws() if self.wire.rounding == "stochastic" else None)

    @cached_property
    def largest_frame(self) -> int:
        """No frame can be longer, in bytes, whichever way it goes."""
        shapes = [tuple(map(_limit, shape)) for shape in self.tensor_shapes.values()]
        matrices = [(self.num_classes, self.row_width or 0), *map(as_matrix, shapes)]
        payload = max(sum(values.payload(*matrix) for matrix in matrices) for values in (self.up, self.down))
        names = sum(len(name.encode()) + 4 * len(shape) + 3 for name, shape in self.tensor_shapes.items())
        return payload + names + self.num_classes + HEADER_BYTES + _METRICS_ROOM

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
        if len(shape) != len(due) or not all(map(_fits, shape, due)):
            words = " × ".join(f"up to {size.limit}" if isinstance(size, AtMost) else str(size) for size in due)
            raise WireError(f"tensor {name!r}: its shape is {' × '.join(map(str, shape))}, not {words}")

    def check_all_there(self, tensors: Collection[str]) -> None:
        """Where tensors travel, all of them do: each whole or as its parts, not both."""
        parts = {part for several in self.tensor_parts.values() for part in several}
        for name in self.tensor_shapes:
            if name in parts:
                continue
            forms = [(name,), self.tensor_parts.get(name, ())]
            found = [form for form in forms if form and any(piece in tensors for piece in form)]
            if len(found) != 1 or not all(piece in tensors for piece in found[0]):
                raise WireError(f"tensor {name!r}: it has to be there once, whole{' or in parts' if forms[1] else ''}")

    def check_parts(self, tensors: Mapping[str, Tensor]) -> None:
        """What varies in size is equally large in all parts of a tensor, or they would not make one."""
        for name, parts in self.tensor_parts.items():
            sizes = {
                size
                for part in parts
                if part in tensors
                for size, due in zip(tensors[part].shape, self.tensor_shapes[part], strict=True)
                if isinstance(due, AtMost)
            }
            if len(sizes) > 1:
                found = " and ".join(map(str, sorted(sizes)))
                raise WireError(f"tensor {name!r}: its parts do not fit each other, their common size is {found}")


def _limit(size: int | AtMost) -> int:
    return size.limit if isinstance(size, AtMost) else size


def _fits(found: int, due: int | AtMost) -> bool:
    return 0 < found <= due.limit if isinstance(due, AtMost) else found == due


def open_frame(
    frame: bytes, expected: Expectation, client: int, round_number: int | None, kinds: Collection[Kind]
) -> Decoded:
    """The message of a frame that is what was expected; `inspect_frame` says how that is held."""
    header, sections = inspect_frame(frame, expected, client, round_number, kinds)
    return Decoded(header, sections.message(), sections.payload_bytes, len(frame))


def inspect_frame(
    frame: bytes, expected: Expectation, client: int, round_number: int | None, kinds: Collection[Kind]
) -> tuple[Header, Sections]:
    """Take a frame apart and hold it to what was expected; raises a WireError that names the client and the field.

    The rows of what it returns are still a view of the frame.

    What the header says is checked before the body is touched. The server knows which round it is; a client learns it
    from the frame (`round_number` None).
    """
    try:
        if len(frame) > expected.largest_frame:
            raise WireError(f"length: {len(frame)} bytes, where no frame has more than {expected.largest_frame}")
        header, body = unpack(frame)
        _check_header(header, expected, client, round_number, kinds)
        sections = decode_body(body, expected, expected.agreed[header.kind])
        if sections.tensors:
            expected.check_all_there(sections.tensors)
            expected.check_parts(sections.tensors)
        _check_values_of(sections)
    except WireError as error:
        when = "" if round_number is None else f", round {round_number}"
        raise WireError(f"frame of client {client}{when}, refused: {error}") from error
    return header, sections


def _check_header(
    header: Header, expected: Expectation, client: int, round_number: int | None, kinds: Collection[Kind]
) -> None:
    if header.digest != expected.digest:
        raise WireError(
            "digest: the other side runs another federation; compare algorithm, classes, prototype and CPS "
            "dimension, scaling, masks, mask seed and value types on both ends"
        )
    if header.kind not in kinds:
        raise WireError(f"kind: {header.kind.name.lower()} where {_names(kinds)} was due")
    if header.client != client:
        raise WireError(f"client: the frame says client {header.client}")
    if round_number is not None and header.round_number != round_number:
        raise WireError(f"round: the frame says round {header.round_number}")


def _names(kinds: Iterable[Kind]) -> str:
    return " or ".join(kind.name.lower() for kind in kinds)


def _check_values_of(sections: Sections) -> None:
    rows, tensors, metrics, _ = sections
    if rows is not None and not surely_good(rows.values):
        check_row_by_row("rows", rows.values, rows.classes)
    for name, tensor in tensors.items():
        values = tensor.numpy().reshape(1, -1)
        if not surely_good(values):
            check_row_by_row(f"tensor {name!r}", values, _FIRST)
    for name, value in metrics.items():
        if not math.isfinite(value):
            raise WireError(f"metric {name!r}: {value} is not a number that can be recorded; did training diverge?")
        if abs(value) > ABSURD_METRIC:
            raise WireError(f"metric {name!r}: {value:g} is absurd")


def surely_good(values: NDArray[np.float32]) -> bool:
    """Whether one dot product shows that all is well; False decides nothing.

    Σ x² is no number where an x is none, and bounds the square of every row's norm. Computed in float32 from n values
    it is off by a share of at most n·2⁻²⁴, here 1/16: where it is below a quarter of the limit, so is every row.
    """
    if values.size > _MOST_AT_ONCE:
        return False
    return float(np.vdot(values, values)) < _SURELY_BELOW  # vdot, unlike dot, overflows without a warning


def check_row_by_row(what: str, values: NDArray[np.float32], rows: NDArray[np.intp]) -> None:
    """Refuse values (n, w) that are no numbers, and rows that are absurdly long; `rows` says which is which."""
    tensor = torch.from_numpy(values.astype(np.float32))
    for row in (~tensor.isfinite().all(1)).nonzero()[:1, 0].tolist():
        kind = "NaN" if bool(tensor[row].isnan().any()) else "infinity"
        raise WireError(f"{what}: {kind} in row {rows[row]}; did training diverge? A smaller learning rate may help")
    norms = torch.linalg.vector_norm(tensor.double(), dim=1)
    if norms.numel() and float(norms.max()) > ABSURD_NORM:
        raise WireError(f"{what}: norm {float(norms.max()):.3g} of row {rows[int(norms.argmax())]} is absurd")
