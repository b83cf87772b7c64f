"""Which clients take part in a round."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch

from tinyproto.algorithms.base import Round
from tinyproto.core.streams import Streams
from tinyproto.engine.round import RoundPlan

EvaluatedClients = Literal["auto", "all", "participants"]


def plan_round(
    members: Sequence[int], round_: Round, participation: float, evaluate_every: int, evaluated: EvaluatedClients,
    streams: Streams,
) -> RoundPlan:  # fmt: skip
    """Who of the members trains and who is evaluated in this round; after the last one all are, once more."""
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
    """A uniform draw without replacement, at least one client, in order of id."""
    count = participant_count(num_clients, fraction)
    if count == num_clients:
        return list(range(num_clients))
    generator = streams.generator("participants", round_number=round_number)
    return sorted(torch.randperm(num_clients, generator=generator)[:count].tolist())
