"""The paper's claims as a checklist, each with a verdict from records, a formula or a test."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Literal

from paper.experiments import BASELINES, CPS_DIM, CPS_DIMS, DATASETS, OURS, experiments
from paper.page.outcomes import Outcome, Records, method_name, paper_cell, place_name
from paper.page.tables import signed, two_digits
from paper.printed import DATASET_NAMES, Address, ablation
from tinyproto.algorithms.base import prototype_parameters
from tinyproto.data.sources import SOURCES
from tinyproto.report.figures.prototypes import dead_units
from tinyproto.report.runs import PrototypeValues
from tinyproto.report.words import counted, percent, size, times

Judgement = Literal["holds", "holds in part", "does not hold", "undecided"]
TEST = "tests/property/test_properties.py::test_what_cps_sends_meets_the_assumption_of_the_convergence_proof"
PROVEN = (
    "the support of every class lies in a fixed set (all of it unless a sent value is zero), sending a received "
    "prototype again changes nothing, and no norm or distance grows; "
    f"{TEST} checks this for random prototypes and masks"
)
MOST_TOLD = 6
"""The most comparisons or cells that are listed one by one."""

LIFT, ABOUT = 0.09, 0.015
"""The gain that the paper reports for scaling on CIFAR-100, and the tolerance around it."""

BLOCKS = Address("readings_methods", "tinyproto_ft(blocks)")
"""TinyProto-FT on CIFAR-100 with the published masks."""


@dataclass(frozen=True)
class Fact:
    """One comparison: the verdict there, and a sentence."""

    holds: bool
    margin: float  # larger is better for the claim
    words: str
    final: bool = True  # False: the runs are shorter than the paper's, so it decides nothing


@dataclass(frozen=True)
class Claim:
    """A statement, the facts found, and the cells that are still needed."""

    words: str
    facts: Sequence[Fact]
    needs: Sequence[Address | str] = ()

    @property
    def final(self) -> list[Fact]:
        """Return the facts that decide."""
        return [fact for fact in self.facts if fact.final]

    @property
    def verdict(self) -> Judgement:
        """Return the verdict over all facts that decide."""
        kinds = {fact.holds for fact in self.final}
        if not kinds:
            return "undecided"
        return "holds in part" if len(kinds) > 1 else "holds" if kinds == {True} else "does not hold"

    @property
    def tally(self) -> str:
        """Return the verdict with the number of comparisons."""
        if not self.final:
            return self.verdict
        share = f" ({sum(fact.holds for fact in self.final)} of {len(self.final)})" if len(self.final) > 1 else ""
        return f"{self.verdict}{' so far' if self.needs else ''}{share}"

    @property
    def evidence(self) -> str:
        """Return the numbers and the missing cells; of many comparisons only the two extremes."""
        told = [fact.words for fact in self.facts]
        if len(told) > MOST_TOLD:
            ordered = sorted(self.facts, key=lambda fact: fact.margin)
            told = [f"{len(told)} comparisons, the least favourable {ordered[0].words}", f"most {ordered[-1].words}"]
        missing = f"needs {'; '.join(_by_experiment(self.needs))}" if self.needs else ""
        return ". ".join(part[0].upper() + part[1:] for part in ("; ".join(told), missing) if part) + "."

    def plain(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        facts = [asdict(fact) for fact in self.facts]
        needs = [asdict(need) if isinstance(need, Address) else need for need in self.needs]
        return {"claim": self.words, "verdict": self.verdict, "facts": facts, "needs": needs}


Judge = Callable[[Outcome, Outcome], Fact]


def claims(records: Records) -> list[Claim]:
    """Return all claims: costs first, then accuracy."""
    judged = partial(_judged, records)
    return [
        judged(
            "TinyProto sends 10× fewer parameters than FedProto", _in_table1("tinyproto_fp", "fedproto"), _fewer(10)
        ),
        _up_to_fewer(records, 4),
        judged("With scaling, CPS (s=50) costs at most a point of accuracy", _without_cps(), _gains(-0.01)),
        judged("Scaling lifts TinyProto-FT by about 9 points on CIFAR-100", _without_scaling(), _lifts(LIFT, ABOUT)),
        judged("TinyProto-FT (50) beats every baseline", _rivals(BASELINES), _gains(0)),
        judged("TinyProto-FT (50) beats Local (not in the paper)", _rivals(["local"]), _gains(0)),
        _dead_units(records),
        judged("CPS beats a smaller layer that sends as many bytes", _smaller_layers(), _gains(0)),
        Claim(
            "CPS meets the assumption of the convergence proof: fixed support, non-expansive",
            [Fact(True, 0.0, PROVEN)],
        ),
    ]


@dataclass(frozen=True)
class Case:
    """A place, the cell that a claim is about, and the cells it is compared with."""

    place: str
    subject: Address
    others: Sequence[Address]


def _judged(records: Records, words: str, cases: Iterator[Case], judge: Judge) -> Claim:
    """Judge each case by its least favourable comparison."""
    facts: list[Fact] = []
    needs: dict[Address, None] = {}
    for case in cases:
        found = {address: _longest(records, address) for address in (case.subject, *case.others)}
        subject, others = found[case.subject], [found[address] for address in case.others]
        judged = [judge(subject, other) for other in others if subject is not None and other is not None]
        final = all(fact.final for fact in judged)
        needs |= {a: None for a, outcome in found.items() if outcome is None or (outcome.shortened and not final)}
        if judged:
            fact = min(judged, key=lambda one: one.margin)
            facts.append(replace(fact, words=f"{case.place}: {fact.words}", final=final))
    return Claim(words, facts, list(needs))


def _longest(records: Records, address: Address) -> Outcome | None:
    """Return a cell's results; of a reading, whose config is short, those of its longest run."""
    if address != BLOCKS:
        return records.find(address)
    return next(iter(records.find_all(address)[::-1]), None)


def _by_experiment(needs: Sequence[Address | str]) -> Iterator[str]:
    """Yield cells by config; of many cells only the configs."""
    cells = [need for need in needs if isinstance(need, Address)]
    stems = dict.fromkeys(cell.stem for cell in cells)
    if len(cells) > MOST_TOLD:
        yield f"more of {', '.join(stems)}"
    else:
        yield from (f"{stem}: {', '.join(cell.label for cell in cells if cell.stem == stem)}" for stem in stems)
    yield from (need for need in needs if isinstance(need, str))


def _in_table1(subject: str, other: str) -> Iterator[Case]:
    for dataset in DATASETS:
        stem = f"table1_{dataset}"
        yield Case(DATASET_NAMES[dataset], Address(stem, subject), [Address(stem, other)])


def _without_cps() -> Iterator[Case]:
    for dataset in DATASETS:
        for name in OURS:
            subject, other = (ablation(dataset, name, cps_dim, True) for cps_dim in (CPS_DIM, None))
            yield Case(DATASET_NAMES[dataset], subject, [other])
            if (dataset, name) == ("cifar100", "tinyproto_ft"):
                yield Case(f"{DATASET_NAMES[dataset]} with the published blocks", BLOCKS, [other])


def _without_scaling() -> Iterator[Case]:
    for cps_dim, place in ((None, "without CPS"), (CPS_DIM, f"at s={CPS_DIM}")):
        subject, other = (ablation("cifar100", "tinyproto_ft", cps_dim, scaled) for scaled in (True, False))
        yield Case(place, subject, [other])


def _rivals(names: Sequence[str]) -> Iterator[Case]:
    for config in experiments():
        if config.target in ("table1", "table3"):
            subject = Address(config.stem, "tinyproto_ft")
            yield Case(place_name(paper_cell(subject)), subject, [Address(config.stem, name) for name in names])


def _smaller_layers() -> Iterator[Case]:
    for dataset in ("cifar10", "cifar100"):
        for width in CPS_DIMS:
            smaller = Address(f"compression_{dataset}_{width}", "fedproto")
            for scaled in (True, False):
                subject = ablation(dataset, "tinyproto_fp", width, scaled)
                yield Case(f"{DATASET_NAMES[dataset]}, d={width}", subject, [smaller])


def _fewer(wanted: float) -> Judge:
    """Judge whether the first sends this many times less by the paper's formula."""

    def judge(subject: Outcome, other: Outcome) -> Fact:
        ratio = (other.row.formula_parameters or 0) / (subject.row.formula_parameters or 1)
        measured = other.row.payload_bytes / subject.row.payload_bytes
        words = (
            f"{times(ratio)} by the formula, {times(measured)} in payload bytes measured "
            f"({size(subject.row.payload_bytes)} against {size(other.row.payload_bytes)} a round)"
        )
        return Fact(ratio >= wanted, ratio, words)

    return judge


def _up_to_fewer(records: Records, wanted: float) -> Claim:
    """Compare with FedDistill on the best dataset: a row of logits has K numbers and a prototype s."""
    told, ratios = [], []
    for case in _in_table1("tinyproto_ft", "feddistill"):
        always = SOURCES[case.subject.stem.removeprefix("table1_")].always
        assert always is not None  # the paper's datasets have a fixed size
        classes = always[0]
        subject, other = (prototype_parameters([0], classes, width) for width in (CPS_DIM, classes))
        found = [records.find(address) for address in (case.subject, *case.others)]
        measured = [outcome.row.payload_bytes for outcome in found if outcome is not None]
        told.append(f"{case.place}: {times(other / subject)} by the formula")
        if len(measured) == len(found):
            told[-1] += f", {times(measured[1] / measured[0])} in payload bytes measured"
            told[-1] += f" ({' against '.join(map(size, measured))} a round)"
        ratios.append(other / subject)
    best = max(ratios)
    return Claim(f"It sends up to {wanted:g}× fewer than FedDistill", [Fact(best >= wanted, best, "; ".join(told))])


def _gains(least: float) -> Judge:
    """Judge whether the first is better by at least this much; a tie is not better."""

    def judge(subject: Outcome, other: Outcome) -> Fact:
        rounds = min(subject.rounds, other.rounds)
        seeds = subject.seeds_shared(other) or None  # None: no common seed, so all count
        first, second = subject.best_after(rounds, seeds)[subject.rule], other.best_after(rounds, seeds)[other.rule]
        change = round((first.mean if first else 0.0) - (second.mean if second else 0.0), 9)
        early = f" after {counted(rounds, 'round')}" if rounds < max(subject.cell.rounds, other.cell.rounds) else ""
        named = "appendix" in {subject.cell.paper.target, other.cell.paper.target}
        told = [
            f"{method_name(outcome.cell.entry, ablation=named)} {two_digits(found.mean) if found else 'unknown'}"
            for outcome, found in ((subject, first), (other, second))
        ]
        counts = {found.count for found in (first, second) if found}
        several = f", {counted(max(counts), 'seed')}" if counts and max(counts) > 1 else ""
        words = f"{' against '.join(told)}{early} ({signed(change)}{several})"
        return Fact(change >= least if least else change > 0, change, words, final=not early)

    return judge


def _lifts(wanted: float, about: float) -> Judge:
    """Judge whether the first is better by about this much, no less and no more."""
    gains = _gains(0)

    def judge(subject: Outcome, other: Outcome) -> Fact:
        fact = gains(subject, other)
        off = round(abs(fact.margin - wanted), 9)
        return replace(fact, holds=off <= about, margin=-off)

    return judge


def _dead_units(records: Records) -> Claim:
    """Judge by the prototypes of FedProto, which only run folders and a few records keep."""
    facts = []
    for dataset in DATASETS:
        outcome = records.find(Address(f"table1_{dataset}", "fedproto"))
        for cell in outcome.found if outcome is not None else []:
            values = cell.run.prototypes(cell.result["label"], cell.result["seed"])
            share = None if values is None else dead_units(values).local
            if values is not None and share is not None:
                networks = ", ".join(_by_network(values, cell.run.config["models"]))
                place = f"{DATASET_NAMES[dataset]}, seed {cell.result['seed']}"
                many = counted(int(values.local_present.sum()), "local prototype")
                words = f"{place}: {percent(share)} of the entries of FedProto's {many} kept are zero ({networks})"
                facts.append(Fact(0.4 <= share <= 0.6, -abs(share - 0.5), words))
    needs = (
        [] if facts else ["the run folder of a FedProto cell with its prototypes.safetensors, which most records omit"]
    )
    return Claim("About half of the units are dead for a class", facts, needs)


def _by_network(values: PrototypeValues, networks: Sequence[Any]) -> Iterator[str]:
    """Yield the share of each of N networks, since some activations are never zero; client i has network i mod N."""
    for index, network in enumerate(networks):
        clients = slice(index, None, len(networks))
        present = values.local_present[clients]
        share = dead_units(replace(values, local=values.local[clients], local_present=present)).local
        if share is not None:
            yield f"{network} {percent(share)} of {int(present.sum())}"
