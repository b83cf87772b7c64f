"""The kernels of the server's fit compared with PyTorch, and whole fits with the eager trainer."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from support_fit import again, all_but_the_last, by_autograd, make_fit, make_network, make_uploads
from tinyproto.algorithms.fedtgp import margin_contrastive_loss
from tinyproto.core.task import Batch
from tinyproto.engine.eager import EagerTrainer
from tinyproto.engine.graphed import CapturedTask, GraphedTrainer
from tinyproto.engine.prototype_fit import MOST_CLASSES, PrototypeFit, prototype_fit

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


class Kernels:
    def __init__(self) -> None:
        from tinyproto.stacked.kernels.contrast import loss_gradient, relu_gradient

        self.loss_gradient, self.relu_gradient = loss_gradient, relu_gradient


@pytest.fixture
def kernels() -> Kernels:
    pytest.importorskip("triton")
    return Kernels()


def uploads(classes: int, dim: int, count: int) -> Batch:
    return Batch(*(each.cuda() for each in make_uploads(classes, dim, count)))


def found_by(kernels: Kernels, batch: Batch, learned: Tensor, penalty: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean loss and its gradient."""
    logged = torch.zeros(1, 1, device="cuda").double()
    gradient = kernels.loss_gradient(batch, learned, penalty, logged)
    return logged.squeeze() / len(batch.labels), gradient


def exact(batch: Batch, learned: Tensor, penalty: Tensor) -> tuple[Tensor, Tensor]:
    """Return the same computed by PyTorch in float64."""
    leaf = learned.double().requires_grad_()
    loss = margin_contrastive_loss(batch.inputs.double(), batch.labels, leaf, penalty.double())
    (gradient,) = torch.autograd.grad(loss, leaf)
    return loss.detach(), gradient


def assert_close(found: tuple[Tensor, ...], expected: tuple[Tensor, ...], tolerance: float = 5e-5) -> None:
    """Compare up to a share of the largest value."""
    for one, two in zip(found, expected, strict=True):
        assert float((one.double() - two).abs().max()) <= tolerance * float(two.abs().max())


@pytest.mark.parametrize("count", [1, 2, 20, 32, 33])
@pytest.mark.parametrize(("classes", "dim"), [(100, 500), (10, 500), (200, 500), (10, 100), (100, 1000), (3, 33)])
def test_the_kernels_give_pytorch_s_loss_and_gradient(kernels: Kernels, classes: int, dim: int, count: int) -> None:
    batch, penalty = uploads(classes, dim, count), all_but_the_last(classes).cuda()
    learned = make_uploads(classes, dim, classes, seed=1)[0].cuda()
    assert_close(found_by(kernels, batch, learned, penalty), exact(batch, learned, penalty))


def test_a_distance_of_zero_gives_no_gradient(kernels: Kernels) -> None:
    batch, penalty = uploads(10, 500, 8), all_but_the_last(10).cuda()
    learned = make_uploads(10, 500, 10, seed=1)[0].cuda()
    batch.inputs[3] = learned[batch.labels[3]]
    batch.inputs[5] = learned[(batch.labels[5] + 1) % 10]
    found = found_by(kernels, batch, learned, penalty)
    assert all(bool(each.isfinite().all()) for each in found)
    assert_close(found, exact(batch, learned, penalty))


def test_a_class_that_is_not_offered_is_no_candidate_and_gets_no_gradient(kernels: Kernels) -> None:
    batch, penalty = uploads(10, 500, 32), all_but_the_last(10).cuda()
    learned = make_uploads(10, 500, 10, seed=1)[0].cuda()
    loss, gradient = found_by(kernels, batch, learned, penalty)
    learned[9] = batch.inputs[0]  # nearest of all, were it offered
    again_loss, again_gradient = found_by(kernels, batch, learned, penalty)
    assert float(loss) == float(again_loss)
    assert torch.equal(gradient, again_gradient)
    assert not bool(gradient[9].any())


def test_what_is_not_a_number_stays_so(kernels: Kernels) -> None:
    batch, penalty = uploads(10, 500, 4), all_but_the_last(10).cuda()
    learned = make_uploads(10, 500, 10, seed=1)[0].cuda()
    learned[2, 7] = torch.nan
    loss, gradient = found_by(kernels, batch, learned, penalty)
    assert bool(loss.isnan())
    assert bool(gradient[2].isnan().all())


@pytest.mark.parametrize(("classes", "dim"), [(100, 500), (200, 500), (10, 33)])
def test_the_way_back_through_a_relu_is_pytorch_s(kernels: Kernels, classes: int, dim: int) -> None:
    gradient, later, inputs = (make_uploads(classes, dim, classes, seed)[0].cuda() for seed in (1, 2, 3))
    expected = torch.where(inputs > 0, gradient, 0.0)
    first, second = torch.ones(dim, device="cuda"), torch.zeros(dim, device="cuda")
    kernels.relu_gradient(gradient, torch.relu(inputs), first, later, second, 0.5)
    assert torch.equal(gradient, expected)
    assert_close((first, second), (1.0 - 0.5 * expected.double().sum(0), -0.5 * later.double().sum(0)))


@pytest.mark.parametrize(("classes", "dim", "count"), [(100, 500, 32), (10, 500, 20)])
def test_a_captured_step_is_the_step(kernels: Kernels, classes: int, dim: int, count: int) -> None:
    network = make_network(classes, dim).cuda()
    batch, penalty = uploads(classes, dim, count), all_but_the_last(classes).cuda()
    start = {name: value.detach().clone() for name, value in network.named_parameters()}
    loss, gradients = by_autograd(network.double(), Batch(batch.inputs.double(), batch.labels), penalty.double())
    fit = PrototypeFit(network, 1.0, kernels.loss_gradient, kernels.relu_gradient)
    weights = {name: value.clone() for name, value in start.items()}
    logged = torch.zeros(1, 1, device="cuda").double()
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        fit.step(weights, batch, penalty, logged)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        fit.step(weights, batch, penalty, logged)
    for name, value in start.items():
        weights[name].copy_(value)
    logged.zero_()
    graph.replay()
    assert float(logged) == pytest.approx(count * float(loss), rel=1e-5)
    for name, value in start.items():  # a weight moves by less than it is, so its rounding weighs more
        allowed = 5e-5 * float(gradients[name].abs().max()) + 2e-7 * float(value.abs().max())
        assert float((value - weights[name] - gradients[name]).abs().max()) <= allowed


@pytest.mark.parametrize(("classes", "dim", "count"), [(100, 500, 340), (10, 500, 70), (200, 100, 96), (10, 64, 1)])
def test_a_whole_fit_ends_where_the_reference_ends(classes: int, dim: int, count: int) -> None:
    pytest.importorskip("triton")
    task = make_fit(classes, dim, count, epochs=8, device="cuda")
    reference, mine = again(task), again(task)
    (expected,) = EagerTrainer("cuda").fit([reference])
    trainer = GraphedTrainer("cuda")
    (found,) = trainer.fit([mine])
    assert trainer.notes == []
    assert built_by(trainer).kernels is not None
    torch.testing.assert_close(found.parts, expected.parts, rtol=1e-4, atol=1e-5)
    before, after, wanted = (dict(each.modules.named_parameters()) for each in (task, mine, reference))
    for name, start in before.items():
        way = float((wanted[name] - start).detach().norm())
        assert float((after[name] - wanted[name]).detach().norm()) <= 1e-3 * way


def test_more_classes_than_a_program_holds_and_other_types_use_autograd() -> None:
    task = make_fit(MOST_CLASSES + 1, 20, 300, device="cuda")
    reference, mine = again(task), again(task)
    EagerTrainer("cuda").fit([reference])
    trainer = GraphedTrainer("cuda")
    trainer.fit([mine])
    assert built_by(trainer).kernels is None
    for one, two in zip(mine.modules.parameters(), reference.modules.parameters(), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-3, atol=1e-5)
    doubled = make_fit(10, 20, 30, device="cuda")
    doubled.modules.double()
    assert prototype_fit(doubled) is None


def built_by(trainer: GraphedTrainer) -> CapturedTask:
    (built,) = trainer.captured.values()
    assert built is not None
    return built
