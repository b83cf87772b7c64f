"""What a well-formed frame may still not say: another federation, a wrong round, values no training gives."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tinyproto.core.prototypes import AtMost, Shape
from tinyproto.errors import WireError
from tinyproto.wire.codec import METRIC_CODES, Decoded, Sections, decode_body
from tinyproto.wire.frame import HEADER_BYTES, Header, Kind, unpack
from tinyproto.wire.values import EXACT, FLOAT32, VALUE_TYPES, Coding, ValueType, WireSettings, as_matrix

LONGEST_UPLOAD = 1e8
"""No honest row or tensor of a client is longer (L2): count-scaled prototypes of 100 000 samples stay far below."""

LONGEST_DOWNLOAD = 1e9
"""Clients accept longer ones from the server, so that what it makes of good uploads can be sent."""

ABSURD_METRIC = 1e100
"""A loss of float32 stays far below, and a mean over all clients stays finite."""

_METRICS_ROOM = 4096  # bytes
_MOST_AT_ONCE = 1 << 20
_COUNTS = METRIC_CODES.keys() - {"cross_entropy", "regulariser"}
_FROM_CLIENTS = (Kind.HELLO, Kind.UPDATE, Kind.EVALUATION)


@dataclass(frozen=True)
class Expectation:
    """What a federation's frames look like, whoever sends them."""

    digest: bytes
    num_classes: int
    row_width: int | None  # None where no rows travel
    tensor_shapes: Mapping[str, Shape] = field(default_factory=dict)
    tensor_parts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # tensors that may travel in one's place
    wire: WireSettings = EXACT
    remedies: tuple[str, ...] = ("train.learning_rate",)  # keys to lower where training diverges, in this order

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
    except WireError as error:
        raise _refused(client, round_number, str(error)) from error
    problem = _problem_of(sections, header.kind)
    if problem is not None:
        if header.kind is Kind.UPDATE:
            raise diverged(client, header.round_number, problem, expected.remedies)
        raise _refused(client, round_number, problem)
    return header, sections


def _refused(client: int, round_number: int | None, why: str) -> WireError:
    when = "" if round_number is None else f", round {round_number}"
    return WireError(f"frame of client {client}{when}, refused: {why}")


def diverged(client: int, round_number: int, problem: str, remedies: Sequence[str]) -> WireError:
    """Return the error that says whose training diverged, when, by which value, and what to do about it."""
    return WireError(f"training diverged at client {client} in round {round_number} ({problem}); {lower(remedies)}")


def lower(remedies: Sequence[str]) -> str:
    """Say which keys to lower, in which order."""
    return f"lower {', then '.join(remedies)}"


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


def _problem_of(sections: Sections, kind: Kind) -> str | None:
    limit = LONGEST_UPLOAD if kind in _FROM_CLIENTS else LONGEST_DOWNLOAD
    rows, tensors, metrics, _ = sections
    problem = metrics_problem(metrics)
    if problem is None and rows is not None:
        problem = rows_problem(rows.values, rows.classes, limit)
    for name, tensor in tensors.items():
        problem = problem or tensor_problem(name, tensor, limit)
    return problem


def metrics_problem(metrics: Mapping[str, float]) -> str | None:
    """Name the first metric that is not a number that can be recorded."""
    bad = [name for name, value in metrics.items() if not abs(value) <= ABSURD_METRIC]
    return f"{'metric' if bad[0] in _COUNTS else 'loss'} {bad[0]} is {metrics[bad[0]]:.3g}" if bad else None


def rows_problem(values: NDArray[np.float32], classes: NDArray[np.intp], limit: float) -> str | None:
    """Name the first row of values (n, w) that is no numbers, or the longest if it is longer than the limit."""
    return None if surely_good(values, limit) else row_by_row(values, classes, limit)


def row_by_row(values: NDArray[np.float32], classes: NDArray[np.intp], limit: float) -> str | None:
    """The same, where one look at all values does not decide."""
    tensor = torch.from_numpy(values.astype(np.float32))
    for row in (~tensor.isfinite().all(1)).nonzero()[:1, 0].tolist():
        return f"{_kind(tensor[row])} in the prototype of class {classes[row]}"
    norms = torch.linalg.vector_norm(tensor.double(), dim=1)
    if not norms.numel() or float(norms.max()) <= limit:
        return None
    return f"norm {float(norms.max()):.3g} of the prototype of class {classes[int(norms.argmax())]}, above {limit:.3g}"


def tensor_problem(name: str, tensor: Tensor, limit: float) -> str | None:
    """Say what is wrong with a tensor: values that are no numbers, or a norm above the limit."""
    values = tensor.detach().cpu().reshape(-1)
    if surely_good(values.numpy(), limit):
        return None
    if not bool(values.isfinite().all()):
        return f"{_kind(values)} in tensor {name!r}"
    norm = float(torch.linalg.vector_norm(values.double()))
    return None if norm <= limit else f"norm {norm:.3g} of tensor {name!r}, above {limit:.3g}"


def _kind(values: Tensor) -> str:
    return "NaN" if bool(values.isnan().any()) else "infinity"


def surely_good(values: NDArray[np.float32], limit: float) -> bool:
    """Return True where one dot product shows that all values are finite and no row passes the limit.

    False decides nothing. Σ x² is no number where an x is none, and bounds the square of every row's norm. Computed in
    float32 from n values it is off by a share of at most n·2⁻²⁴, here 1/16: where it is below a quarter of the limit's
    square, every row is below the limit.
    """
    if values.size > _MOST_AT_ONCE:
        return False
    return float(np.vdot(values, values)) < limit * limit / 4  # vdot, unlike dot, overflows without a warning
