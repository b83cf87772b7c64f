"""Values are held to the receiver's rules before they are sent: a client's upload, and the server's next state.

What the server broadcasts becomes every client's, so an aggregate that clients would refuse never becomes the state:
the uploads to blame are dropped, or the state of the round before stays.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from torch import Tensor

from tinyproto.core.messages import Message
from tinyproto.core.prototypes import PackedRows
from tinyproto.core.task import State
from tinyproto.wire.validate import metrics_problem, rows_problem, surely_good, tensor_problem
from tinyproto.wire.values import ValueType, as_matrix

SUSPECT_NORM = 1e7
"""An upload below it (L2, all rows together) is folded into a running sum at once; a longer one can still be dropped.

10 000 samples of a class and features of norm 100 stay below.
"""


def unsendable(message: Message, values: ValueType, limit: float) -> str | None:
    """Say why whoever accepts norms up to a limit may refuse a message; None where no rounding makes them refuse it."""
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
    """Name the first tensor of a state that is not all finite numbers."""
    bad = [name for name, value in state.items() if value.is_floating_point() and not bool(value.isfinite().all())]
    return f"{bad[0]!r} of the server's state is not finite" if bad else None


def is_suspect(rows: PackedRows) -> bool:
    """Return True where an upload is long enough to spoil a sum."""
    return not surely_good(rows.values, 2 * SUSPECT_NORM)


def length(message: Message) -> float:
    """Return the norm of the longest row or tensor of an upload."""
    rows = [] if message.rows is None else [message.rows.values[message.rows.present].double().norm(dim=1)]
    norms = [norm for part in rows for norm in part.tolist()]
    norms += [float(tensor.double().norm()) for tensor in message.tensors.values()]
    return float(np.max(norms, initial=0.0))


class Settled(NamedTuple):
    """The next state, the uploads it does without, and what was wrong with them; no state where none can be sent."""

    state: State | None
    dropped: Sequence[int] = ()
    problem: str = ""


def settle(
    aggregate: Callable[[Collection[int]], State], problem_of: Callable[[State], str | None], suspects: Sequence[int]
) -> Settled:
    """Aggregate all uploads, or all but the fewest of the suspects, the worst first, that give a state to send.

    `aggregate` is given the clients to leave out. How many is found by bisection, so that few aggregations are made.
    """
    state = aggregate(())
    problem = problem_of(state)
    if problem is None:
        return Settled(state)
    found = Settled(None, (), problem)
    low, high = 1, len(suspects)
    while low <= high:
        middle = (low + high) // 2
        state = aggregate(suspects[:middle])
        if problem_of(state) is None:
            found, high = Settled(state, tuple(suspects[:middle]), problem), middle - 1
        else:
            low = middle + 1
    return found
