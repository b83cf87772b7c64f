"""Uploads on their way in: decoded, held to what was expected, and folded in, one at a time.

A frame is refused before it has changed anything.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping

from tinyproto.algorithms.base import ClientInfo
from tinyproto.algorithms.streaming import Gathered
from tinyproto.core.prototypes import PackedRows
from tinyproto.engine.evaluate import RULES
from tinyproto.errors import WireError
from tinyproto.wire.codec import Sections
from tinyproto.wire.frame import Kind
from tinyproto.wire.validate import Expectation, inspect_frame

_CORRECT = tuple(f"correct_{rule}" for rule in RULES)
_SCORES = frozenset(("test_samples", *_CORRECT))
_UPDATES = (Kind.UPDATE,)
MOST_SAMPLES = 2**31
"""No client has as many; what is computed from smaller numbers stays finite."""


def inspect_answer(
    frame: bytes, expected: Expectation, client: int, round_number: int, kinds: tuple[Kind, ...]
) -> Sections:
    """What a client's answer says, once all of it was found good."""
    _, sections = inspect_frame(frame, expected, client, round_number, kinds)
    check_scores(client, sections.metrics)
    return sections


def check_scores(client: int, metrics: Mapping[str, float]) -> None:
    """No client can be right more often than it has test samples."""
    if _SCORES.isdisjoint(metrics):
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


def is_count(value: float) -> bool:
    """Whether so many samples can be there."""
    return 0 <= value < MOST_SAMPLES and float(value).is_integer()


class Intake:
    """Takes in the uploads of a round as they arrive, in memory that does not grow with their number.

    An edge aggregator is one of these: it answers for some of the clients, and what it has `gathered` is merged with
    what others have (`algorithms/streaming.py: merge_tree`) before the server concludes the round. It does not remember
    who has sent, so whoever calls it passes on one upload of each client.
    """

    def __init__(self, expected: Expectation, round_number: int, gathered: Gathered) -> None:
        self.expected = expected
        self.round_number = round_number
        self.gathered = gathered

    def take(self, client: ClientInfo, frame: bytes) -> Mapping[str, float]:
        """Fold one upload in; the client's metrics, or a WireError and nothing has changed."""
        sections = inspect_answer(frame, self.expected, client.id, self.round_number, _UPDATES)
        if sections.rows is not None:
            check_held(client, sections.rows, self.round_number)
            self.gathered.add(client, sections.rows)
        return sections.metrics


class InTurn:
    """Folds uploads in order of client id, whatever the order they arrive in, so that a run repeats to the bit.

    Who comes early waits: on a channel that answers in order nobody does, and then memory does not grow with the
    number of clients.
    """

    def __init__(self, clients: Iterable[ClientInfo], gathered: Gathered) -> None:
        self.gathered = gathered
        self._due = deque(sorted(clients, key=lambda client: client.id))
        self._early: dict[int, PackedRows | None] = {}

    def arrived(self, client: int, rows: PackedRows | None) -> None:
        """A client's rows, or None from one that sent none or was refused."""
        self._early[client] = rows
        while self._due and self._due[0].id in self._early:
            self._fold(self._due.popleft())

    def close(self) -> Gathered:
        """Nobody else will come: fold in all who waited for someone who did not."""
        for client in self._due:
            self._fold(client)
        self._due.clear()
        return self.gathered

    def _fold(self, client: ClientInfo) -> None:
        rows = self._early.pop(client.id, None)
        if rows is not None:
            self.gathered.add(client, rows)
