"""The paper's claims as a checklist: each with a verdict computed from records, and the numbers behind it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from tinyproto.report.figures.prototypes import dead_units
from tinyproto.report.paper.records import Outcome, Records, method_name
from tinyproto.report.paper.tables import signed, two_digits
from tinyproto.report.words import counted, percent, size, times
from tinyproto.reproduce.experiments import BASELINES, CPS_DIM, CPS_DIMS, DATASETS
from tinyproto.reproduce.printed import DATASET_NAMES, SETTINGS, Address, ablation

Judgement = Literal["holds", "holds in part", "does not hold", "cannot be told yet"]
TEST = "tests/property/test_properties.py::test_what_cps_sends_meets_the_assumption_of_the_convergence_proof"
LIFT, ABOUT = 0.09, 0.015
"""What scaling is said to bring TinyProto-FT on CIFAR-100, and how near to it counts."""

TABLE_PARTS = {f"table1_{dataset}": DATASET_NAMES[dataset] for dataset in DATASETS} | {
    f"table3_{setting}": f"CIFAR-100, {words}" for setting, words in SETTINGS.items()
}


@dataclass(frozen=True)
class Fact:
    """One thing that was looked at: whether the claim holds there, and in which words."""

    holds: bool
    words: str


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper, the facts found and the cells that are still needed."""

    words: str
    facts: Sequence[Fact]
    needs: Sequence[str] = ()

    @property
    def verdict(self) -> Judgement:
        """Over all that was looked at."""
        if not self.facts:
            return "cannot be told yet"
        kinds = {fact.holds for fact in self.facts}
        return "holds in part" if len(kinds) > 1 else "holds" if kinds == {True} else "does not hold"

    @property
    def tally(self) -> str:
        """The verdict with how much of what there is to look at was seen."""
        if not self.facts:
            return self.verdict
        share = f" ({sum(fact.holds for fact in self.facts)} of {len(self.facts)})" if len(self.facts) > 1 else ""
        return f"{self.verdict}{' so far' if self.needs else ''}{share}"

    @property
    def evidence(self) -> str:
        """The numbers, or what is missing for them."""
        told = "; ".join(fact.words for fact in self.facts)
        missing = f"needs {'; '.join(self.needs)}" if self.needs else ""
        return ". ".join(part[0].upper() + part[1:] for part in (told, missing) if part) + "."

    def plain(self) -> dict[str, Any]:
        """As JSON can hold it."""
        facts = [{"holds": fact.holds, "words": fact.words} for fact in self.facts]
        return {"claim": self.words, "verdict": self.verdict, "facts": facts, "needs": list(self.needs)}


Judge = Callable[[Outcome, Outcome], Fact]


def claims(records: Records) -> list[Claim]:
    """In the order of the issue: what it costs, what it keeps, what it brings."""
    return [
        _pairs(records, "TinyProto sends 10× fewer parameters than FedProto", _ten_times(), _fewer(10)),
        _pairs(records, "It sends 4× fewer than FedDistill (on which dataset?)", _four_times(), _fewer(4)),
        _pairs(
            records, "With scaling, CPS (s=50) costs at most a point of accuracy", _cps_pairs(),
            partial(_lift, at_least=-0.01),
        ),
        _pairs(
            records, "Scaling lifts TinyProto-FT by about 9 points on CIFAR-100", _scaling_pairs(),
            partial(_lift, at_least=LIFT - ABOUT),
        ),
        _pairs(records, "TinyProto-FT (50) beats every baseline", _baseline_pairs(BASELINES), _beats),
        _pairs(records, "TinyProto-FT (50) beats Local (not in the paper)", _baseline_pairs(["local"]), _beats),
        _dead_units(records),
        _pairs(records, "CPS beats a smaller layer that sends as many bytes", _layer_pairs(), _beats),
        Claim(
            "What CPS does meets the assumption of the convergence proof: fixed support, non-expansive",
            [Fact(True, f"checked over drawn prototypes and masks by {TEST}")],
        ),
    ]  # fmt: skip


Pair = tuple[str, Address, Address]
"""Where, the cell that a claim speaks for, and the one it is held against."""


def _pairs(records: Records, words: str, pairs: Iterator[Pair], judge: Judge) -> Claim:
    facts: list[Fact] = []
    missing: dict[str, None] = {}
    for place, own, other in pairs:
        found = records.find(own), records.find(other)
        if found[0] is not None and found[1] is not None:
            fact = judge(found[0], found[1])
            facts.append(Fact(fact.holds, f"{place}: {fact.words}"))
        else:
            missing |= {
                f"{address.stem} {address.label}": None
                for address, outcome in zip((own, other), found, strict=True)
                if outcome is None
            }
    return Claim(words, facts, list(missing))


def _ten_times() -> Iterator[Pair]:
    for dataset in DATASETS:
        stem = f"table1_{dataset}"
        yield DATASET_NAMES[dataset], Address(stem, "tinyproto_fp"), Address(stem, "fedproto")


def _four_times() -> Iterator[Pair]:
    for dataset in DATASETS:
        stem = f"table1_{dataset}"
        yield DATASET_NAMES[dataset], Address(stem, "tinyproto_ft"), Address(stem, "feddistill")


def _cps_pairs() -> Iterator[Pair]:
    for dataset in DATASETS:
        for name in ("tinyproto_ft", "tinyproto_fp"):
            yield DATASET_NAMES[dataset], ablation(dataset, name, CPS_DIM, True), ablation(dataset, name, None, True)


def _scaling_pairs() -> Iterator[Pair]:
    for cps_dim in (None, CPS_DIM):
        place = "all of d" if cps_dim is None else f"s={cps_dim}"
        own, other = (ablation("cifar100", "tinyproto_ft", cps_dim, scaled) for scaled in (True, False))
        yield place, own, other


def _baseline_pairs(names: Sequence[str]) -> Iterator[Pair]:
    for stem, place in TABLE_PARTS.items():
        yield from ((place, Address(stem, "tinyproto_ft"), Address(stem, name)) for name in names)


def _layer_pairs() -> Iterator[Pair]:
    for dataset in ("cifar10", "cifar100"):
        for width in CPS_DIMS:
            smaller = Address(f"compression_{dataset}_{width}", "fedproto")
            place = f"{DATASET_NAMES[dataset]}, {width}"
            yield place, ablation(dataset, "tinyproto_fp", width, True), smaller
            yield place, ablation(dataset, "tinyproto_fp", width, False), smaller


def _fewer(wanted: float) -> Judge:
    def judge(own: Outcome, other: Outcome) -> Fact:
        ratio = (other.row.formula_parameters or 0) / (own.row.formula_parameters or 1)
        measured = other.row.payload_bytes / own.row.payload_bytes
        words = (
            f"{times(ratio)} by the formula, {times(measured)} in payload bytes measured "
            f"({size(own.row.payload_bytes)} against {size(other.row.payload_bytes)} a round)"
        )
        return Fact(ratio >= wanted, words)

    return judge


def _lift(own: Outcome, other: Outcome, *, at_least: float) -> Fact:
    return _difference(own, other, lambda change: change >= at_least)


def _beats(own: Outcome, other: Outcome) -> Fact:
    return _difference(own, other, lambda change: change > 0)


def _difference(own: Outcome, other: Outcome, judge: Callable[[float], bool]) -> Fact:
    """Both read after as many rounds, each by its rule."""
    rounds = min(own.rounds, other.rounds)
    first, second = own.best_after(rounds)[own.rule], other.best_after(rounds)[other.rule]
    if first is None or second is None:
        return Fact(False, "no client has test samples")
    change = first.mean - second.mean
    early = f" after {counted(rounds, 'round')}" if rounds < own.paper.rounds else ""
    names = [method_name(outcome.paper.entry, ablation=True) for outcome in (own, other)]
    words = (
        f"{names[0]} {two_digits(first.mean)} against {names[1]} {two_digits(second.mean)}{early} ({signed(change)})"
    )
    return Fact(judge(change), words)


def _dead_units(records: Records) -> Claim:
    """From the prototypes that a run folder keeps and a record leaves out."""
    facts = []
    for dataset in DATASETS:
        outcome = records.find(Address(f"table1_{dataset}", "fedproto"))
        for cell in outcome.cells if outcome is not None else []:
            values = cell.run.prototypes(cell.result["label"], cell.result["seed"])
            share = None if values is None else dead_units(values).local
            if share is not None:
                words = f"{DATASET_NAMES[dataset]}, seed {cell.result['seed']}: {percent(share)} of FedProto's entries"
                facts.append(Fact(0.4 <= share <= 0.6, words))
    needs = (
        [] if facts else ["the run folder of a FedProto cell with its prototypes.safetensors, which records leave out"]
    )
    return Claim("About half of the units are dead for a class", facts, needs)
