"""Check frames against the federation: checksum, round, client, shapes, and values that training can give."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tinyproto.core.prototypes import AtMost, Shape
from tinyproto.errors import DivergedError, WireError
from tinyproto.wire.codec import METRIC_CODES, Decoded, Sections, decode_body
from tinyproto.wire.frame import HEADER_BYTES, Body, Header, Kind, unpack
from tinyproto.wire.values import EXACT, FLOAT32, VALUE_TYPES, Coding, ValueType, WireSettings, as_matrix

LONGEST_UPLOAD = 1e8
"""Largest L2 norm of a client's row or tensor; count-scaled prototypes of 100 000 samples are far below."""

LONGEST_DOWNLOAD = 1e9
"""Largest L2 norm from the server; it is greater so that results of valid uploads can always be sent."""

LARGEST_METRIC = 1e100
"""Largest magnitude of a metric: a float32 loss is far below, and a mean over all clients stays finite."""

_METRICS_BYTES = 4096  # bytes
_MOST_AT_ONCE = 1 << 20
_COUNTS = METRIC_CODES.keys() - {"cross_entropy", "regulariser"}
_FROM_CLIENTS = (Kind.HELLO, Kind.UPDATE, Kind.EVALUATION)


@dataclass(frozen=True)
class Expectation:
    """The form of a federation's frames in both directions."""

    digest: bytes
    num_classes: int
    row_width: int | None  # None: no rows are exchanged
    tensor_shapes: Mapping[str, Shape] = field(default_factory=dict)
    tensor_parts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # tensors that may replace one
    wire: WireSettings = EXACT
    remedies: tuple[str, ...] = ("train.learning_rate",)  # keys to lower if training diverges, in this order

    @cached_property
    def up(self) -> ValueType:
        """Return the value type of uploads."""
        return VALUE_TYPES[self.wire.up]

    @cached_property
    def down(self) -> ValueType:
        """Return the value type of downloads."""
        return VALUE_TYPES[self.wire.down]

    @cached_property
    def agreed(self) -> Sequence[ValueType]:
        """Return the value type of each kind of frame, indexed by kind; a hello has only metrics."""
        types = {Kind.TRAIN: self.down, Kind.EVALUATE: self.down, Kind.UPDATE: self.up, Kind.EVALUATION: self.up}
        return [types.get(Kind(number), FLOAT32) if number else FLOAT32 for number in range(max(Kind) + 1)]

    def coding(self, kind: Kind, draws: Callable[[], torch.Generator]) -> Coding:
        """Return the encoding of a frame's values; `draws` is called only for stochastic rounding."""
        return Coding(self.agreed[kind], draws() if self.wire.rounding == "stochastic" else None)

    @cached_property
    def largest_frame(self) -> int:
        """Return the largest size of a frame in bytes, in either direction."""
        shapes = [tuple(map(_limit, shape)) for shape in self.tensor_shapes.values()]
        matrices = [(self.num_classes, self.row_width or 0), *map(as_matrix, shapes)]
        payload = max(sum(values.payload(*matrix) for matrix in matrices) for values in (self.up, self.down))
        names = sum(len(name.encode()) + 4 * len(shape) + 3 for name, shape in self.tensor_shapes.items())
        return payload + names + self.num_classes + HEADER_BYTES + _METRICS_BYTES

    def check_rows(self, num_classes: int, width: int) -> None:
        """Raise WireError if the algorithm exchanges no rows or rows of another shape."""
        if self.row_width is None:
            raise WireError("rows: this algorithm exchanges none")
        if (num_classes, width) != (self.num_classes, self.row_width):
            due = f"{self.num_classes} × {self.row_width}"
            raise WireError(f"rows: classes × width is {num_classes} × {width}, not {due}")

    def check_tensor(self, name: str, shape: tuple[int, ...]) -> None:
        """Raise WireError if the tensor is unknown or has another shape."""
        due = self.tensor_shapes.get(name)
        if due is None:
            raise WireError(f"tensor {name!r}: this algorithm exchanges no such tensor")
        if len(shape) != len(due) or not all(map(_fits, shape, due)):
            words = " × ".join(f"up to {size.limit}" if isinstance(size, AtMost) else str(size) for size in due)
            raise WireError(f"tensor {name!r}: its shape is {' × '.join(map(str, shape))}, not {words}")

    def check_all_there(self, tensors: Collection[str]) -> None:
        """Raise WireError unless each tensor is there once, whole or in parts.

        A tensor whose number of rows varies may be missing: it then has none.
        """
        parts = {part for several in self.tensor_parts.values() for part in several}
        for name, shape in self.tensor_shapes.items():
            if name in parts or (shape and isinstance(shape[0], AtMost)):
                continue
            forms = [(name,), self.tensor_parts.get(name, ())]
            found = [form for form in forms if form and any(piece in tensors for piece in form)]
            if len(found) != 1 or not all(piece in tensors for piece in found[0]):
                raise WireError(f"tensor {name!r}: it has to be there once, whole{' or in parts' if forms[1] else ''}")

    def check_parts(self, tensors: Mapping[str, Tensor]) -> None:
        """Raise WireError if the parts of a tensor differ in their common size."""
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
                raise WireError(f"tensor {name!r}: its parts do not fit, their common size is {found}")


def _limit(size: int | AtMost) -> int:
    return size.limit if isinstance(size, AtMost) else size


def _fits(found: int, due: int | AtMost) -> bool:
    return 0 < found <= due.limit if isinstance(due, AtMost) else found == due


def open_frame(
    frame: bytes, expected: Expectation, client: int, round_number: int | None, kinds: Collection[Kind],
    last: Decoded | None = None,
) -> Decoded:  # fmt: skip
    """Decode and check a frame as `inspect_frame` does, and return its message.

    If only the header differs from that of the `last` frame, the message is that frame's: it is not decoded again.
    """
    if last is not None and last.body.is_in(frame):
        header, _ = _unpacked(frame, expected, client, round_number, kinds, last.body)
        if header.kind is last.header.kind:
            return replace(last, header=header)
    header, sections = inspect_frame(frame, expected, client, round_number, kinds)
    body = memoryview(frame)[HEADER_BYTES:]
    return Decoded(header, sections.message(), sections.payload_bytes, len(frame), Body(body))


def inspect_frame(
    frame: bytes, expected: Expectation, client: int, round_number: int | None, kinds: Collection[Kind]
) -> tuple[Header, Sections]:
    """Decode a frame and check it; raise a WireError that names the client and the field. Rows are a view of the frame.

    The header is checked before the body is read. The server knows the round; a client learns it from the frame
    (`round_number` None).
    """
    header, body = _unpacked(frame, expected, client, round_number, kinds)
    try:
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


def _unpacked(
    frame: bytes, expected: Expectation, client: int, round_number: int | None, kinds: Collection[Kind],
    known: Body | None = None,
) -> tuple[Header, memoryview]:  # fmt: skip
    try:
        if len(frame) > expected.largest_frame:
            raise WireError(f"length: {len(frame)} bytes, but frames have at most {expected.largest_frame}")
        header, body = unpack(frame, expected.digest, known)
        _check_header(header, client, round_number, kinds)
    except WireError as error:
        raise _refused(client, round_number, str(error)) from error
    return header, body


def _refused(client: int, round_number: int | None, why: str) -> WireError:
    when = "" if round_number is None else f", round {round_number}"
    return WireError(f"frame of client {client}{when}, refused: {why}")


def diverged(client: int, round_number: int, problem: str, remedies: Sequence[str]) -> DivergedError:
    """Return an error with the client whose training diverged, the round, the value and the remedy."""
    return DivergedError(f"training diverged at client {client} in round {round_number} ({problem}); {lower(remedies)}")


def lower(remedies: Sequence[str]) -> str:
    """Return the advice to lower these keys, in this order."""
    return f"lower {', then '.join(remedies)}"


def _check_header(header: Header, client: int, round_number: int | None, kinds: Collection[Kind]) -> None:
    if header.kind not in kinds:
        due = " or ".join(kind.name.lower() for kind in kinds)
        raise WireError(f"kind: {header.kind.name.lower()} instead of {due}")
    if header.client != client:
        raise WireError(f"client: the frame says client {header.client}")
    if round_number is not None and header.round_number != round_number:
        raise WireError(f"round: the frame says round {header.round_number}")


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
    """Describe the first metric that is not finite or too large."""
    bad = [name for name, value in metrics.items() if not abs(value) <= LARGEST_METRIC]
    return f"{'metric' if bad[0] in _COUNTS else 'loss'} {bad[0]} is {metrics[bad[0]]:.3g}" if bad else None


def rows_problem(values: NDArray[np.float32], classes: NDArray[np.intp], limit: float) -> str | None:
    """Describe the first row of values (n, w) that is not finite, or else the longest if it exceeds the limit."""
    return None if surely_good(values, limit) else row_by_row(values, classes, limit)


def row_by_row(values: NDArray[np.float32], classes: NDArray[np.intp], limit: float) -> str | None:
    """Do the same row by row, if one dot product does not decide."""
    tensor = torch.from_numpy(values.astype(np.float32))
    for row in (~tensor.isfinite().all(1)).nonzero()[:1, 0].tolist():
        return f"{_kind(tensor[row])} in the prototype of class {classes[row]}"
    norms = torch.linalg.vector_norm(tensor.double(), dim=1)
    if not norms.numel() or float(norms.max()) <= limit:
        return None
    return f"norm {float(norms.max()):.3g} of the prototype of class {classes[int(norms.argmax())]}, above {limit:.3g}"


def tensor_problem(name: str, tensor: Tensor, limit: float) -> str | None:
    """Describe a tensor with values that are not finite or with a norm above the limit."""
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
    """Return True if one dot product shows that all values are finite and no row exceeds the limit.

    False decides nothing. Σ x² is NaN or infinite if an x is, and bounds the square of each row's norm. Its relative
    error in float32 with n values is at most n·2⁻²⁴, here 1/16: if it is below a quarter of the limit's square, all
    rows are below the limit.
    """
    if values.size > _MOST_AT_ONCE:
        return False
    return float(np.vdot(values, values)) < limit * limit / 4  # vdot, unlike dot, overflows without a warning
