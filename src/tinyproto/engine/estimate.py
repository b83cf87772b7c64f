"""The memory that each trainer takes on a GPU, estimated from shapes before the first step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

from tinyproto.core.task import FEATURE_BATCH
from tinyproto.models.count import StepSize

Known = Literal["eager", "graphed", "stacked"]

FEATURE_BATCHES = (FEATURE_BATCH, FEATURE_BATCH // 4, FEATURE_BATCH // 16)
"""Samples of a client that may pass through a network at once for features."""

TEMPORARY = 4
"""Results of the widest layer that exist at once besides those kept for the backward pass: gradients and copies."""

OTHER_STREAMS = 2
"""Scratch memories of matrix products besides those of captured steps: of the default stream, forward and backward."""


class Kind(NamedTuple):
    """The clients that have one network."""

    trained: int  # most that train at once
    evaluated: int  # most that are evaluated at once
    size: StepSize  # with the networks that an algorithm adds


class Way(NamedTuple):
    """A way to run, and the bytes that it takes."""

    trainer: Known
    width: int | None  # most clients of a stack; None: no limit
    feature_batch: int
    bytes: int


class Needs(NamedTuple):
    """What a run takes of a GPU: samples and clients for as long as it lasts, and steps and features."""

    resident: int  # samples, networks of clients, copies of them
    batch: int  # samples of a step
    kinds: Sequence[Kind]
    scratch: int = 0  # of matrix products, per stream and thread

    def ways(self, fastest: Known) -> Iterator[Way]:
        """Yield the ways to run from the fastest on, each with smaller batches for features where that helps."""
        if fastest == "stacked":
            widths = [max(max(kind.trained, kind.evaluated) for kind in self.kinds)]
            while widths[-1] > 1:
                widths.append(-(-widths[-1] // 2))
            for width in widths:
                limit = width if width < widths[0] else None
                for features in FEATURE_BATCHES:
                    taken = self.stacked(width, features) + self._beside_stacks(width, features)
                    yield Way("stacked", limit, features, taken)
        one_by_one: tuple[Known, ...] = ("eager",) if fastest == "eager" else ("graphed", "eager")
        for trainer in one_by_one:
            for features in FEATURE_BATCHES:
                yield Way(trainer, None, features, self.one_by_one(trainer, features) + self._scratch(trainer))

    def stacked(self, width: int, features: int) -> int:
        """Return the bytes for stacks of at most `width` clients; each network's stack keeps its own."""
        steps = sum(
            min(width, kind.trained) * (2 * kind.size.weights + self._step(kind))
            + min(width, kind.evaluated) * (kind.size.weights + self._features(kind, features))
            for kind in self.kinds
        )
        return self.resident + steps

    def _beside_stacks(self, width: int, features: int) -> int:
        """Return the bytes besides the captured steps of stacks: a new number of clients first runs without a graph."""
        running = max(
            max(
                min(width, kind.trained) * self._step(kind), min(width, kind.evaluated) * self._features(kind, features)
            )
            for kind in self.kinds
        )
        return running + self._scratch("stacked")

    def _scratch(self, trainer: Known) -> int:
        """Return the bytes of scratch memory: forward and backward of steps and, in stacks, a branch and features."""
        streams = {"eager": 0, "graphed": 2, "stacked": 4}[trainer]
        return self.scratch * (OTHER_STREAMS + streams * len(self.kinds))

    def one_by_one(self, trainer: Known, features: int) -> int:
        """Return the bytes for a client at a time; captured steps of each network keep their own."""
        together = sum if trainer == "graphed" else max
        steps = together(2 * kind.size.weights + self._step(kind) for kind in self.kinds)
        return self.resident + steps + max(self._features(kind, features) for kind in self.kinds)

    def _features(self, kind: Kind, samples: int) -> int:
        return samples * TEMPORARY * kind.size.widest

    def _step(self, kind: Kind) -> int:
        return self.batch * (kind.size.saved + TEMPORARY * kind.size.widest)
