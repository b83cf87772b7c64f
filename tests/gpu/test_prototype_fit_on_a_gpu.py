"""The kernel of the server's fit compared with PyTorch, and whole fits with the eager trainer."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from support_fit import again, all_but_the_last, by_autograd, make_fit, make_network, make_uploads
from tinyproto.core.task import Batch, State
from tinyproto.engine.eager import EagerTrainer
from tinyproto.engine.graphed import CapturedTask, GraphedTrainer
from tinyproto.engine.prototype_fit import MOST_CLASSES, PrototypeFit, prototype_fit

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


def fit_of(classes: int, dim: int) -> PrototypeFit:
    pytest.importorskip("triton")
    fit = prototype_fit(make_fit(classes, dim, 2, device="cuda"))
    assert fit is not None
    return fit


def uploads(classes: int, dim: int, count: int) -> Batch:
    return Batch(*(each.cuda() for each in make_uploads(classes, dim, count)))


def by_kernel(samples: Batch, network: nn.Module, penalty: Tensor, batch: int) -> tuple[float, State]:
    """Return the mean loss of an epoch at rate 1, and how far each weight moved."""
    before = {name: value.detach().clone() for name, value in network.named_parameters()}
    weights, logged = {name: value.clone() for name, value in before.items()}, torch.zeros(1, device="cuda").double()
    fit_of(*before["embedding.weight"].shape).epochs(weights, samples, batch, penalty, logged, 1.0)
    return float(logged) / len(samples.labels), {name: before[name] - weights[name] for name in before}


@pytest.mark.parametrize("count", [1, 2, 20, 32, 64])
@pytest.mark.parametrize(("classes", "dim"), [(100, 500), (10, 500), (200, 500), (10, 100), (100, 1000), (3, 33)])
def test_a_step_moves_every_weight_by_its_gradient(classes: int, dim: int, count: int) -> None:
    network, penalty = make_network(classes, dim).cuda(), all_but_the_last(classes).cuda()
    samples = uploads(classes, dim, count)
    loss, moved = by_kernel(samples, network, penalty, count)
    exact = Batch(samples.inputs.double(), samples.labels)
    wanted, gradients = by_autograd(network.double(), exact, penalty.double())
    assert loss == pytest.approx(float(wanted), rel=1e-5)
    for name, gradient in gradients.items():  # a weight moves by less than it is, so its rounding weighs more
        allowed = 5e-5 * float(gradient.abs().max()) + 2e-7 * float(network.state_dict()[name].abs().max())
        assert float((moved[name] - gradient).abs().max()) <= allowed


def test_an_epoch_does_not_depend_on_who_is_first() -> None:
    network, penalty = make_network(100, 500).cuda(), all_but_the_last(100).cuda()
    samples = uploads(100, 500, 890)
    loss, moved = by_kernel(samples, network, penalty, 32)
    for _ in range(5):
        again_loss, again_moved = by_kernel(samples, network, penalty, 32)
        assert again_loss == loss
        assert all(torch.equal(moved[name], again_moved[name]) for name in moved)


def test_epochs_of_one_launch_are_those_of_several() -> None:
    network, penalty = make_network(100, 500).cuda(), all_but_the_last(100).cuda()
    samples, start = uploads(100, 500, 3 * 70), dict(network.named_parameters())
    together, alone = ({name: value.detach().clone() for name, value in start.items()} for _ in range(2))
    logged = torch.zeros(3, device="cuda").double()
    fit_of(100, 500).epochs(together, samples, 32, penalty, logged, 0.05)
    for inputs, labels, mine in zip(
        torch.split(samples.inputs, 70), torch.split(samples.labels, 70), logged, strict=True
    ):
        found = torch.zeros(1, device="cuda").double()
        fit_of(100, 500).epochs(alone, Batch(inputs, labels), 32, penalty, found, 0.05)
        assert float(found) == float(mine)
    assert all(torch.equal(together[name], alone[name]) for name in together)


def test_an_upload_that_equals_a_prototype_gives_no_nan() -> None:
    network, penalty = make_network(10, 500).cuda(), all_but_the_last(10).cuda()
    samples = uploads(10, 500, 8)
    with torch.no_grad():  # prototypes that are equal to the last bit: all are zero
        network.output.weight.zero_()
        network.output.bias.zero_()
    samples.inputs[3] = 0.0
    loss, moved = by_kernel(samples, network, penalty, 8)
    assert loss == loss
    assert all(bool(each.isfinite().all()) for each in moved.values())


def test_a_class_that_is_not_offered_is_no_candidate() -> None:
    network, penalty = make_network(10, 500).cuda(), all_but_the_last(10).cuda()
    samples = uploads(10, 500, 32)
    loss, moved = by_kernel(samples, network, penalty, 32)
    assert not bool(moved["embedding.weight"][9].any())
    with torch.no_grad():
        network.embedding.weight[9] *= 50.0
    assert by_kernel(samples, network, penalty, 32)[0] == loss


def test_what_is_not_a_number_stays_so() -> None:
    network, penalty = make_network(10, 500).cuda(), all_but_the_last(10).cuda()
    samples = uploads(10, 500, 4)
    with torch.no_grad():
        network.output.bias[7] = torch.nan
    loss, moved = by_kernel(samples, network, penalty, 4)
    assert loss != loss
    assert bool(moved["output.weight"].isnan().any())


@pytest.mark.parametrize(
    ("classes", "dim", "count"), [(100, 500, 340), (10, 500, 70), (200, 100, 96), (10, 64, 1), (7, 33, 70)]
)
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
