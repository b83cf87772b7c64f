"""The choice of a trainer, the schedule of a stack, fused nodes, and the precision of products."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, fx, nn

from tinyproto.core.task import FeatureModel, FitResult, Task, TensorData
from tinyproto.engine.training import Precision, WithPrecision, choose
from tinyproto.models import ModelShape, build_model
from tinyproto.stacked.fusion import Excited, Fusion, Normalised
from tinyproto.stacked.network import StackedModule
from tinyproto.stacked.schedule import CLIENT_COST, WIDTH_COST, Stretch, computed_steps, plan_widths


@pytest.mark.parametrize(
    ("device", "steps", "expected"),
    [("cpu", 10**6, "eager"), ("cuda", 100, "eager"), ("cuda:0", 2_000, "graphed"), ("cuda", 400_000, "stacked")],
)
def test_auto_weighs_preparation_against_steps(device: str, steps: int, expected: str) -> None:
    choice = choose("auto", device, steps)
    assert choice.trainer == expected
    assert device == "cpu" or str(steps) in choice.reason


def test_a_trainer_that_is_named_is_taken() -> None:
    assert choose("graphed", "cpu", 1).trainer == "graphed"


steps_of_clients = st.lists(st.integers(0, 60), min_size=1, max_size=8).map(lambda steps: sorted(steps, reverse=True))


@given(steps_of_clients)
def test_stretches_cover_every_step_of_every_client_once(steps: list[int]) -> None:
    found = plan_widths(steps)
    assert [stretch.start for stretch in found] == [0, *(stretch.stop for stretch in found[:-1])][: len(found)]
    assert [stretch.width for stretch in found] == sorted({stretch.width for stretch in found}, reverse=True)
    for client, count in enumerate(steps):
        assert computed_steps(found, client) >= count
    assert (found[-1].stop if found else 0) == steps[0]


@given(steps_of_clients)
def test_stretches_never_cost_more_than_one_width_for_all(steps: list[int]) -> None:
    def cost(found: Sequence[Stretch]) -> float:
        return sum((stop - start) * (1 + CLIENT_COST * (width - 1)) + WIDTH_COST for width, start, stop in found)

    assert cost(plan_widths(steps)) <= cost([Stretch(len(steps), 0, steps[0])])


def test_equal_clients_stay_together_and_a_long_one_goes_on_alone() -> None:
    assert plan_widths([62, 62, 60]) == [Stretch(3, 0, 62)]
    assert plan_widths([300, 40, 40]) == [Stretch(3, 0, 40), Stretch(1, 40, 300)]


class Asked:
    """Records the precision of products at each call."""

    def __init__(self) -> None:
        self.device = torch.device("cpu")
        self.notes: list[str] = []
        self.seen: list[tuple[bool, bool]] = []

    def fit(self, tasks: Sequence[Task]) -> list[FitResult]:
        self.seen.append((torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32))
        return []

    def features(self, models: Sequence[FeatureModel], data: Sequence[TensorData]) -> list[Tensor]:
        self.fit([])
        return []


@pytest.mark.parametrize(
    ("precision", "expected"), [("float32", (True, False)), ("tf32", (True, True)), ("exact", (False, False))]
)
def test_products_round_as_told_and_afterwards_as_before(precision: Precision, expected: tuple[bool, bool]) -> None:
    before = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    asked = Asked()
    trainer = WithPrecision(asked, precision)
    trainer.fit([])
    trainer.features([], [])
    assert asked.seen == [expected, expected]
    assert (torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32) == before


def kinds(name: str) -> list[str]:
    with torch.device("meta"):
        module = StackedModule(build_model(name, ModelShape((3, 32, 32), 500, 100, 0.0), 0).extractor)
    described = []
    for fused in module.fusion.fused.values():
        if isinstance(fused, Normalised):
            depth = "" if fused.depth is None else " depth"
            described.append(f"norm{depth}{'+' if fused.added is not None else ''} {fused.activation}")
        elif isinstance(fused, Excited):
            described.append(f"excited {fused.activation}")
        else:
            described.append(fused.function.__name__)
    return described


def test_what_belongs_together_in_the_paper_s_networks_is_computed_together() -> None:
    assert kinds("resnet8").count("norm+ relu") == 3
    assert kinds("mobilenet_v2").count("norm+ None") == 10
    assert kinds("mobilenet_v2").count("norm relu6") == 35
    assert kinds("shufflenet_v2").count("interleave") == 16
    assert kinds("efficientnet_b0").count("excited silu") == 16
    assert kinds("efficientnet_b0").count("norm depth+ None") == 9
    assert kinds("efficientnet_b0").count("norm silu") == 33


def test_what_somebody_else_looks_at_stays_apart() -> None:
    class Branching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm2d(3)

        def forward(self, values: Tensor) -> Tensor:
            normal = self.norm(values)
            outcome: Tensor = torch.relu(normal) + normal * torch.sigmoid(normal)
            return outcome

    traced = fx.symbolic_trace(Branching())
    fusion = Fusion(traced.graph, dict(traced.named_modules()))
    (norm,) = fusion.fused.values()
    assert isinstance(norm, Normalised)
    assert norm.activation is None


@pytest.mark.parametrize("change", ["another reader", "no bias", "a mean over rows"])
def test_an_excitation_that_is_not_quite_one_stays_as_it_is(change: str) -> None:
    class Excitation(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Conv2d(4, 2, 1), nn.Conv2d(2, 4, 1, bias=change != "no bias")

        def forward(self, values: Tensor) -> Tensor:
            means = values.mean((2,) if change == "a mean over rows" else (2, 3), keepdim=True)
            gates = self.second(torch.relu(self.first(means)))
            outcome: Tensor = values * torch.sigmoid(gates)
            return outcome + gates if change == "another reader" else outcome

    traced = fx.symbolic_trace(Excitation())
    assert Fusion(traced.graph, dict(traced.named_modules())).fused == {}


def test_a_layer_that_is_used_twice_is_noticed() -> None:
    twice = nn.Linear(3, 3)
    assert StackedModule(nn.Sequential(twice, nn.ReLU(), twice)).repeats
    assert not StackedModule(nn.Sequential(twice, nn.ReLU(), nn.Linear(3, 3))).repeats
