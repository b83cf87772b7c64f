"""The result of a round, and summary.json: what each cell of the grid reached and what it cost."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tinyproto.algorithms.base import Derived
from tinyproto.engine.client import Steps
from tinyproto.engine.measure import RULES, WAYS, Cost, Direction, Purpose
from tinyproto.engine.round import RoundRecord

SCHEMA_VERSION = 1
PHASES = ("total", "train", "prototypes", "server", "evaluate", "clients")

MEANT = 10
"""The number of evaluations that `last10` is the mean of, if there are as many."""


@dataclass(frozen=True)
class RoundResult:
    """A round's record, and its times."""

    record: RoundRecord
    seconds: dict[str, float]  # total, train, prototypes, server, evaluate, clients
    notes: tuple[str, ...] = ()  # on how it was executed
    steps: Steps | None = None  # of the clients, if they are counted
    sockets: Mapping[int, Mapping[Direction, int]] | None = None  # bytes on the network by client, if there is one


class Totals:
    """What summary.json says of rounds, added up in one pass: none of them is kept, and no list of their clients."""

    def __init__(self, rounds: Iterable[RoundResult]) -> None:
        self.participants: Sequence[int] = ()  # of the last round with any
        self._all, self._measured = _Sums(), _Sums()
        self._closing: Mapping[Direction, Cost] = {}  # of the last round
        self._curves: dict[str, list[tuple[int, float | None]]] = {rule: [] for rule in RULES}
        self._means: dict[str, float | None] = dict.fromkeys(RULES)
        first: RoundResult | None = None
        for result in rounds:
            self._add(result)
            if not result.record.closing and first is not None:
                self._measured.add(result)
            first = first if first is not None or result.record.closing else result
        if not self._measured.rounds and first is not None:
            self._measured.add(first)

    def _add(self, result: RoundResult) -> None:
        record = result.record
        self._all.add(result)
        self._closing = _cost(record, "closing")
        self.participants = record.participants or self.participants
        for rule in RULES:
            self._curves[rule].append((record.round - 1, record.accuracy[rule]))
            mean = record.client_mean[rule]
            self._means[rule] = self._means[rule] if mean is None else mean

    def summary(
        self, identity: Mapping[str, Any], formula: int | None, peak_memory: int, derived: Derived
    ) -> dict[str, Any]:
        """Return one entry of summary.json's results; `identity` names the cell of the grid.

        Costs and seconds are means over rounds 2 to T, since round 1 sends no prototypes down yet; those of round 1 if
        there is no other.
        """
        every, measured = self._all, self._measured
        training, count = measured.costs["training"], measured.rounds
        return {
            **identity,
            "derived": dict(derived),
            "left_out": every.refused.total(),
            "left_out_clients": {str(client): every.refused[client] for client in sorted(every.refused)},
            "accuracy": self._accuracy(),
            "params_per_round": _mean(sum(training[way].parameters for way in WAYS), count),
            "params_per_round_formula": formula,
            "payload_bytes_per_round": {way: _mean(training[way].payload, count) for way in WAYS},
            "payload_bytes_total": {way: every.costs["training"][way].payload for way in WAYS},
            "wire_bytes_per_round": {way: _mean(training[way].wire, count) for way in WAYS},
            "evaluation_bytes_per_round": {way: _mean(measured.costs["evaluation"][way].wire, count) for way in WAYS},
            "socket_bytes_per_round": measured.socket_means(),
            "hello_bytes": {way: every.costs["hello"][way].wire for way in WAYS},
            "closing_bytes": {way: self._closing[way].wire for way in WAYS},
            "seconds_per_round": {phase: measured.seconds[phase] / count for phase in PHASES},
            "peak_memory_bytes": peak_memory,
            **every.absences(),
        }

    def _accuracy(self) -> dict[str, dict[str, float | None]]:
        """Return best, last and mean of the last ten evaluations by each rule, and the last mean over clients.

        Round 1 evaluates untrained networks, so it never enters the mean of the last ten.
        """
        found = {rule: over_rounds(curve) for rule, curve in self._curves.items()}
        return {
            **{name: {rule: found[rule][name] for rule in RULES} for name in ("best", "last", "last10")},
            "client_mean": self._means,
        }


class _Sums:
    """Sums over some rounds."""

    def __init__(self) -> None:
        self.rounds = 0
        self.costs: dict[Purpose, dict[Direction, Cost]] = defaultdict(lambda: dict.fromkeys(WAYS, Cost()))
        self.seconds = dict.fromkeys(PHASES, 0.0)
        self.refused: Counter[int] = Counter()  # answers left out, by client
        self.dropped = self.late = self.empty = 0
        self.counted = 0  # rounds with bytes at sockets
        self.sockets: dict[int, Counter[Direction]] = defaultdict(Counter)  # bytes by client
        self.seen: Counter[int] = Counter()  # rounds in which a client's bytes were counted

    def add(self, result: RoundResult) -> None:
        """Add a round."""
        record = result.record
        self.rounds += 1
        for purpose, ways in record.traffic.items():
            for way, cost in ways.items():
                before = self.costs[purpose][way]
                self.costs[purpose][way] = Cost(*(one + other for one, other in zip(before, cost, strict=True)))
        for phase in PHASES:
            self.seconds[phase] += result.seconds.get(phase, 0.0)
        self.refused.update(record.refused.keys())
        self.dropped += len(record.dropped)
        self.late += len(record.late)
        self.empty += not record.participants and not record.closing
        if result.sockets is not None:
            self.counted += 1
            self.seen.update(result.sockets.keys())
            for client, used in result.sockets.items():
                self.sockets[client].update(used)

    def absences(self) -> dict[str, dict[str, int]]:
        """Count clients that dropped out or were late, and rounds without any upload; nothing if there are none."""
        if not self.dropped and not self.late:
            return {}
        return {"absences": {"dropped": self.dropped, "late": self.late, "empty_rounds": self.empty}}

    def socket_means(self) -> dict[str, Any] | None:
        """Return the bytes on the network, of all clients together and of each; None if they were not counted."""
        if not self.counted:
            return None
        clients = {
            str(client): {way: _mean(self.sockets[client][way], self.seen[client]) for way in WAYS}
            for client in sorted(self.seen)
        }
        together = {way: sum(used[way] for used in self.sockets.values()) for way in WAYS}
        return {**{way: _mean(total, self.counted) for way, total in together.items()}, "clients": clients}


def round_values(result: RoundResult) -> dict[str, Any]:
    """Return the numbers of one round by name, for trackers and frames; bytes are those that summary.json counts."""
    record = result.record
    training, evaluation = _cost(record, "training"), _cost(record, "evaluation")
    values: dict[str, Any] = {
        "accuracy": record.accuracy,
        "client_mean": record.client_mean,
        "loss": record.loss,
        "payload_bytes": {way: training[way].payload for way in WAYS},
        "wire_bytes": {way: training[way].wire for way in WAYS},
        "evaluation_bytes": {way: evaluation[way].wire for way in WAYS},
        "seconds": result.seconds,
    }
    if result.sockets is not None:
        values["socket_bytes"] = {way: sum(used[way] for used in result.sockets.values()) for way in WAYS}
    return values


def over_rounds(curve: Sequence[tuple[int, float | None]]) -> dict[str, float | None]:
    """Return each statistic of a curve of (rounds of training, accuracy); None if no accuracy is known."""
    found = {name: _known(curve[index][1] for index in places) for name, places in read_at(curve).items()}
    return {name: sum(values) / len(values) if values else None for name, values in found.items()}


def read_at(curve: Sequence[tuple[int, float | None]]) -> dict[str, list[int]]:
    """Return the indices of the points of a curve that each statistic is the mean of."""
    known = [index for index, (_, accuracy) in enumerate(curve) if accuracy is not None]
    best = max(known, key=lambda index: curve[index][1] or 0.0, default=None)
    return {
        "best": [] if best is None else [best],
        "last": known[-1:],
        "last10": [index for index in known if curve[index][0]][-MEANT:],
    }


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _cost(record: RoundRecord, purpose: Purpose) -> dict[Direction, Cost]:
    return record.traffic.get(purpose, {"up": Cost(), "down": Cost()})


def _mean(total: int, count: int) -> int | float:
    """Return the mean, as an integer if it is one, since bytes usually are."""
    return total // count if total % count == 0 else total / count
