from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from torch import Tensor, nn

from support import NUM_CLASSES, PROTO_DIM, head_weight, make_client, tiny_net
from tinyproto.algorithms.base import Client
from tinyproto.core.batching import batch_plan
from tinyproto.core.prototypes import class_sums
from tinyproto.core.task import Batch, BatchPlan, ParamGroup, Step, Task, TensorData
from tinyproto.engine.training import EagerTrainer


def mean_square(modules: nn.ModuleDict, batch: Batch, context: Mapping[str, Tensor]) -> Step:
    predicted = modules["net"](batch.inputs)
    loss = (predicted.squeeze(1) - context["target"]).square().mean()
    return Step(loss, loss.detach().unsqueeze(0), observed=batch.inputs)


def line_task(clip: float | None = None, epochs: int = 1, learning_rate: float = 0.1) -> Task:
    net = nn.Linear(1, 1, bias=False)
    nn.init.constant_(net.weight, 2.0)
    data = TensorData(torch.tensor([[1.0], [2.0], [3.0]]), torch.tensor([0, 1, 1]))
    return Task(
        name="a line",
        key="line",
        modules=nn.ModuleDict({"net": net}),
        groups=[ParamGroup("net", learning_rate, clip)],
        context={"target": torch.tensor(0.0)},
        loss=mean_square,
        part_names=("square",),
        data=data,
        plan=batch_plan(3, 2, epochs, last="keep", shuffle=None),
        num_classes=2,
        seed=0,
    )


def slope(task: Task) -> float:
    weight = task.modules["net"].weight
    assert isinstance(weight, Tensor)
    return float(weight.detach())


def test_steps_are_plain_gradient_descent() -> None:
    task = line_task()
    (result,) = EagerTrainer().fit([task])
    # Batch (1, 2): loss 2.5 w² at w = 2 is 10, gradient 10, so w = 1. Batch (3): loss 9, gradient 18, so w = −0.8.
    assert slope(task) == pytest.approx(-0.8)
    assert result.steps == 2
    assert result.last_epoch() == {"square": pytest.approx((2 * 10 + 9) / 3)}


def test_clipping_bounds_the_gradient_of_its_module() -> None:
    task = line_task(clip=1.0)
    EagerTrainer().fit([task])
    assert slope(task) == pytest.approx(2.0 - 0.1 - 0.1, abs=1e-5)


def test_what_is_observed_is_summed_by_class_over_the_last_epoch() -> None:
    (result,) = EagerTrainer().fit([line_task(epochs=3, learning_rate=0.001)])
    assert result.observed is not None
    assert result.observed.sums.tolist() == [[1.0], [5.0]]
    assert result.observed.counts.tolist() == [1, 2]
    assert result.parts.shape == (3, 1)
    assert result.parts[2, 0] < result.parts[0, 0]


def test_an_error_says_whom_it_hit() -> None:
    task = line_task()
    broken = Task(**{**task.__dict__, "context": {}})
    with pytest.raises(KeyError) as caught:
        EagerTrainer().fit([broken])
    assert caught.value.__notes__ == ["while training a line"]


def logits_task(client: Client, plan: BatchPlan, seed: int = 0) -> Task:
    """Pulls all logits to zero."""
    return Task(
        name="client 0",
        key="k",
        modules=nn.ModuleDict({"model": client.model}),
        groups=[ParamGroup("model", 0.1)],
        context={},
        loss=lambda modules, batch, _: Step(modules["model"](batch.inputs).logits.square().mean(), torch.zeros(1)),
        part_names=("zero",),
        data=client.train,
        plan=plan,
        num_classes=NUM_CLASSES,
        seed=seed,
    )


def test_a_single_sample_trains_with_normalisation_in_eval_mode() -> None:
    client = make_client([1, 0, 0, 0])
    norm = next(module for module in client.model.modules() if isinstance(module, nn.BatchNorm1d))
    task = logits_task(client, batch_plan(1, 16, 1, last="join", shuffle=None))
    before = head_weight(client).clone()
    EagerTrainer().fit([task])
    assert norm.num_batches_tracked is not None
    assert int(norm.num_batches_tracked) == 0
    assert not torch.equal(before, head_weight(client))


def test_only_the_batch_of_one_does_without_batch_statistics() -> None:
    client = make_client([5, 4, 0, 0])
    norm = next(module for module in client.model.modules() if isinstance(module, nn.BatchNorm1d))
    task = logits_task(client, batch_plan(9, 4, 1, last="keep", shuffle=None))
    EagerTrainer().fit([task])
    assert norm.num_batches_tracked is not None
    assert int(norm.num_batches_tracked) == 2


def test_features_come_in_eval_mode_whatever_the_batch_size() -> None:
    client = make_client([5, 5, 5, 5])
    client.model.train()
    small, large = EagerTrainer(feature_batch=3), EagerTrainer()
    (in_parts,), (at_once,) = (trainer.features([client.model], [client.train]) for trainer in (small, large))
    torch.testing.assert_close(in_parts, at_once)
    assert at_once.shape == (20, PROTO_DIM)
    assert not at_once.requires_grad
    client.model.eval()
    torch.testing.assert_close(at_once, client.model(client.train.batch(slice(None)).inputs).features.detach())


def test_no_samples_give_no_features_of_the_right_width() -> None:
    empty = TensorData(torch.zeros(0, 1, 6, 6), torch.zeros(0, dtype=torch.int64))
    (features,) = EagerTrainer().features([tiny_net((1, 6, 6), PROTO_DIM, NUM_CLASSES)], [empty])
    assert features.shape == (0, PROTO_DIM)
    assert class_sums(features, empty.labels, NUM_CLASSES).counts.tolist() == [0] * NUM_CLASSES


def test_a_plan_without_batches_leaves_no_trace() -> None:
    task = line_task()
    nothing = Task(**{**task.__dict__, "plan": batch_plan(0, 2, 1, last="join", shuffle=None)})
    (result,) = EagerTrainer().fit([nothing])
    assert result.steps == 0
    assert result.last_epoch() == {}
    assert slope(task) == 2.0


def test_dropout_follows_the_task_s_seed() -> None:
    def trained(seed: int) -> Tensor:
        client = make_client([8, 8, 8, 8])
        task = logits_task(client, batch_plan(32, 8, 1, last="join", shuffle=None), seed)
        EagerTrainer().fit([task])
        return head_weight(client)

    assert torch.equal(trained(1), trained(1))
    assert not torch.equal(trained(1), trained(2))
