"""The server's fit with its backward pass written out; PyTorch stands in for the GPU kernels."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from support_fit import again, all_but_the_last, by_autograd, make_fit, make_network, make_uploads
from tinyproto.algorithms.fedtgp import margin_contrastive_loss
from tinyproto.core.task import Batch, ParamGroup, Task
from tinyproto.engine import graphed
from tinyproto.engine.eager import EagerTrainer
from tinyproto.engine.graphed import GraphedTrainer
from tinyproto.engine.prototype_fit import PrototypeFit, prototype_fit
from tinyproto.stacked.fallback import CannotStack


class Plain:
    """The kernels' results, computed by PyTorch."""

    def __init__(self) -> None:
        self.calls = 0

    def loss_gradient(self, batch: Batch, learned: Tensor, penalty: Tensor, logged: Tensor) -> Tensor:
        self.calls += 1
        with torch.enable_grad():
            leaf = learned.detach().requires_grad_()
            loss = margin_contrastive_loss(batch.inputs, batch.labels, leaf, penalty)
            (gradient,) = torch.autograd.grad(loss, leaf)
        logged += loss.detach() * len(batch.labels)
        return gradient

    def relu_gradient(
        self, of_hidden: Tensor, hidden: Tensor, hidden_bias: Tensor, of_learned: Tensor, output_bias: Tensor,
        rate: float,
    ) -> None:  # fmt: skip
        of_hidden[hidden <= 0] = 0.0
        hidden_bias -= rate * of_hidden.sum(0)
        output_bias -= rate * of_learned.sum(0)


class Reversed(Plain):
    """Returns the right loss and a wrong gradient."""

    def loss_gradient(self, batch: Batch, learned: Tensor, penalty: Tensor, logged: Tensor) -> Tensor:
        return super().loss_gradient(batch, learned, penalty, logged).flip(0)


class Still(Plain):
    """Does not move a bias."""

    def relu_gradient(
        self, of_hidden: Tensor, hidden: Tensor, hidden_bias: Tensor, of_learned: Tensor, output_bias: Tensor,
        rate: float,
    ) -> None:  # fmt: skip
        super().relu_gradient(of_hidden, hidden, hidden_bias.clone(), of_learned, output_bias, rate)


class Empty(Plain):
    """Returns NaN."""

    def loss_gradient(self, batch: Batch, learned: Tensor, penalty: Tensor, logged: Tensor) -> Tensor:
        return super().loss_gradient(batch, learned, penalty, logged) * torch.nan


class Failing(Plain):
    """Fails to compile."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    def loss_gradient(self, batch: Batch, learned: Tensor, penalty: Tensor, logged: Tensor) -> Tensor:
        raise self.error


def steps_of(network: nn.Module, kernels: Plain, rate: float) -> PrototypeFit:
    return PrototypeFit(network, rate, kernels.loss_gradient, kernels.relu_gradient)


def steps_by(monkeypatch: pytest.MonkeyPatch, kernels: Plain) -> None:
    """Let every fit take its steps with these kernels."""

    def replaced(task: Task) -> PrototypeFit:
        return steps_of(task.modules["prototypes"], kernels, task.groups[0].learning_rate)

    monkeypatch.setattr(graphed, "prototype_fit", replaced)


@pytest.mark.parametrize(("classes", "dim", "count"), [(7, 5, 6), (2, 3, 1), (1, 4, 2)])
def test_a_step_written_out_moves_every_weight_by_its_gradient(classes: int, dim: int, count: int) -> None:
    network = make_network(classes, dim).double()
    values, labels = make_uploads(classes, dim, count)
    batch, penalty = Batch(values.double(), labels), all_but_the_last(classes).double()
    loss, gradients = by_autograd(network, batch, penalty)
    before = {name: value.detach().clone() for name, value in network.named_parameters()}
    logged = torch.full((1, 1), 3.0, dtype=torch.float64)
    steps_of(network, Plain(), rate=0.5).step(dict(network.named_parameters()), batch, penalty, logged)
    for name, value in network.named_parameters():
        torch.testing.assert_close(value.detach(), before[name] - 0.5 * gradients[name])
    assert float(logged) == pytest.approx(3.0 + count * float(loss))


@pytest.mark.parametrize("count", [70, 64, 3])
def test_a_fit_in_steps_written_out_ends_where_the_reference_ends(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    kernels = Plain()
    steps_by(monkeypatch, kernels)
    task = make_fit(7, 20, count, epochs=4)
    reference, mine = again(task), again(task)
    (expected,) = EagerTrainer().fit([reference])
    trainer = GraphedTrainer()
    (found,) = trainer.fit([mine])
    assert kernels.calls == found.steps + len(set(task.plan.sizes))  # one check for every batch size
    assert trainer.notes == []
    torch.testing.assert_close(found.parts, expected.parts, rtol=1e-5, atol=1e-6)
    for one, two in zip(mine.modules.parameters(), reference.modules.parameters(), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-6)


def test_a_second_fit_with_more_uploads_is_checked_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    steps_by(monkeypatch, Plain())
    trainer = GraphedTrainer()
    for count in (40, 50, 40):
        reference = make_fit(5, 8, count)
        mine = again(reference)
        EagerTrainer().fit([reference])
        trainer.fit([mine])
        for one, two in zip(mine.modules.parameters(), reference.modules.parameters(), strict=True):
            torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-6)
    (built,) = trainer.captured.values()
    assert built is not None
    assert built.kernels is not None
    assert len(built.kernels.checked) == 3  # batches of 32, 8 and 18


@pytest.mark.parametrize("kernels", [Reversed(), Still(), Empty()], ids=["gradient", "bias", "nan"])
def test_kernels_that_disagree_are_not_used_and_a_note_says_so(monkeypatch: pytest.MonkeyPatch, kernels: Plain) -> None:
    task = make_fit(7, 20, 40)
    expected, found = again(task), again(task)
    GraphedTrainer().fit([expected])
    steps_by(monkeypatch, kernels)
    trainer = GraphedTrainer()
    trainer.fit([found])
    trainer.fit([again(task)])
    assert kernels.calls == 1
    (note,) = trainer.notes
    assert re.match(r"the server .*kernels.* disagree with PyTorch", note)
    for one, two in zip(found.modules.parameters(), expected.modules.parameters(), strict=True):
        assert torch.equal(one, two)


def test_kernels_that_fail_to_compile_are_not_used_and_a_note_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    steps_by(monkeypatch, Failing(RuntimeError("Failed to find C compiler.")))
    trainer = GraphedTrainer()
    (found,) = trainer.fit([make_fit(7, 20, 40)])
    assert found.steps == 6
    (note,) = trainer.notes
    assert re.match(r"the server .*kernels: RuntimeError: Failed to find C compiler\.$", note)


def test_a_lack_of_memory_in_a_check_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    steps_by(monkeypatch, Failing(torch.OutOfMemoryError("none left")))
    with pytest.raises(torch.OutOfMemoryError, match="none left"):
        GraphedTrainer().fit([make_fit(7, 20, 40)])


@pytest.mark.parametrize("classes", [2, 3, 7])
def test_a_check_runs_once_and_touches_neither_weights_nor_draws(classes: int) -> None:
    network, kernels = make_network(classes, 20), Plain()
    weights = {name: value.detach() for name, value in network.named_parameters()}
    before = {name: value.clone() for name, value in weights.items()}
    fit, batch = steps_of(network, kernels, rate=0.1), Batch(*make_uploads(classes, 20, 9))
    state = torch.get_rng_state()
    for _ in range(3):
        fit.check(weights, batch, all_but_the_last(classes))
    assert kernels.calls == 1
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in weights.items())
    with pytest.raises(CannotStack):
        steps_of(network, Reversed(), rate=0.1).check(weights, batch, all_but_the_last(classes))


def test_only_a_fit_on_a_gpu_has_these_steps() -> None:
    task = make_fit(7, 20, 40)
    assert prototype_fit(task) is None  # on a CPU
    assert prototype_fit(replace(task, groups=[ParamGroup("prototypes", 0.1, clip_norm=1.0)])) is None
    assert prototype_fit(replace(task, loss=lambda modules, batch, context: task.loss(modules, batch, context))) is None
