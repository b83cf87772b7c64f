"""A round reads from a GPU at once what a CPU computes client by client, with the same values."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from support import make_client
from tinyproto.core.prototypes import Message, Prototypes, on_host
from tinyproto.engine.client import LastGood
from tinyproto.engine.measure import Scored, scores

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
GPU = torch.device("cuda")


def random_rows(generator: torch.Generator, classes: int, width: int) -> Prototypes:
    present = torch.rand(classes, generator=generator) < 0.5
    return Prototypes(torch.randn(classes, width, generator=generator), present)


def test_scores_are_those_of_a_cpu() -> None:
    generator, classes, width = torch.Generator().manual_seed(0), 20, 50
    here, there = [], []
    for samples in (0, 7, 300):
        head = nn.Linear(width, classes)
        features = torch.randn(samples, width, generator=generator)
        labels = torch.randint(0, classes, (samples,), generator=generator)
        rows = [random_rows(generator, classes, width) for _ in range(2)]
        with torch.no_grad():
            here.append(scores([Scored(head, features, labels, *rows)])[0])
        there.append(Scored(head.to(GPU), features.to(GPU), labels.to(GPU), *(each.to(GPU) for each in rows)))
    assert scores(there) == here


def test_messages_are_fetched_as_they_are() -> None:
    generator = torch.Generator().manual_seed(0)
    messages = [Message(random_rows(generator, 5, 3)), Message(tensors={"weight": torch.rand(2, 3)}), Message()]
    moved = [
        Message(message.rows and message.rows.to(GPU), {name: value.to(GPU) for name, value in message.tensors.items()})
        for message in messages
    ]
    for message, back in zip(messages, on_host(moved), strict=True):
        for one, two in zip(message.all_tensors(), back.all_tensors(), strict=True):
            assert two.device.type == "cpu"
            assert torch.equal(one, two)


@pytest.mark.parametrize("value", [1e30, math.inf, math.nan])
def test_weights_that_are_not_finite_are_found(value: float) -> None:
    clients = [make_client([3, 3, 3, 3], id_=number) for number in range(2)]
    for client in clients:
        client.model.to(GPU)
    clients[1].model.extractor[2].running_mean[3] = value  # type: ignore[index]
    assert LastGood().diverged(clients) == (set() if math.isfinite(value) else {1})
