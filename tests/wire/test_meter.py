from __future__ import annotations

import torch

from tinyproto.core.prototypes import Message, Prototypes
from tinyproto.engine.measure import Cost, Meter
from tinyproto.wire.codec import payload_bytes

ROWS = Message(rows=Prototypes(torch.zeros(5, 3), torch.tensor([True, True, False, False, False])))


def cost(message: Message, wire: int) -> Cost:
    return Cost(message.parameters, payload_bytes(message), wire)


def test_costs_add_up_by_purpose_direction_and_client() -> None:
    meter = Meter()
    meter.count("training", "up", 0, cost(ROWS, 100))
    meter.count("training", "up", 1, cost(ROWS, 90))
    meter.count("training", "down", 1, cost(Message(), 40))
    meter.count("evaluation", "up", 1, cost(Message(), 50))
    meter.count("hello", "up", 1, cost(Message(), 7))
    assert meter.total("training", "up") == Cost(parameters=12, payload=48, wire=190)
    assert meter.total("training", "down") == Cost(0, 0, 40)
    assert meter.client(1, "up") == Cost(6, 24, 140)
    assert meter.total("closing", "up") == Cost()


def test_two_frames_of_one_client_both_count() -> None:
    meter = Meter()
    meter.count("training", "up", 0, cost(ROWS, 100))
    meter.count("training", "up", 0, cost(ROWS, 100))
    assert meter.total("training", "up") == Cost(12, 48, 200)


def test_metrics_are_never_payload() -> None:
    meter = Meter()
    meter.count("training", "up", 0, cost(Message(metrics={"loss": 1.0}), 60))
    assert meter.total("training", "up") == Cost(0, 0, 60)
