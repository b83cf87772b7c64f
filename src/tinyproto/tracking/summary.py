"""The result of a round, and summary.json: what each cell of the grid reached and what it cost."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tinyproto.algorithms.base import Derived
from tinyproto.engine.client import Steps
from tinyproto.engine.measure import RULES, WAYS, Cost, Direction, Purpose
from tinyproto.engine.round import RoundRecord

SCHEMA_VERSION = 1
PHASES = ("total", "train", "prototypes", "server", "evaluate", "clients")

MEANT = 10
"""The number of evaluations that `last10` is the mean of, if there are as many."""


class SocketColumns(Mapping[int, Mapping[Direction, int]]):
    """Bytes on the network by client in arrays, which take a tenth of the memory of one mapping each."""

    def __init__(self, used: Mapping[int, Mapping[Direction, int]]) -> None:
        self._clients = array("Q", sorted(used))
        self._columns = {way: array("Q", (used[client][way] for client in self._clients)) for way in WAYS}

    def __getitem__(self, client: int) -> Mapping[Direction, int]:
        row = bisect_left(self._clients, client)
        if row == len(self._clients) or self._clients[row] != client:
            raise KeyError(client)
        return {way: self._columns[way][row] for way in WAYS}

    def __iter__(self) -> Iterator[int]:
        return iter(self._clients)

    def __len__(self) -> int:
        return len(self._clients)


@dataclass(frozen=True)
class RoundResult:
    """A round's record, and its times."""

    record: RoundRecord
    seconds: dict[str, float]  # total, train, prototypes, server, evaluate, clients
    notes: tuple[str, ...] = ()  # on how it was executed
    steps: Steps | None = None  # of the clients, if they are counted
    sockets: Mapping[int, Mapping[Direction, int]] | None = None  # bytes on the network by client, if there is one

    def for_summary(self) -> RoundResult:
        """Return what a summary reads; without the clients, a run of many rounds keeps far less in memory."""
        record = replace(self.record, clients={}, loss={}, server={})
        return RoundResult(record, self.seconds, sockets=None if self.sockets is None else SocketColumns(self.sockets))


def summarise(
    rounds: Sequence[RoundResult], identity: Mapping[str, Any], formula: int | None, peak_memory: int, derived: Derived
) -> dict[str, Any]:
    """Return one entry of summary.json's results; `identity` names the cell of the grid."""
    records = [result.record for result in rounds]
    measured = _measured(rounds)
    training = [_cost(result.record, "training") for result in measured]
    return {
        **identity,
        "derived": dict(derived),
        **left_out(records),
        "accuracy": accuracy_summary(records),
        "params_per_round": _mean([sum(cost[way].parameters for way in WAYS) for cost in training]),
        "params_per_round_formula": formula,
        "payload_bytes_per_round": {way: _mean([cost[way].payload for cost in training]) for way in WAYS},
        "payload_bytes_total": {way: sum(_cost(record, "training")[way].payload for record in records) for way in WAYS},
        "wire_bytes_per_round": {way: _mean([cost[way].wire for cost in training]) for way in WAYS},
        "evaluation_bytes_per_round": {
            way: _mean([_cost(result.record, "evaluation")[way].wire for result in measured]) for way in WAYS
        },
        "socket_bytes_per_round": _sockets(measured),
        "hello_bytes": {way: sum(_cost(record, "hello")[way].wire for record in records) for way in WAYS},
        "closing_bytes": {way: _cost(records[-1], "closing")[way].wire for way in WAYS},
        "seconds_per_round": {
            phase: sum(result.seconds.get(phase, 0.0) for result in measured) / len(measured) for phase in PHASES
        },
        "peak_memory_bytes": peak_memory,
        **_absences(records),
    }


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


def left_out(records: Iterable[RoundRecord]) -> dict[str, Any]:
    """Count the answers that were left out: `left_out` over all rounds, `left_out_clients` for each client."""
    counts = Counter(client for record in records for client in record.refused)
    return {"left_out": counts.total(), "left_out_clients": {str(client): counts[client] for client in sorted(counts)}}


def accuracy_summary(records: Sequence[RoundRecord]) -> dict[str, dict[str, float | None]]:
    """Return best, last and mean of the last ten evaluations by each rule, and the last mean over clients.

    Round 1 evaluates untrained networks, so it never enters the mean of the last ten.
    """
    found = {rule: over_rounds([(record.round - 1, record.accuracy[rule]) for record in records]) for rule in RULES}
    means = {rule: _known(record.client_mean[rule] for record in records) for rule in RULES}
    return {
        **{name: {rule: found[rule][name] for rule in RULES} for name in ("best", "last", "last10")},
        "client_mean": {rule: curve[-1] if curve else None for rule, curve in means.items()},
    }


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


def _absences(records: Sequence[RoundRecord]) -> dict[str, dict[str, int]]:
    """Count clients that dropped out or were late, and rounds without any upload; return nothing if there are none."""
    dropped, late = (sum(len(getattr(record, name)) for record in records) for name in ("dropped", "late"))
    if not dropped and not late:
        return {}
    empty = sum(not record.participants for record in records if not record.closing)
    return {"absences": {"dropped": dropped, "late": late, "empty_rounds": empty}}


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _measured(rounds: Sequence[RoundResult]) -> Sequence[RoundResult]:
    """Return rounds 2 to T, since round 1 sends no prototypes down yet; round 1 if there is no other."""
    trained = [result for result in rounds if not result.record.closing]
    return trained[1:] or trained


def _cost(record: RoundRecord, purpose: Purpose) -> dict[Direction, Cost]:
    return record.traffic.get(purpose, {"up": Cost(), "down": Cost()})


def _sockets(rounds: Sequence[RoundResult]) -> dict[str, Any] | None:
    """Return the bytes on the network, of all clients together and of each; None if they were not counted."""
    counted = [result.sockets for result in rounds if result.sockets is not None]
    if not counted:
        return None
    by_client: dict[int, list[Mapping[Direction, int]]] = defaultdict(list)
    for sockets in counted:
        for client, used in sockets.items():
            by_client[client].append(used)
    totals: dict[str, Any] = {
        way: _mean([sum(used[way] for used in sockets.values()) for sockets in counted]) for way in WAYS
    }
    clients = {
        str(client): {way: _mean([used[way] for used in by_client[client]]) for way in WAYS}
        for client in sorted(by_client)
    }
    return {**totals, "clients": clients}


def _mean(values: Sequence[int]) -> int | float:
    """Return the mean, as an integer if it is one, since bytes usually are."""
    total, count = sum(values), len(values)
    return total // count if total % count == 0 else total / count
