"""The verdict in words, computed from the numbers: the ranking, the cost, the gain from federating."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from tinyproto.report.compare import RULE_NAMES, Comparison, Row, better_rule
from tinyproto.report.words import counted, derived_words, percent, points, size, times

BASES = {"tinyproto_fp": "fedproto", "tinyproto_ft": "fedtgp"}
"""The method that each TinyProto is compared with."""

SILENT = ("local", "anchors")
"""The methods that send no parameters, which every other method is compared with."""

MOST_NAMED = 10
"""Clients of a cell whose left-out rounds are listed; the others are counted."""


def verdict(comparison: Comparison) -> list[str]:
    """Return sentences about a comparison, the ranking first."""
    return [
        *_ranking(comparison),
        *_against_bases(comparison),
        *_against_local(comparison),
        *_against_anchors(comparison),
        *_missing_baselines(comparison),
        *_evaluation_traffic(comparison),
        *_absences(comparison),
    ]


def _ranking(comparison: Comparison) -> Iterator[str]:
    """Rank by the headline rule, then the methods read by their head; a sentence on Local alone comes later."""
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
        accuracy, base_accuracy = comparison.headline(row), comparison.headline(base)
        if accuracy is None or base_accuracy is None:
            continue
        ratio = base.payload_bytes / row.payload_bytes
        cost = f"{times(ratio)} less than" if ratio > 1 else "no less than"
        yield (
            f"{row.title} sends {size(row.payload_bytes)} of payload per round, {cost} {base.title} "
            f"({size(base.payload_bytes)}), and {_change(accuracy - base_accuracy)}."
        )


def _change(fraction: float) -> str:
    if points(fraction) == "0.0":
        return "reaches the same accuracy"
    return f"{'gains' if fraction > 0 else 'loses'} {points(abs(fraction)).lstrip('+')} points of accuracy"


def _against_local(comparison: Comparison) -> Iterator[str]:
    sending = _sending(comparison)
    if comparison.baseline is None or not sending:
        return
    rule, accuracy = comparison.baseline
    start = f"Local training alone, which sends no parameters, reaches {percent(accuracy)} by {RULE_NAMES[rule]}."
    gains = [(gain, rule, row) for row in sending for rule, gain in _visible_gains(comparison, row)]
    if not gains:
        yield f"{start} No federated method beats it by any rule."
        return
    gain, rule, row = max(gains, key=lambda found: found[0])
    beaten = [row.title for row in sending if not _visible_gains(comparison, row)]
    rest = f" {_listed(beaten)} did not beat it by any rule." if beaten else ""
    most = f"The largest gain from federating is {points(gain)} points ({row.title}, by {RULE_NAMES[rule]})."
    yield f"{start} {most}{rest}"


def _against_anchors(comparison: Comparison) -> Iterator[str]:
    """Compare better rules: what is gained over Local without communication is not gained by communication."""
    anchors = comparison.row("anchors")
    reached = None if anchors is None else better_rule(anchors)
    if reached is None:
        return
    rule, accuracy = reached
    words = f"Anchors, which send no prototypes, reach {percent(accuracy)} by {RULE_NAMES[rule]}"
    local = comparison.baseline
    if local is not None:
        words += f", {points(accuracy - local[1])} points over Local"
        if points(accuracy - local[1]).startswith("−"):
            words += ": fixed targets do not suit these networks or these data"
    found = [(*better, row) for row in _sending(comparison) if (better := better_rule(row))]
    if not found:
        yield f"{words}."
        return
    rule, most, row = max(found, key=lambda one: one[1])
    which = f"{row.title}, by {RULE_NAMES[rule]}"
    gain = points(most - accuracy)
    if gain.startswith("−"):
        below = gain.lstrip("−")
        yield f"{words}. No method that communicates beats them; the closest is {below} points below ({which})."
    else:
        yield f"{words}. Communication brought {gain} points over them ({which})."


def _missing_baselines(comparison: Comparison) -> Iterator[str]:
    missing = [f"`{name}`" for name in SILENT if comparison.row(name) is None]
    if not missing or not any(better_rule(row) for row in _sending(comparison)):
        return
    if any(row.real for row in comparison.rows):
        yield (
            "What communication brings is unknown, since a federation runs one method. A client can train alone on "
            "its own data to compare: `tinyproto join --offline`."
        )
    else:
        names = _listed(missing)
        yield f"Without {names} it is unknown what communication brings; add {names} to algorithms."


def _sending(comparison: Comparison) -> list[Row]:
    return [row for row in comparison.rows if row.algorithm not in SILENT]


def _visible_gains(comparison: Comparison, row: Row) -> list[tuple[str, float]]:
    """Return the gains over Local by rule that are positive at the printed precision."""
    gains = [(rule, comparison.over_local(row, rule)) for rule in RULE_NAMES]
    return [(rule, gain) for rule, gain in gains if gain is not None and gain > 0 and points(gain) != "0.0"]


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _evaluation_traffic(comparison: Comparison) -> Iterator[str]:
    most = max((row.evaluation_bytes for row in comparison.rows), default=0.0)
    if most:
        yield f"Payload and wire exclude frames sent only to evaluate, which add up to {size(most)} per round."


def _absences(comparison: Comparison) -> Iterator[str]:
    """Count the participants lost; algorithms with the same seeds lose the same ones."""
    found = [row.absences for row in comparison.rows if row.absences]
    if found:
        dropped, late, empty = (max(one[name] for one in found) for name in ("dropped", "late", "empty_rounds"))
        lost = f", {empty:.3g} rounds without any upload" if empty else ""
        yield f"Simulated absences per algorithm and seed: {dropped:.4g} dropouts, {late:.4g} late uploads{lost}."


def derived_sentence(comparison: Comparison) -> str:
    """List the hyper-parameters that methods derived; empty if there are none."""
    listed = [f"{row.title} {derived_words(row.derived)}" for row in comparison.rows if row.derived]
    return f"Derived: {'; '.join(listed)}." if listed else ""


def left_out_sentence(comparison: Comparison) -> str:
    """Count the client-rounds that each method left out; empty if there are none."""
    listed = [f"{row.title} {row.left_out}" for row in comparison.rows if row.left_out]
    return f"Client-rounds left out: {', '.join(listed)}; summary.json lists the clients." if listed else ""


def left_out_lines(title: str, records: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Name each client that was left out of rounds of a cell, with the rounds and the first reason."""
    rounds: dict[str, list[int]] = {}
    reasons: dict[str, str] = {}
    for record in records:
        for client, reason in record.get("refused", {}).items():
            rounds.setdefault(client, []).append(record["round"])
            reasons.setdefault(client, reason)
    for client in sorted(rounds, key=int)[:MOST_NAMED]:
        numbers = rounds[client]
        word = "round" if len(numbers) == 1 else "rounds"
        yield f"{title}: client {client} in {word} {_ranges(numbers)}: {reasons[client]}"
    if len(rounds) > MOST_NAMED:
        yield f"{title}: {counted(len(rounds) - MOST_NAMED, 'client')} more"


def _ranges(numbers: Sequence[int]) -> str:
    """Join neighbouring rounds: 3, 5–7."""
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}–{last}" for first, last in ranges)
