"""One round and its record, the same for a simulation and a federation.

Round t first evaluates the model after t − 1 rounds with what the server sends, as the published runs do, and then
trains it. One closing exchange after the last round only evaluates.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median

from tinyproto.core.prototypes import Message
from tinyproto.engine.checks import SCORES
from tinyproto.engine.measure import RULES, WAYS, Cost, Direction, Meter, Purpose
from tinyproto.engine.server import Channel, RoundPlan, ServerRuntime

Traffic = dict[Direction, Cost]


@dataclass(frozen=True)
class ClientRecord:
    """One client in one round; a value that it was not asked for is None."""

    test_samples: int | None
    correct: dict[str, int | None]  # by rule
    payload_bytes: dict[Direction, int]
    wire_bytes: dict[Direction, int]


@dataclass(frozen=True)
class RoundRecord:
    """The results and the cost of one round, without times, so that equal runs have equal records."""

    round: int
    closing: bool
    participants: tuple[int, ...]
    accuracy: dict[str, float | None]  # by rule: Σ correct / Σ test samples
    client_mean: dict[str, float | None]  # by rule: the mean of the clients' accuracies
    loss: dict[str, float]  # sample-weighted means of the last local epoch
    traffic: dict[Purpose, Traffic]
    clients: dict[int, ClientRecord]
    refused: dict[int, str] = field(default_factory=dict)  # why an answer was left out, by client
    server: dict[str, float] = field(default_factory=dict)  # `Algorithm.watched` after the round
    distrusted: dict[int, int] = field(default_factory=dict)  # rows, or networks, that a defence left out, by client
    dropped: tuple[int, ...] = ()  # received the round and never answered
    late: tuple[int, ...] = ()  # trained, but were not aggregated


def play_round(server: ServerRuntime, channel: Channel, plan: RoundPlan, meter: Meter) -> RoundRecord:
    """Run one round: send the state, receive the answers, aggregate the uploads; return the record.

    A client whose answer is invalid is left out and recorded as refused. So is a client whose upload would make the
    next state one that clients refuse.
    """
    answers = server.ask(channel, plan, meter)
    replies = answers.messages
    dropped = server.aggregate(plan.round, answers) if answers.trained else {}
    refused = {**answers.refused, **dropped}
    trained = {client: replies[client] for client in answers.trained if client not in dropped}
    weights = {client: server.believed[client].train_samples for client in trained}
    return RoundRecord(
        round=plan.round.number,
        closing=plan.closing,
        participants=tuple(trained),
        accuracy={rule: _accuracy(rule, replies, server.defence.size_ratio) for rule in RULES},
        client_mean={rule: _client_mean(rule, replies) for rule in RULES},
        loss=_mean_loss(trained, weights, SCORES | server.algorithm.reported),
        traffic=_traffic(meter),
        clients={
            client: _client_record(client, replies.get(client, Message()), meter)
            for client in sorted(replies.keys() | plan.dropped)
        },
        refused={client: str(error) for client, error in sorted(refused.items())},
        server=dict(server.algorithm.watched(server.state)),
        distrusted=dict(server.distrusted) if trained else {},
        dropped=tuple(sorted(plan.dropped)),
        late=tuple(sorted(plan.late - refused.keys())),
    )


def _scores(rule: str, replies: Mapping[int, Message]) -> list[tuple[int, int]]:
    """Return (correct, samples) of the clients that have test samples; none if the rule applies to no client yet.

    A client that the rule does not apply to counts as wrong, so that all rules cover the same clients.
    """
    name = f"correct_{rule}"
    scored = [message.metrics for message in replies.values() if message.metrics.get("test_samples")]
    if not any(name in metrics for metrics in scored):
        return []
    return [(int(metrics.get(name, 0)), int(metrics["test_samples"])) for metrics in scored]


def _accuracy(rule: str, replies: Mapping[int, Message], size_ratio: float | None) -> float | None:
    """Return Σ correct / Σ test samples; a client counts for at most `size_ratio` times the median client's samples."""
    scores = _scores(rule, replies)
    if not scores:
        return None
    most = math.inf if size_ratio is None else size_ratio * median(samples for _, samples in scores)
    believed = [min(samples, most) for _, samples in scores]
    correct = [
        right if size == samples else right / samples * size
        for (right, samples), size in zip(scores, believed, strict=True)
    ]
    return sum(correct) / sum(believed)


def _client_mean(rule: str, replies: Mapping[int, Message]) -> float | None:
    scores = _scores(rule, replies)
    return sum(correct / samples for correct, samples in scores) / len(scores) if scores else None


def _mean_loss(trained: Mapping[int, Message], weights: Mapping[int, int], others: frozenset[str]) -> dict[str, float]:
    names = [name for message in trained.values() for name in message.metrics if name not in others]
    total = max(sum(weights.values()), 1)
    return {
        name: sum(message.metrics.get(name, 0.0) * weights[client] for client, message in trained.items()) / total
        for name in dict.fromkeys(names)
    }


def _traffic(meter: Meter) -> dict[Purpose, Traffic]:
    purposes = dict.fromkeys(purpose for purpose, _, _ in meter.costs)
    return {purpose: {way: meter.total(purpose, way) for way in WAYS} for purpose in purposes}


def _client_record(client: int, message: Message, meter: Meter) -> ClientRecord:
    costs: Traffic = {way: meter.client(client, way) for way in WAYS}
    samples = message.metrics.get("test_samples")
    correct = {rule: message.metrics.get(f"correct_{rule}") for rule in RULES}
    return ClientRecord(
        test_samples=None if samples is None else int(samples),
        correct={rule: None if value is None else int(value) for rule, value in correct.items()},
        payload_bytes={way: cost.payload for way, cost in costs.items()},
        wire_bytes={way: cost.wire for way, cost in costs.items()},
    )
