"""A claim as facts from records, and the verdict that follows from them; no verdict is written down."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from paper.printed import Address

Judgement = Literal["holds", "holds in part", "does not hold", "undecided"]

MOST_TOLD = 6
"""The most comparisons or cells that are listed one by one."""


@dataclass(frozen=True)
class Fact:
    """One comparison: the verdict there, and a sentence."""

    holds: bool
    margin: float  # larger is better for the claim
    words: str
    final: bool = True  # False: it decides nothing, because runs are missing, too short or collapsed


@dataclass(frozen=True)
class Claim:
    """A statement, the facts found, and the cells that are still needed."""

    words: str
    facts: Sequence[Fact]
    needs: Sequence[Address | str] = ()
    printed: bool = True  # False: a statement of ours, not of the paper
    cases: int = 0  # the number of comparisons that it is about; 0: those found

    @property
    def final(self) -> list[Fact]:
        """Return the facts that decide."""
        return [fact for fact in self.facts if fact.final]

    @property
    def verdict(self) -> Judgement:
        """Return the verdict over all facts that decide; a claim holds only once most of its comparisons decide."""
        kinds = {fact.holds for fact in self.final}
        if not kinds or (kinds == {True} and 2 * len(self.final) <= self.cases):
            return "undecided"
        return "holds in part" if len(kinds) > 1 else "holds" if kinds == {True} else "does not hold"

    @property
    def tally(self) -> str:
        """Return the verdict with the number of comparisons."""
        if not self.final:
            return self.verdict
        if self.verdict == "undecided":
            return f"undecided ({len(self.final)} of {self.cases} comparisons decide)"
        share = f" ({sum(fact.holds for fact in self.final)} of {len(self.final)})" if len(self.final) > 1 else ""
        return f"{self.verdict}{' so far' if self.needs else ''}{share}"

    @property
    def evidence(self) -> str:
        """Return the numbers and the missing cells."""
        return " ".join(self.sentences)

    @property
    def sentences(self) -> list[str]:
        """Return a sentence for each comparison and for the missing cells; of many comparisons, the two extremes."""
        told = [fact.words for fact in self.facts]
        if len(told) > MOST_TOLD:
            ordered = sorted(self.facts, key=lambda fact: fact.margin)
            extremes = (("least", ordered[0]), ("most", ordered[-1]))
            told = [f"the {how} favourable of {len(told)}: {fact.words}" for how, fact in extremes]
        if self.needs:
            told.append(f"needs {'; '.join(_by_experiment(self.needs))}")
        return [f"{part[0].upper()}{part[1:]}." for part in told]

    def plain(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        facts = [asdict(fact) for fact in self.facts]
        needs = [asdict(need) if isinstance(need, Address) else need for need in self.needs]
        return {
            "claim": self.words,
            "printed": self.printed,
            "verdict": self.verdict,
            "comparisons": self.cases or len(self.facts),
            "facts": facts,
            "needs": needs,
        }


def _by_experiment(needs: Sequence[Address | str]) -> Iterator[str]:
    """Yield cells by config; of many cells only the configs."""
    cells = [need for need in needs if isinstance(need, Address)]
    stems = dict.fromkeys(cell.stem for cell in cells)
    if len(cells) > MOST_TOLD:
        yield f"more of {', '.join(stems)}"
    else:
        yield from (f"{stem}: {', '.join(cell.label for cell in cells if cell.stem == stem)}" for stem in stems)
    yield from (need for need in needs if isinstance(need, str))
