"""The paper's claims as a checklist, each with a verdict computed from records or from the operators themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from paper.experiments import BASELINES, CPS_DIM, CPS_DIMS, DATASETS, OURS, experiments
from paper.page.convergence import convergence
from paper.page.dead_units import dead_units_claim, recorded_prototypes
from paper.page.outcomes import Outcome, Records, method_name, paper_cell, place_name
from paper.page.summary import POINTS
from paper.page.tables import NEAR, signed, two_digits
from paper.page.verdicts import Claim, Fact
from paper.printed import DATASET_NAMES, Address, ablation, printed_numbers
from tinyproto.algorithms.base import prototype_parameters
from tinyproto.data.sources import SOURCES
from tinyproto.report.words import counted, size, times

BLOCKS = Address("readings_methods", "tinyproto_ft(blocks)")
"""TinyProto-FT on CIFAR-100 with the published masks."""

BY_FORMULA = "by the paper's formula"
"""How both claims on costs are judged; measured bytes are told beside it."""

Judge = Callable[[Outcome, Outcome], Fact]


def claims(records: Records) -> list[Claim]:
    """Return all claims: costs first, then accuracy."""
    judged = partial(_judged, records)
    local = judged("TinyProto-FT (50) beats Local (not in the paper)", _rivals(["local"]), _gains(0))
    return [
        judged(
            f"TinyProto sends 10× fewer parameters than FedProto, {BY_FORMULA}",
            _in_table1("tinyproto_fp", "fedproto"),
            _fewer(10),
        ),
        _up_to_fewer(records, 4),
        judged("With scaling, CPS (s=50) costs at most a point of accuracy", _without_cps(), _gains(-0.01)),
        judged(
            f"Scaling lifts TinyProto-FT on CIFAR-100 as much as printed, within {POINTS}",
            _without_scaling(),
            _gains_as_printed,
        ),
        judged("TinyProto-FT (50) beats all six baselines", _rivals(BASELINES), _gains(0)),
        replace(local, printed=False),
        dead_units_claim(records),
        judged("CPS beats a smaller layer that sends as many bytes, both not scaled", _smaller_layers(), _gains(0)),
        convergence(recorded_prototypes(records)),
    ]


@dataclass(frozen=True)
class Case:
    """A place, the cell that a claim is about, and the cells it is compared with."""

    place: str
    subject: Address
    others: Sequence[Address]


def _judged(records: Records, words: str, cases: Iterator[Case], judge: Judge) -> Claim:
    """Judge each case by its least favourable comparison.

    One comparison that fails decides a case against the claim; for it, all comparisons of the case are needed.
    """
    facts: list[Fact] = []
    needs: dict[Address, None] = {}
    every = list(cases)
    for case in every:
        found = {address: _longest(records, address) for address in (case.subject, *case.others)}
        subject, others = found[case.subject], [found[address] for address in case.others]
        judged = [judge(subject, other) for other in others if subject is not None and other is not None]
        refuted = [fact for fact in judged if fact.final and not fact.holds]
        final = bool(refuted) or (len(judged) == len(others) and all(fact.final for fact in judged))
        if not final:
            needs |= {address: None for address, outcome in found.items() if outcome is None or _is_weak(outcome)}
        if judged:
            fact = min(refuted or judged, key=lambda one: one.margin)
            several = f" ({len(judged)} of {len(others)} were run)" if len(judged) < len(others) else ""
            facts.append(replace(fact, words=f"{case.place}{several}: {fact.words}", final=final))
    return Claim(words, facts, list(needs), cases=len(every))


def _is_weak(outcome: Outcome) -> bool:
    """Return True if a cell has to be run again before it decides anything."""
    return outcome.shortened or outcome.collapsed


def _longest(records: Records, address: Address) -> Outcome | None:
    """Return a cell's results; of a reading, whose config is short, those of its longest run."""
    if address != BLOCKS:
        return records.find(address)
    return next(iter(records.find_all(address)[::-1]), None)


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
    """Yield TinyProto-FP and FedProto at the same bytes; FedProto is not scaled, so neither is TinyProto-FP."""
    for dataset in ("cifar10", "cifar100"):
        for width in CPS_DIMS:
            smaller = Address(f"compression_{dataset}_{width}", "fedproto")
            subject = ablation(dataset, "tinyproto_fp", width, False)
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
    """Compare with FedDistill by the formula, in which K and s alone count; the best dataset decides.

    Measured bytes are told beside it.
    """
    told, ratios = [], []
    for case in _in_table1("tinyproto_ft", "feddistill"):
        always = SOURCES[case.subject.stem.removeprefix("table1_")].always
        assert always is not None  # the paper's datasets have a fixed size
        classes = always[0]
        subject, other = (prototype_parameters([0], classes, width) for width in (CPS_DIM, classes))
        ratios.append(other / subject)
        told.append(f"{case.place}: {times(ratios[-1])} by the formula")
        found = [records.find(address) for address in (case.subject, *case.others)]
        measured = [outcome.row.payload_bytes for outcome in found if outcome is not None]
        if len(measured) == len(found):
            told[-1] += f", {times(measured[1] / measured[0])} in payload bytes measured"
            told[-1] += f" ({' against '.join(map(size, measured))} a round)"
    fact = Fact(max(ratios) >= wanted, max(ratios), ". ".join(told))
    return Claim(f"It sends up to {wanted:g}× fewer than FedDistill, {BY_FORMULA}", [fact])


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
        collapsed = [outcome for outcome in (subject, other) if outcome.collapsed]
        broken = ", decides nothing because a run collapsed" if collapsed else ""
        counts = max((found.count for found in (first, second) if found), default=0)
        words = f"{' against '.join(told)}{early} ({signed(change)}, {counted(counts, 'seed')}{_print(subject, other)})"
        return Fact(change >= least if least else change > 0, change, words + broken, not early and not collapsed)

    return judge


def _gains_as_printed(subject: Outcome, other: Outcome) -> Fact:
    """Judge whether the first is better by as much as the paper prints, no less and no more."""
    fact = _gains(0)(subject, other)
    off = round(abs(fact.margin - _printed_gain(subject, other)), 9)
    return replace(fact, holds=off <= NEAR, margin=-off)


def _print(subject: Outcome, other: Outcome) -> str:
    """Return what the paper prints for the same difference; empty if it does not print both numbers."""
    if not {subject.cell.address, other.cell.address} <= printed_numbers().keys():
        return ""
    return f"; print {signed(_printed_gain(subject, other))}"


def _printed_gain(subject: Outcome, other: Outcome) -> float:
    first, second = (printed_numbers()[outcome.cell.address].accuracy for outcome in (subject, other))
    return first - second
