"""Losses of mutual and of class-wise distillation, against numbers worked by hand.

Throughout, one network says p = (1/2, 1/2) and the other q = (3/4, 1/4), so that
KL(q ‖ p) = 3/4 ln 3/2 − 1/4 ln 2 and KL(p ‖ q) = 1/2 ln 2 − 1/2 ln 3/2.
"""

from __future__ import annotations

import math
from math import log

import pytest
import torch
from torch import Tensor

from tinyproto.algorithms.auxiliary import Mutual, Reduction, divergence
from tinyproto.algorithms.feddistill import class_logit_loss
from tinyproto.algorithms.fedkd import FedKDHyper, adaptive_losses
from tinyproto.algorithms.fml import FMLHyper, mutual_losses
from tinyproto.core.prototypes import Prototypes
from tinyproto.models.split import Output

KL_Q_P = 0.75 * log(1.5) - 0.25 * log(2)
KL_P_Q = 0.5 * log(2) - 0.5 * log(1.5)
LABEL_0 = torch.tensor([0])


def certain(*probabilities: float) -> Tensor:
    """Logits of one sample with these probabilities, which can be learned."""
    return torch.tensor([probabilities]).log().requires_grad_()


def gradients(loss: Tensor, *inputs: Tensor) -> list[list[float]]:
    found = torch.autograd.grad(loss, inputs, allow_unused=True)
    return [[] if each is None else each.flatten().tolist() for each in found]


def value(loss: Tensor) -> float:
    return float(loss.detach())


def total(losses: Mutual) -> Tensor:
    return losses.local + losses.auxiliary


def test_the_divergence_is_kl_from_target_to_output_over_samples_or_over_all_entries() -> None:
    logits = torch.tensor([[0.5, 0.5], [0.2, 0.8]]).log()
    target = torch.tensor([[0.75, 0.25], [0.2, 0.8]]).log() + 7.0  # a constant changes no softmax
    assert float(divergence(logits, target, "batch")) == pytest.approx(KL_Q_P / 2)
    assert float(divergence(logits, target, "element")) == pytest.approx(KL_Q_P / 4)
    assert float(divergence(target, logits, "batch")) == pytest.approx(KL_P_Q / 2)


@pytest.mark.parametrize(("reduction", "share"), [("batch", 1.0), ("element", 0.5)])
def test_mutual_losses_weigh_labels_against_the_other_network(reduction: Reduction, share: float) -> None:
    losses = mutual_losses(
        certain(0.5, 0.5),
        certain(0.75, 0.25),
        LABEL_0,
        FMLHyper(local_weight=0.5, auxiliary_weight=0.25, reduction=reduction, detach_targets=True),
    )
    assert value(losses.local) == pytest.approx(0.5 * log(2) + 0.5 * share * KL_Q_P)
    assert value(losses.auxiliary) == pytest.approx(0.25 * log(4 / 3) + 0.75 * share * KL_P_Q)


def test_with_fixed_targets_each_network_learns_from_its_own_loss_only() -> None:
    local, auxiliary = certain(0.5, 0.5), certain(0.75, 0.25)
    losses = mutual_losses(
        local,
        auxiliary,
        LABEL_0,
        FMLHyper(local_weight=0.5, auxiliary_weight=0.25, reduction="batch", detach_targets=True),
    )
    own, other = gradients(total(losses), local, auxiliary)
    # α(p − y) + (1 − α)(p − q) = ½(−½, ½) + ½(−¼, ¼), and β(q − y) + (1 − β)(q − p) = ¼(−¼, ¼) + ¾(¼, −¼).
    assert own == pytest.approx([-0.375, 0.375])
    assert other == pytest.approx([0.125, -0.125])
    assert gradients(losses.local, auxiliary) == [[]]
    assert gradients(losses.auxiliary, local) == [[]]


def test_with_free_targets_each_network_also_learns_to_be_imitated() -> None:
    local, auxiliary = certain(0.5, 0.5), certain(0.75, 0.25)
    losses = mutual_losses(
        local,
        auxiliary,
        LABEL_0,
        FMLHyper(local_weight=0.5, auxiliary_weight=0.25, reduction="batch", detach_targets=False),
    )
    own, other = gradients(total(losses), local, auxiliary)
    # A target's gradient is t_k (ln t_k/o_k − KL(t ‖ o)); local is auxiliary's target (weight ¾) and the reverse (½).
    as_target_of_auxiliary = 0.75 * 0.5 * (-log(1.5) - KL_P_Q)
    as_target_of_local = 0.5 * 0.75 * (log(1.5) - KL_Q_P)
    assert own == pytest.approx([-0.375 + as_target_of_auxiliary, 0.375 - as_target_of_auxiliary])
    assert other == pytest.approx([0.125 + as_target_of_local, -0.125 - as_target_of_local])


def opinions() -> tuple[Output, Output, Tensor, Tensor]:
    """p with features (1, 2); q with features (1, 0) that W_h maps to (3, 2); and W_h."""
    local = Output(logits=certain(0.5, 0.5), features=torch.tensor([[1.0, 2.0]], requires_grad=True))
    auxiliary = Output(logits=certain(0.75, 0.25), features=torch.tensor([[1.0, 0.0]], requires_grad=True))
    adapter = torch.tensor([[3.0, 0.0], [2.0, 1.0]], requires_grad=True)
    return local, auxiliary, adapter, auxiliary.features @ adapter.T


DOUBT = log(2) + log(4 / 3)
MSE = 2.0  # ((1 − 3)² + 0) / 2


@pytest.mark.parametrize("detach", [True, False])
@pytest.mark.parametrize(("reduction", "share"), [("batch", 1.0), ("element", 0.5)])
def test_adaptive_losses_divide_what_is_learned_from_each_other_by_both_errors(
    reduction: Reduction, share: float, detach: bool
) -> None:
    local, auxiliary, _, adapted = opinions()
    losses = adaptive_losses(local, auxiliary, adapted, LABEL_0, FedKDHyper(reduction=reduction, detach_targets=detach))
    assert value(losses.local) == pytest.approx(log(2) + (share * KL_Q_P + MSE) / DOUBT)
    assert value(losses.auxiliary) == pytest.approx(log(4 / 3) + (share * KL_P_Q + MSE) / DOUBT)


def test_with_fixed_targets_the_feature_map_learns_and_nothing_learns_twice() -> None:
    local, auxiliary, adapter, adapted = opinions()
    loss = total(
        adaptive_losses(local, auxiliary, adapted, LABEL_0, FedKDHyper(reduction="batch", detach_targets=True))
    )
    mapped, own, shared, own_logits, shared_logits = gradients(
        loss, adapter, local.features, auxiliary.features, local.logits, auxiliary.logits
    )
    # MSE's gradient is 2/2·(3 − 1, 0): for W_h times its input (1, 0), for the shared features through W_hᵀ.
    assert mapped == pytest.approx([2 / DOUBT, 0, 0, 0])
    assert shared == pytest.approx([3 * 2 / DOUBT, 0])
    assert own == pytest.approx([-2 / DOUBT, 0])
    # p − y + (p − q)/D, and q − y + (q − p)/D.
    assert own_logits == pytest.approx([-0.5 - 0.25 / DOUBT, 0.5 + 0.25 / DOUBT])
    assert shared_logits == pytest.approx([-0.25 + 0.25 / DOUBT, 0.25 - 0.25 / DOUBT])


def test_with_free_targets_every_gradient_is_that_of_the_printed_sum() -> None:
    local, auxiliary, adapter, adapted = opinions()
    inputs = (adapter, local.features, auxiliary.features, local.logits, auxiliary.logits)
    found = gradients(
        total(adaptive_losses(local, auxiliary, adapted, LABEL_0, FedKDHyper(reduction="batch", detach_targets=False))),
        *inputs,
    )
    p, q = local.logits.softmax(1)[0], auxiliary.logits.softmax(1)[0]
    errors = -p[0].log() - q[0].log()
    divergences = (q * (q / p).log()).sum() + (p * (p / q).log()).sum()
    distance = (local.features - auxiliary.features @ adapter.T).square().mean()
    expected = gradients(errors + (divergences + 2 * distance) / errors, *inputs)
    for mine, other in zip(found, expected, strict=True):
        assert mine == pytest.approx(other, rel=1e-5, abs=1e-6)
    assert found[0] == pytest.approx([4 / DOUBT, 0, 0, 0])  # both losses hold the distance


@pytest.mark.parametrize("detach", [True, False])
def test_networks_that_are_certain_leave_every_gradient_finite(detach: bool) -> None:
    # Probabilities of exp(−200) and exp(−300) are zero in float32, and so is either cross-entropy.
    local = Output(
        logits=torch.tensor([[200.0, 0.0]], requires_grad=True), features=torch.ones(1, 2, requires_grad=True)
    )
    auxiliary = Output(
        logits=torch.tensor([[300.0, 0.0]], requires_grad=True), features=torch.zeros(1, 2, requires_grad=True)
    )
    inputs = (local.logits, auxiliary.logits, local.features, auxiliary.features)
    adaptive = adaptive_losses(
        local, auxiliary, 2 * auxiliary.features, LABEL_0, FedKDHyper(reduction="batch", detach_targets=detach)
    )
    mutual = mutual_losses(
        local.logits,
        auxiliary.logits,
        LABEL_0,
        FMLHyper(local_weight=0.5, auxiliary_weight=0.5, reduction="element", detach_targets=detach),
    )
    for losses in (adaptive, mutual):
        assert math.isfinite(value(total(losses)))
        assert all(math.isfinite(entry) for each in gradients(total(losses), *inputs) for entry in each)


def test_class_logits_pull_by_cross_entropy_to_the_softmax_of_the_class_s_mean() -> None:
    # Class 0's mean logits (ln 3, 0) say (3/4, 1/4). Class 1 has none: its sample adds zero, but counts in the mean.
    known = Prototypes(torch.tensor([[log(3), 0.0], [0.0, 0.0]]), torch.tensor([True, False]))
    logits = torch.tensor([[0.5, 0.5], [0.1, 0.9]]).log().requires_grad_()
    loss = class_logit_loss(logits, torch.tensor([0, 1]), known)
    assert value(loss) == pytest.approx(log(2) / 2)
    (found,) = torch.autograd.grad(loss, logits)
    assert found[0].tolist() == pytest.approx([(0.5 - 0.75) / 2, (0.5 - 0.25) / 2])
    assert found[1].tolist() == [0.0, 0.0]


def test_before_there_are_class_logits_the_pull_and_its_gradient_are_exactly_nothing() -> None:
    garbage = torch.full((3, 3), math.nan)
    logits = torch.randn(4, 3, requires_grad=True)
    for values in (torch.zeros(3, 3), garbage):
        none = Prototypes(values, torch.zeros(3, dtype=torch.bool))
        loss = class_logit_loss(logits, torch.tensor([0, 1, 2, 0]), none)
        assert value(loss) == 0.0
        (found,) = torch.autograd.grad(loss, logits)
        assert float(found.abs().max()) == 0.0
