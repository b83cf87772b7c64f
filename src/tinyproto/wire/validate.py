"""What a well-formed frame may still not say: another federation, a wrong round, values no training gives."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from tinyproto.core.messages import Message
from tinyproto.errors import WireError
from tinyproto.wire.codec import Decoded, decode
from tinyproto.wire.frame import Kind

ABSURD_NORM = 1e9
"""No honest row or tensor is longer: count-scaled prototypes of a million samples stay far below."""


@dataclass(frozen=True)
class Expectation:
    """What a federation's frames look like, whoever sends them."""

    digest: bytes
    num_classes: int
    row_width: int | None
    tensor_names: frozenset[str] = field(default_factory=frozenset)


def open_frame(
    frame: bytes, expected: Expectation, client: int, round_number: int | None, kinds: Collection[Kind]
) -> Decoded:
    """Decode a frame and hold it to what was expected; raises a WireError that names the client and the field.

    The server knows which round it is; a client learns it from the frame (`round_number` None).
    """
    try:
        shape = None if expected.row_width is None else (expected.num_classes, expected.row_width)
        decoded = decode(frame, shape)
        _check_header(decoded, expected, client, round_number, kinds)
        _check_message(decoded.message, expected)
    except WireError as error:
        when = "" if round_number is None else f", round {round_number}"
        raise WireError(f"frame of client {client}{when}, refused: {error}") from error
    return decoded


def _check_header(
    decoded: Decoded, expected: Expectation, client: int, round_number: int | None, kinds: Collection[Kind]
) -> None:
    header = decoded.header
    if header.digest != expected.digest:
        raise WireError(
            "digest: the other side runs another federation; compare algorithm, classes, prototype and CPS "
            "dimension, masks and mask seed on both ends"
        )
    if header.kind not in kinds:
        raise WireError(f"kind: {header.kind.name.lower()} where {_names(kinds)} was due")
    if header.client != client:
        raise WireError(f"client: the frame says client {header.client}")
    if round_number is not None and header.round_number != round_number:
        raise WireError(f"round: the frame says round {header.round_number}")


def _names(kinds: Iterable[Kind]) -> str:
    return " or ".join(kind.name.lower() for kind in kinds)


def _check_message(message: Message, expected: Expectation) -> None:
    if message.rows is not None:
        if expected.row_width is None:
            raise WireError("rows: this algorithm exchanges none")
        _check_values("rows", message.rows.values)
    for name, tensor in message.tensors.items():
        if name not in expected.tensor_names:
            raise WireError(f"tensor {name!r}: this algorithm exchanges no such tensor")
        _check_values(f"tensor {name!r}", tensor.reshape(1, -1))
    for name, value in message.metrics.items():
        if value != value or abs(value) == float("inf"):
            raise WireError(f"metric {name!r}: {value} is not a number that can be recorded; did training diverge?")


def _check_values(what: str, values: Tensor) -> None:
    for row in (~values.isfinite().all(1)).nonzero()[:1, 0].tolist():
        kind = "NaN" if bool(values[row].isnan().any()) else "infinity"
        raise WireError(f"{what}: {kind} in row {row}; did training diverge? A smaller learning rate may help")
    norms = torch.linalg.vector_norm(values.double(), dim=1)
    if norms.numel() and float(norms.max()) > ABSURD_NORM:
        raise WireError(f"{what}: norm {float(norms.max()):.3g} of row {int(norms.argmax())} is absurd")
