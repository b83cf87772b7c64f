"""The verdict in words, computed from the numbers: what was reached, what it cost, what federating brought."""

from __future__ import annotations

from collections.abc import Iterator

from tinyproto.report.compare import RULE_NAMES, Comparison, Row
from tinyproto.report.words import percent, points, size, times

BASES = {"tinyproto_fp": "fedproto", "tinyproto_ft": "fedtgp"}
"""Which method each TinyProto is to be held against."""


def verdict(comparison: Comparison) -> list[str]:
    """Sentences, the ranking first; flattering or not."""
    return [
        *_ranking(comparison),
        *_against_bases(comparison),
        *_against_local(comparison),
        *_evaluation_traffic(comparison),
        *_absences(comparison),
    ]


def _ranking(comparison: Comparison) -> Iterator[str]:
    """By the headline rule, then those that have to be read by their head; Local alone is spoken of later."""
    if not any(spread for row in comparison.rows for spread in row.accuracy.values()):
        yield "No client has test samples, so there is no accuracy to compare."
    ranked = [(accuracy, row) for row in comparison.rows if (accuracy := comparison.headline(row)) is not None]
    ranked.sort(key=lambda pair: -pair[0])
    for rule in dict.fromkeys((comparison.rule, "head")):
        read = [(accuracy, row) for accuracy, row in ranked if comparison.headline_rule(row) == rule]
        if read and (rule == comparison.rule or any(row.algorithm != "local" for _, row in read)):
            listed = ", ".join(f"{row.title} {percent(accuracy)}" for accuracy, row in read)
            yield f"By {RULE_NAMES[rule]}, {comparison.statistic_words}: {listed}."


def _against_bases(comparison: Comparison) -> Iterator[str]:
    for row in comparison.rows:
        base = comparison.row(BASES.get(row.algorithm, ""))
        if base is None or not row.payload_bytes:
            continue
        own, other = comparison.headline(row), comparison.headline(base)
        if own is None or other is None:
            continue
        ratio = base.payload_bytes / row.payload_bytes
        cost = f"{times(ratio)} fewer payload bytes than" if ratio > 1 else "no fewer payload bytes than"
        yield (
            f"{row.title} sends {size(row.payload_bytes)} a round, {cost} {base.title} ({size(base.payload_bytes)}), "
            f"{_difference(own - other)} of accuracy."
        )


def _difference(fraction: float) -> str:
    if points(fraction) == "0.0":
        return "at no difference"
    return f"at {'a gain' if fraction > 0 else 'a loss'} of {points(abs(fraction)).lstrip('+')} points"


def _against_local(comparison: Comparison) -> Iterator[str]:
    if comparison.row("local") is None:
        yield "Local training was not run, so what federating brought is unknown; add `local` to algorithms."
        return
    federated = [row for row in comparison.rows if row.algorithm != "local"]
    if comparison.baseline is None or not federated:
        return
    rule, accuracy = comparison.baseline
    start = f"Local training alone, which sends no parameters, reaches {percent(accuracy)} by {RULE_NAMES[rule]}"
    gains = [(gain, rule, row) for row in federated for rule, gain in _gains(comparison, row) if _shows(gain)]
    if not gains:
        yield f"{start}: no federated method did better by any rule."
        return
    gain, rule, row = max(gains, key=lambda found: found[0])
    beaten = [row.title for row in federated if not any(_shows(value) for _, value in _gains(comparison, row))]
    rest = f" {_listed(beaten)} did not beat it by any rule." if beaten else ""
    most = f"the most that federating added is {points(gain)} points ({row.title}, by {RULE_NAMES[rule]})"
    yield f"{start}; {most}.{rest}"


def _evaluation_traffic(comparison: Comparison) -> Iterator[str]:
    most = max((row.evaluation_bytes for row in comparison.rows), default=0.0)
    if most:
        yield f"Frames sent only to evaluate are not in payload and wire; they cost up to {size(most)} more a round."


def _absences(comparison: Comparison) -> Iterator[str]:
    """Say how many participants were lost; algorithms with the same seeds lose the same ones."""
    said = [row.absences for row in comparison.rows if row.absences]
    if said:
        dropped, late, empty = (max(one[name] for one in said) for name in ("dropped", "late", "empty_rounds"))
        lost = f", {empty:.3g} rounds without any upload" if empty else ""
        yield f"Simulated absences per algorithm and seed: {dropped:.4g} dropouts, {late:.4g} late uploads{lost}."


def _shows(gain: float) -> bool:
    """Whether a gain is one at the precision that is printed."""
    return gain > 0 and points(gain) != "0.0"


def _gains(comparison: Comparison, row: Row) -> list[tuple[str, float]]:
    return [(rule, gain) for rule in RULE_NAMES if (gain := comparison.over_local(row, rule)) is not None]


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
