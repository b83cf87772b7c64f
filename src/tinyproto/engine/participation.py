"""Draw the clients that take part in a round."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal, cast, get_args

import torch

from tinyproto.algorithms.base import Round
from tinyproto.core.streams import Streams
from tinyproto.engine.server import RoundPlan
from tinyproto.errors import DataError, one_line

EvaluatedClients = Literal["auto", "all", "participants"]


def plan_round(
    members: Sequence[int], round_: Round, participation: float, evaluate_every: int, evaluated: EvaluatedClients,
    streams: Streams,
) -> RoundPlan:  # fmt: skip
    """Plan which members train and which are evaluated in a round; after the last round all are evaluated."""
    if round_.number > round_.total:
        return RoundPlan(round_, participants=(), evaluated=frozenset(members), closing=True)
    places = draw_participants(len(members), participation, streams, round_.number)
    participants = [members[place] for place in places]
    due = (round_.number - 1) % evaluate_every == 0
    if evaluated == "auto":
        evaluated = "all" if len(participants) == len(members) else "participants"
    return RoundPlan(round_, participants, frozenset((members if evaluated == "all" else participants) if due else ()))


def participant_count(num_clients: int, fraction: float) -> int:
    """Return how many clients take part in a round, at least one."""
    return max(1, round(fraction * num_clients))


def draw_participants(num_clients: int, fraction: float, streams: Streams, round_number: int) -> list[int]:
    """Draw clients uniformly without replacement, at least one, in order of id."""
    count = participant_count(num_clients, fraction)
    if count == num_clients:
        return list(range(num_clients))
    generator = streams.generator("participants", round_number=round_number)
    return sorted(torch.randperm(num_clients, generator=generator)[:count].tolist())


Event = Literal["drop", "late"]
Trace = Mapping[tuple[int, int], Event]
"""The event of a client in a round, by (round, client)."""

COLUMNS = ("round", "client", "event")


def with_absences(plan: RoundPlan, dropout: float | Trace, late: float, streams: Streams) -> RoundPlan:
    """Return the plan with the participants that drop out of it, and with those whose uploads come late.

    A client's draw depends on the seed, its id and the round alone. The closing exchange has no participants.
    """
    number = plan.round.number

    def happens(event: Event, probability: float, client: int) -> bool:
        if isinstance(dropout, Mapping):
            return dropout.get((number, client)) == event
        if not probability:
            return False
        stream = streams.generator(f"absences/{event}", client=client, round_number=number)
        return float(torch.rand((), generator=stream)) < probability

    share = 0.0 if isinstance(dropout, Mapping) else dropout
    dropped = frozenset(client for client in plan.participants if happens("drop", share, client))
    left = [client for client in plan.participants if client not in dropped]
    return replace(plan, dropped=dropped, late=frozenset(client for client in left if happens("late", late, client)))


def read_trace(path: Path, num_clients: int) -> Trace:
    """Read a trace; raise a DataError that names the line if one is invalid."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = csv.reader(file, strict=True)
            lines = [(rows.line_num, [cell.strip() for cell in row]) for row in rows if row]
    except FileNotFoundError:
        raise DataError(
            f"train.dropout: missing file {path}; give a probability from 0 to below 1, or the path of a trace"
        ) from None
    except (OSError, ValueError, csv.Error) as error:
        raise DataError(f"train.dropout: {path} cannot be read: {one_line(error)}") from error
    if not lines or lines[0][1] != list(COLUMNS):
        raise DataError(f"train.dropout: {path}, line 1: the columns have to be {','.join(COLUMNS)}")
    trace: dict[tuple[int, int], Event] = {}
    for number, row in lines[1:]:
        problem = _problem(row, num_clients, trace)
        if problem is not None:
            raise DataError(f"train.dropout: {path}, line {number}: {problem}")
        trace[int(row[0]), int(row[1])] = cast(Event, row[2])
    return trace


def _problem(row: Sequence[str], num_clients: int, trace: Trace) -> str | None:
    """Return what is wrong with a line of a trace, or None."""
    if len(row) != len(COLUMNS) or not (row[0].isdecimal() and row[1].isdecimal()):
        return f"{','.join(row)!r} is not round,client,event, such as 3,0,drop"
    round_number, client, event = int(row[0]), int(row[1]), row[2]
    if round_number < 1:
        return "rounds count from 1"
    if client >= num_clients:
        return f"there is no client {client}; clients are 0 … {num_clients - 1}"
    if event not in get_args(Event):
        return f"unknown event {event!r}; expected {' or '.join(get_args(Event))}"
    if (round_number, client) in trace:
        return f"client {client} in round {round_number} has an event already; remove one of them"
    return None
