"""Two cells held against each other: read after as many rounds and of the same seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from paper.page.records import Outcome
from tinyproto.engine.measure import RULES
from tinyproto.report.compare import Spread


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A variant and what it is held against."""

    variant: Outcome | None  # None where it was not run
    reference: Outcome | None
    statistic: str = "best"
    most: int | None = None  # rounds, where neither is to be read any further
    among: Sequence[int] | None = None  # seeds, where others are not to be looked at

    @property
    def rounds(self) -> int | None:
        """After how many rounds both are read."""
        if self.variant is None or self.reference is None:
            return None
        return self._at_most(min(self.variant.rounds, self.reference.rounds))

    @property
    def read_rounds(self) -> int | None:
        """After how many the variant is read: those that both have, or its own where it stands alone."""
        return self.rounds or (None if self.variant is None else self._at_most(self.variant.rounds))

    @property
    def seeds(self) -> list[int]:
        """Those that both have."""
        if self.variant is None or self.reference is None:
            return []
        shared = self.variant.seeds_shared(self.reference)
        return shared if self.among is None else [seed for seed in shared if seed in self.among]

    def accuracies(self) -> Mapping[str, Spread | None]:
        """The variant's by every rule: of the seeds and rounds that both have, or its own where it stands alone."""
        if self.variant is None or self.read_rounds is None:
            return dict.fromkeys(RULES)
        return self.variant.read_after(self.read_rounds, self.seeds or None, self.statistic)

    def compared(self) -> Mapping[str, Spread | None]:
        """The reference's by every rule, after as many rounds."""
        if self.reference is None or self.rounds is None or not self.seeds:
            return dict.fromkeys(RULES)
        return self.reference.read_after(self.rounds, self.seeds, self.statistic)

    def difference(self, rule: str) -> float | None:
        """What the variant changes, in fractions."""
        own, other = self.accuracies()[rule], self.compared()[rule]
        return None if own is None or other is None else round(own.mean - other.mean, 9)

    def _at_most(self, rounds: int) -> int:
        return rounds if self.most is None else min(rounds, self.most)


def means(accuracy: Mapping[str, Spread | None]) -> dict[str, float | None]:
    """As JSON can hold them."""
    return {rule: None if found is None else found.mean for rule, found in accuracy.items()}
