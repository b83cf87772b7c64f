from __future__ import annotations

import torch
from torch.nn import functional

from support import FEDERATION, NO_FIT, STREAMS, make_client, update
from tinyproto.algorithms.base import ClientInfo, NoHyper, Round
from tinyproto.algorithms.local import SPEC
from tinyproto.core.prototypes import Message
from tinyproto.core.task import batch_plan
from tinyproto.engine.training import EagerTrainer

ALGORITHM = SPEC.build(NoHyper(), FEDERATION)


def test_nothing_travels_and_nothing_is_kept() -> None:
    client = make_client([3, 3, 0, 0])
    ALGORITHM.client.init(client, STREAMS)
    assert ALGORITHM.client.receive(client, Message()) is None
    assert ALGORITHM.client.update(client, NO_FIT, Round(1, 1)) == Message()
    state = ALGORITHM.server.init(STREAMS)
    assert ALGORITHM.server.broadcast(state, ClientInfo(0, 6, 6, 2)) == Message()
    assert ALGORITHM.server.aggregate(state, [update(None)], EagerTrainer(), Round(1, 1), STREAMS) == {}
    assert ALGORITHM.table2_parameters([3, 4]) == 0


def test_its_loss_is_the_cross_entropy_of_the_head() -> None:
    client = make_client([4, 4, 0, 0])
    client.model.eval()
    task = ALGORITHM.client.task(client, batch_plan(8, 8, 1, last="keep", shuffle=None), seed=0)
    batch = client.train.batch(torch.arange(8))
    expected = functional.cross_entropy(client.model(batch.inputs).logits, batch.labels)
    torch.testing.assert_close(task.loss(task.modules, batch, task.context).loss, expected)
