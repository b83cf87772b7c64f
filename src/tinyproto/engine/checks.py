"""Checks on both ways of a round: answers before they change anything, and values before they are sent.

The server's state is broadcast to all clients, so an aggregate that clients would refuse never becomes the state: the
uploads that cause it are dropped, or the last state stays.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from torch import Tensor

from tinyproto.algorithms.base import ClientInfo
from tinyproto.core.prototypes import Message, PackedRows
from tinyproto.core.task import State
from tinyproto.engine.measure import RULES
from tinyproto.errors import WireError
from tinyproto.wire.codec import Sections
from tinyproto.wire.frame import Kind
from tinyproto.wire.validate import (
    Expectation,
    inspect_frame,
    metrics_problem,
    rows_problem,
    surely_good,
    tensor_problem,
)
from tinyproto.wire.values import ValueType, as_matrix

MOST_SAMPLES = 2**31
"""Sample counts stay below this, so that everything computed from them is finite."""

SUSPECT_NORM = 1e7
"""An upload below it (L2, all rows together) is folded into a running sum at once; a longer one can still be dropped.

10 000 samples of a class and features of norm 100 stay below.
"""

_CORRECT = tuple(f"correct_{rule}" for rule in RULES)
SCORES = frozenset(("test_samples", *_CORRECT))
HELLO = ("train_samples", "counted_samples", "counted_classes")


def inspect_answer(
    frame: bytes, expected: Expectation, client: int, round_number: int, kinds: tuple[Kind, ...]
) -> Sections:
    """Return the contents of a client's answer; raise a WireError if any of it is invalid."""
    _, sections = inspect_frame(frame, expected, client, round_number, kinds)
    check_scores(client, sections.metrics)
    return sections


def check_scores(client: int, metrics: Mapping[str, float]) -> None:
    """Raise a WireError if a client reports more correct test samples than it has."""
    if SCORES.isdisjoint(metrics):
        return
    samples = float(metrics.get("test_samples", 0.0))
    for name in _CORRECT:
        correct = float(metrics.get(name, 0.0))
        if not (correct <= samples and is_count(correct) and is_count(samples)):
            raise WireError(f"frame of client {client}, refused: {correct:g} of {samples:g} test samples correct")


def check_held(client: ClientInfo, rows: PackedRows, round_number: int) -> None:
    """Raise a WireError if an upload has rows of more classes than the client's hello counted."""
    if len(rows.classes) > client.counted_classes:
        raise WireError(
            f"frame of client {client.id}, round {round_number}, refused: rows of {len(rows.classes)} classes, but its "
            f"hello counted {client.counted_classes}"
        )


def hello(client: ClientInfo) -> Message:
    """Return a client's hello: sizes as the scaling counts them, never the sizes of classes."""
    return Message(metrics={name: float(getattr(client, name)) for name in HELLO})


def read_hello(client: int, message: Message, num_classes: int) -> ClientInfo:
    """Return what a client reports about itself; raise a WireError if it is impossible."""
    said = dict(message.metrics)
    if sorted(said) != sorted(HELLO) or not all(is_count(value) for value in said.values()):
        raise WireError(
            f"hello of client {client}, refused: it must report {', '.join(HELLO)} as whole numbers from 0 and "
            f"below {MOST_SAMPLES}"
        )
    train, counted, classes = (int(said[name]) for name in HELLO)
    if not (train <= counted and classes <= min(num_classes, counted)):
        raise WireError(
            f"hello of client {client}, refused: {train} training samples, {counted} counted samples and {classes} of "
            f"{num_classes} classes contradict each other"
        )
    return ClientInfo(client, train, counted, classes)


def is_count(value: float) -> bool:
    """Return True if a number can be a count of samples."""
    return 0 <= value < MOST_SAMPLES and float(value).is_integer()


def unsendable(message: Message, values: ValueType, limit: float) -> str | None:
    """Return why a receiver of norms up to a limit may refuse a message, or None if it accepts any rounding of it."""
    problem = metrics_problem(message.metrics)
    if problem is None and message.rows is not None:
        rows = message.rows
        present = rows.values.detach()[rows.present].cpu().numpy()
        classes = rows.present.nonzero()[:, 0].cpu().numpy()
        problem = rows_problem(present, classes, limit / values.stretch(rows.width))
    for name, tensor in message.tensors.items():
        width = as_matrix(tuple(tensor.shape))[1]
        problem = problem or tensor_problem(name, tensor, limit / values.stretch(width))
    return problem


def not_finite(state: Mapping[str, Tensor]) -> str | None:
    """Return which tensor of a state has values that are not finite, or None."""
    bad = [name for name, value in state.items() if value.is_floating_point() and not bool(value.isfinite().all())]
    return f"{bad[0]!r} of the server's state is not finite" if bad else None


def is_suspect(rows: PackedRows) -> bool:
    """Return True if an upload is long enough to spoil a sum."""
    return not surely_good(rows.values, 2 * SUSPECT_NORM)


def length(message: Message) -> float:
    """Return the norm of the longest row or tensor of an upload."""
    rows = [] if message.rows is None else [message.rows.values[message.rows.present].double().norm(dim=1)]
    norms = [norm for part in rows for norm in part.tolist()]
    norms += [float(tensor.double().norm()) for tensor in message.tensors.values()]
    return float(np.max(norms, initial=0.0))


class Settled(NamedTuple):
    """The next state, the uploads left out of it, and what was wrong with them; no state if none can be sent."""

    state: State | None
    dropped: Sequence[int] = ()
    problem: str = ""


def settle(
    aggregate: Callable[[Collection[int]], State], problem_of: Callable[[State], str | None], suspects: Iterable[int]
) -> Settled:
    """Aggregate all uploads, or all but the fewest suspects, the worst first, that give a state to send.

    `aggregate` takes the clients to leave out. Their number is found by bisection, so that few aggregations are made.
    Suspects are read only if there is a problem.
    """
    state = aggregate(())
    problem = problem_of(state)
    if problem is None:
        return Settled(state)
    found, suspects = Settled(None, (), problem), list(suspects)
    low, high = 1, len(suspects)
    while low <= high:
        middle = (low + high) // 2
        state = aggregate(suspects[:middle])
        if problem_of(state) is None:
            found, high = Settled(state, tuple(suspects[:middle]), problem), middle - 1
        else:
            low = middle + 1
    return found
