"""Networks of users, ordinary and odd: fast trainers give the eager trainer's numbers, or a note names the reason."""

from __future__ import annotations

import copy
import itertools
import math
import random
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import support_stacked
from support_stacked import CLASSES, DIM, SIZE, assert_alike, side_of, stacked_trainer, trained
from tinyproto.algorithms.base import Client
from tinyproto.core.streams import global_randomness, random_states
from tinyproto.core.task import Batch, TensorData, Trainer
from tinyproto.engine.eager import EagerTrainer
from tinyproto.engine.graphed import GraphedTrainer
from tinyproto.models import ModelShape, SplitModel, build_model
from tinyproto.stacked import rehearsal
from tinyproto.stacked.fallback import CannotStack
from tinyproto.stacked.rehearsal import stacked_form
from tinyproto.stacked.signature import signature
from tinyproto.stacked.trainer import StackedTrainer

PIXELS = 3 * SIZE * SIZE
SIZES = (20, 12)
Make = Callable[[], nn.Module]


BATCH = TensorData.batch


@pytest.fixture(autouse=True)
def _exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """Train in float64, so that a difference is a mistake and not amplified rounding; token ids stay integers."""

    def batch(data: TensorData, indices: Tensor | slice) -> Batch:
        return Batch(data.converted(data._stored(indices), torch.float64), data.labels[indices])

    monkeypatch.setattr(TensorData, "batch", batch)


def split(extractor: nn.Module) -> SplitModel:
    return SplitModel(extractor, nn.Linear(DIM, CLASSES))


def plain(*layers: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), nn.Linear(PIXELS, DIM), *layers)


class Base(nn.Module):
    """A linear layer whose subclasses do something else besides."""

    def __init__(self) -> None:
        super().__init__()
        self.body = plain()

    def forward(self, images: Tensor) -> Tensor:
        return self.after(self.body(images))

    def after(self, features: Tensor) -> Tensor:
        return features


class Counting(Base):
    steps = 0

    def after(self, features: Tensor) -> Tensor:
        self.steps += 1
        return features * (1 + 0.1 * self.steps)


class CountingByIterator(Base):
    def __init__(self) -> None:
        super().__init__()
        self.steps = itertools.cycle([1.0, 2.0, 3.0])

    def after(self, features: Tensor) -> Tensor:
        return features * next(self.steps)


class CountingInItsClass(Base):
    steps = 0

    def after(self, features: Tensor) -> Tensor:
        CountingInItsClass.steps += 1
        return features


STEPS = 0


class CountingGlobally(Base):
    def after(self, features: Tensor) -> Tensor:
        global STEPS
        STEPS += 1
        return features


class NoisyByNumpy(Base):
    def after(self, features: Tensor) -> Tensor:
        return features * (1 + np.random.rand())


class NoisyByPython(Base):
    def after(self, features: Tensor) -> Tensor:
        return features * (1 + random.random())


class NoisyByItsOwn(Base):
    def __init__(self) -> None:
        super().__init__()
        self.generator = np.random.default_rng(0)

    def after(self, features: Tensor) -> Tensor:
        return features * (1 + self.generator.random())


class SkipsAtRandom(Base):
    def after(self, features: Tensor) -> Tensor:
        return features * 2 if torch.rand(()) < 0.5 else features


class SkipsAtRandomInTraining(Base):
    def after(self, features: Tensor) -> Tensor:
        return features * 2 if self.training and torch.rand(()) < 0.5 else features


class CountingEvaluations(Base):
    steps = 0

    def after(self, features: Tensor) -> Tensor:
        self.steps += not self.training
        return features * (1 + 0.1 * self.steps)


class ReplacingABuffer(Base):
    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(()))

    def after(self, features: Tensor) -> Tensor:
        self.mean = 0.9 * self.mean + 0.1 * features.detach().mean()
        return features - self.mean


class ChangingABuffer(ReplacingABuffer):
    def after(self, features: Tensor) -> Tensor:
        self.mean.mul_(0.9).add_(0.1 * features.detach().mean())
        return features - self.mean


class KeepingTheLast(Base):
    last: Tensor | None = None

    def after(self, features: Tensor) -> Tensor:
        if self.last is not None:
            features = features + 0.1 * self.last
        self.last = features.detach().mean()
        return features


class Branching(Base):
    def after(self, features: Tensor) -> Tensor:
        return torch.relu(features) if self.training else features


class ByMode(Base):
    def after(self, features: Tensor) -> Tensor:
        return features * 2 if self.training else features


class Tied(Base):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(DIM, DIM), nn.Linear(DIM, DIM)
        self.second.weight = self.first.weight

    def after(self, features: Tensor) -> Tensor:
        found: Tensor = self.second(torch.relu(self.first(features)))
        return found


class Shared(Base):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(DIM, DIM)

    def after(self, features: Tensor) -> Tensor:
        found: Tensor = self.layer(torch.relu(self.layer(features)))
        return found


class SharedMemory(Tied):
    def __init__(self) -> None:
        super().__init__()
        self.second.weight = nn.Parameter(self.first.weight.detach())

    def _apply(self, *arguments: Any, **options: Any) -> SharedMemory:
        super()._apply(*arguments, **options)  # type: ignore[no-untyped-call]
        self.second.weight.data = self.first.weight.data  # once more, since `double` copies
        return self


class KeepingItself(Base):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self.function: Callable[[Tensor], Tensor] = lambda features: features * self.scale

    def after(self, features: Tensor) -> Tensor:
        return self.function(features)


class HidingALayer(Base):
    def __init__(self) -> None:
        super().__init__()
        self.hidden = [nn.Linear(DIM, DIM).requires_grad_(False)]

    def after(self, features: Tensor) -> Tensor:
        found: Tensor = self.hidden[0].to(features.dtype)(features)
        return found


class Resting(Base):
    """Keeps a layer behind the others in evaluation."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def train(self, mode: bool = True) -> Resting:
        super().train(mode)
        self.layer.eval()
        return self

    def after(self, features: Tensor) -> Tensor:
        found: Tensor = self.layer(features)
        return found


class IdleNorm(Base):
    def __init__(self) -> None:
        super().__init__()
        self.idle = nn.BatchNorm1d(DIM)


class Map(nn.Module):
    """Turns a map into features in a way of its own."""

    def __init__(self, pool: Callable[[Tensor], Tensor], inputs: int) -> None:
        super().__init__()
        self.convolution, self.pool, self.layer = nn.Conv2d(3, 6, 3), pool, nn.Linear(inputs, DIM)

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.layer(self.pool(self.convolution(images)))
        return features


class Scaling(SplitModel):
    def forward(self, inputs: Tensor) -> Any:
        features, logits = super().forward(inputs)
        return type(super().forward(inputs))(features, 3 * logits)


def hooked() -> nn.Module:
    model = split(plain())
    model.extractor.register_forward_hook(lambda _module, _inputs, outputs: outputs * 2)
    return model


def frozen() -> nn.Module:
    model = plain(nn.ReLU(), nn.Linear(DIM, DIM))
    model[1].requires_grad_(False)
    model[3].bias.requires_grad_(False)
    return model


def frozen_entirely() -> nn.Module:
    return plain(nn.ReLU(), nn.BatchNorm1d(DIM)).requires_grad_(False)


def scripted() -> nn.Module:
    return split(torch.jit.script(plain(nn.ReLU())))


def lazy() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(DIM), nn.ReLU(), nn.LazyBatchNorm1d())


def normalised_weight() -> nn.Module:
    model = plain()
    nn.utils.parametrizations.weight_norm(model[1])
    return model


def images_net(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, stride=2), *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, DIM)
    )


ALL = None
"""Any note or none: the numbers count."""


def resting_norm() -> nn.Module:
    norm = nn.BatchNorm1d(DIM)
    nn.init.constant_(norm.running_mean, 0.3)  # type: ignore[arg-type]
    return Resting(norm)


class Thawing(Base):
    """Trains another layer from its third round on."""

    rounds = 0

    def train(self, mode: bool = True) -> Thawing:
        self.rounds += mode
        self.body.requires_grad_(self.rounds > 2)
        super().train(mode)
        return self


class Clearing(Base):
    """Starts each round with a buffer of zeros."""

    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def train(self, mode: bool = True) -> Clearing:
        self.seen.zero_()
        super().train(mode)
        return self

    def after(self, features: Tensor) -> Tensor:
        self.seen += 0.1
        return features * self.seen


# what it is: the network, words of the note of the stacked and of the graphed trainer; "" without a note
ODD: dict[str, tuple[Make, str | None, str | None]] = {
    "counter": (Counting, r"changes extractor.steps in each", r"changes extractor.steps in each"),
    "iterator": (CountingByIterator, r"changes extractor.steps in each", r"changes extractor.steps in each"),
    "keeps the last": (KeepingTheLast, r"changes extractor.last in each", r"changes extractor.last in each"),
    "hook": (hooked, "has hooks", "has hooks"),
    "numpy": (NoisyByNumpy, "numbers from numpy", "numbers from numpy"),
    "random": (NoisyByPython, "numbers from Python's random", "numbers from Python's random"),
    "own generator": (NoisyByItsOwn, "changes extractor.generator in each", "changes extractor.generator in each"),
    "host": (SkipsAtRandom, "draws random numbers outside", ""),
    "host in training": (SkipsAtRandomInTraining, "draws random numbers outside", ""),
    "counter of evaluations": (CountingEvaluations, "changes extractor.steps in", "changes extractor.steps in"),
    "replaced buffer": (ReplacingABuffer, r"changes extractor.mean in each", r"changes extractor.mean in each"),
    "changed buffer": (ChangingABuffer, "no stacked form", ""),
    "branch": (Branching, "disagrees with its network", ""),
    "mode": (ByMode, "disagrees with its network", ""),
    "tied": (Tied, "share a parameter", ""),
    "shared layer": (Shared, "", ""),
    "shared memory": (SharedMemory, "share memory", "share memory"),
    "keeps itself": (KeepingItself, "a function in its network", "a function in its network"),
    "hidden layer": (HidingALayer, "cannot be traced", ""),
    "keeps dropout": (lambda: Resting(nn.Dropout(0.5)), "mode of its dropout", ""),
    "idle norm": (IdleNorm, "disagrees with its network in training", ""),
    "own forward": (lambda: Scaling(plain(), nn.Linear(DIM, CLASSES)), "disagrees with its network", ""),
    "frozen": (frozen, "", ""),
    "frozen extractor": (frozen_entirely, "", ""),
    "frozen norm": (resting_norm, "disagrees with its network in training", ""),
    "thaws": (Thawing, "its network changes", "its network changes"),
    "clears": (Clearing, "changes tensors when it is set", "changes tensors when it is set"),
    "script": (scripted, "TorchScript", "TorchScript"),
    "lazy": (lazy, "", ""),
    "weight norm": (normalised_weight, "ParametrizedLinear has no stacked form", ""),
    "layer norm": (lambda: plain(nn.LayerNorm(DIM), nn.GELU()), "", ""),
    "layer norm without affine": (lambda: plain(nn.LayerNorm(DIM, elementwise_affine=False)), "", ""),
    "layer norm of a map": (lambda: images_net(nn.LayerNorm([6, 15, 15])), ALL, ""),
    "norm without affine": (lambda: images_net(nn.BatchNorm2d(6, affine=False), nn.ReLU()), "", ""),
    "norm without statistics": (lambda: images_net(nn.BatchNorm2d(6, track_running_stats=False)), "stacked form", ""),
    "norm without momentum": (lambda: images_net(nn.BatchNorm2d(6, momentum=None)), "stacked form", ALL),
    "group norm": (lambda: images_net(nn.GroupNorm(2, 6)), "GroupNorm has no stacked form", ""),
    "mean of maps": (lambda: Map(lambda values: values.mean((2, 3)), 6), "", ""),
    "mean of maps, from the end": (lambda: Map(lambda values: values.mean((-1, -2)), 6), ALL, ""),
    "mean of maps, by name": (lambda: Map(lambda values: values.mean(dim=(2, 3)), 6), ALL, ""),
    "mean of channels": (lambda: Map(lambda values: values.mean(1).flatten(1), 900), ALL, ""),
    "mean of rows": (lambda: Map(lambda values: values.mean((2,)).flatten(1), 180), ALL, ""),
    "mean that keeps axes": (
        lambda: Map(lambda values: (values - values.mean((2, 3), keepdim=True)).mean((2, 3)), 6), ALL, "",
    ),
    "mean of the batch": (lambda: Map(lambda values: values.mean((2, 3)) - values.mean((2, 3)).mean(0), 6), ALL, ""),
    "softmax": (lambda: plain(nn.Softmax(1)), "Softmax has no stacked form", ""),
    "chunks": (lambda: Map(lambda values: torch.cat(values.chunk(2, 1)[::-1], 1).mean((2, 3)), 6), ALL, ""),
    "first map": (lambda: Map(lambda values: values[:, :4].mean((2, 3)), 4), ALL, ""),
    "first samples": (lambda: Map(lambda values: values.mean((2, 3)) * values[0].mean(), 6), ALL, ""),
}  # fmt: skip


def as_built(make: Make, seed: int) -> SplitModel:
    """Return a network as `build_model` makes it, in float64 so that results can be compared."""

    def factory() -> nn.Module:
        return make()

    return build_model(factory, ModelShape((3, SIZE, SIZE), DIM, CLASSES, 0.0), seed).double()


def compare(
    trainer: Trainer,
    monkeypatch: pytest.MonkeyPatch,
    build: Callable[[str, int], SplitModel],
) -> str:
    """Train clients with a trainer and with the eager one; return the first one's notes, in one piece."""
    monkeypatch.setattr("support_stacked.built", build)
    side = side_of("local", "small_cnn_a")
    alone, reference = trained(side, EagerTrainer(), "its network", SIZES)
    found, results = trained(side, trainer, "its network", SIZES)
    assert_alike(found, alone)
    for mine, other in zip(results, reference, strict=True):
        assert torch.allclose(mine.parts, other.parts, atol=1e-9)
    for fast, slow in zip(features(trainer, found), features(EagerTrainer(), alone), strict=True):
        assert torch.allclose(fast, slow, atol=1e-4)
    return "\n".join(trainer.notes)


def features(trainer: Trainer, clients: list[Client]) -> list[Tensor]:
    models = [copy.deepcopy(client.model).float() for client in clients]  # features are computed in float32
    with pytest.MonkeyPatch.context() as patch, global_randomness(0):
        patch.setattr(TensorData, "batch", BATCH)
        return trainer.features(models, [client.train for client in clients])


@pytest.mark.parametrize("kind", ODD)
@pytest.mark.parametrize("make", [stacked_trainer, GraphedTrainer])
def test_a_network_ends_where_it_ends_with_the_eager_trainer(
    kind: str, make: Callable[[], Trainer], monkeypatch: pytest.MonkeyPatch
) -> None:
    network, *words = ODD[kind]
    expected = words[make is GraphedTrainer]
    notes = compare(make(), monkeypatch, lambda _name, seed: as_built(network, seed))
    if expected is not ALL:
        assert re.search(expected, notes) if expected else notes == "", notes


@pytest.mark.parametrize("network", [CountingInItsClass, CountingGlobally])
def test_a_network_that_counts_outside_of_itself_is_trained_eagerly(network: type[Base]) -> None:
    trainer = GraphedTrainer()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("support_stacked.built", lambda _name, seed: as_built(network, seed))
        trained(side_of("local", "small_cnn_a"), trainer, "its network", SIZES)
    assert "changes the class of extractor in each step" in trainer.notes[0]


class Activated(Base):
    """Takes what makes two clients' networks different although all of their weights have the same shapes."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def after(self, features: Tensor) -> Tensor:
        return self.function(features)


class Scaled(Base):
    def __init__(self, constant: Any) -> None:
        super().__init__()
        self.constant = constant

    def after(self, features: Tensor) -> Tensor:
        return features * torch.as_tensor(self.constant)


class Times:
    def __init__(self, factor: float) -> None:
        self.factor = factor

    def __call__(self, values: Tensor) -> Tensor:
        return values * self.factor


def times(factor: float) -> Callable[[Tensor], Tensor]:
    return lambda values: values * factor


def tied_or_not(tied: bool) -> nn.Module:
    network = Tied()
    if not tied:
        network.second.weight = nn.Parameter(network.first.weight.detach().clone())
    return network


DIFFERENT: dict[str, list[Make]] = {
    "dropout": [lambda: plain(nn.Dropout(0.0)), lambda: plain(nn.Dropout(1.0))],
    "layer": [lambda: plain(nn.ReLU()), lambda: plain(nn.Tanh())],
    "negative slope": [lambda: plain(nn.LeakyReLU(0.1)), lambda: plain(nn.LeakyReLU(0.5))],
    "epsilon": [lambda: plain(nn.BatchNorm1d(DIM, eps=1e-5)), lambda: plain(nn.BatchNorm1d(DIM, eps=1.0))],
    "builtin": [lambda: Activated(torch.relu), lambda: Activated(torch.tanh)],
    "function": [lambda: Activated(nn.functional.silu), lambda: Activated(nn.functional.relu)],
    "closure": [lambda: Activated(times(2.0)), lambda: Activated(times(3.0))],
    "partial": [lambda: Activated(partial(torch.mul, other=2.0)), lambda: Activated(partial(torch.mul, other=3.0))],
    "object": [lambda: Activated(Times(2.0)), lambda: Activated(Times(3.0))],
    "number": [lambda: Scaled(2.0), lambda: Scaled(3.0)],
    "tensor": [lambda: Scaled(torch.tensor(2.0)), lambda: Scaled(torch.tensor(3.0))],
    "array": [lambda: Scaled(np.full(DIM, 2.0, np.float32)), lambda: Scaled(np.full(DIM, 3.0, np.float32))],
    "frozen": [plain, lambda: plain().requires_grad_(False)],
    "tied": [lambda: tied_or_not(True), lambda: tied_or_not(False)],
    "hidden": [HidingALayer, HidingALayer],
}


@pytest.mark.parametrize("kind", DIFFERENT)
@pytest.mark.parametrize("make", [stacked_trainer, GraphedTrainer])
def test_networks_of_the_same_shapes_that_compute_something_else_are_not_trained_as_one(
    kind: str, make: Callable[[], Trainer], monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = make()
    compare(trainer, monkeypatch, lambda _name, seed: as_built(DIFFERENT[kind][seed], seed))
    assert isinstance(trainer, GraphedTrainer | StackedTrainer)
    assert len(trainer.captured if isinstance(trainer, GraphedTrainer) else trainer.stacks) == 2


class Noting(Base):
    """Keeps a value that equals no other, or is no plain tensor."""

    def __init__(self, noted: object) -> None:
        super().__init__()
        self.noted = noted


def local() -> nn.Module:
    class Local(Base):
        def after(self, features: Tensor) -> Tensor:
            return super().after(torch.relu(features))

    return Local()


@pytest.mark.parametrize(
    "make",
    [
        local, Shared, Tied, lambda: Activated(times(2.0)), lambda: Scaled(np.ones(DIM, np.float32)),
        lambda: Noting(math.nan), lambda: Noting(torch.tensor([math.nan])), lambda: Noting(torch.eye(3).to_sparse()),
        lambda: Noting(torch.tensor([1j]).conj()),
    ],
)  # fmt: skip
def test_networks_that_differ_in_their_weights_only_are_trained_as_one(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = stacked_trainer()
    compare(trainer, monkeypatch, lambda _name, seed: as_built(make, seed))
    assert len(trainer.stacks) == 1


@pytest.mark.parametrize("make", [stacked_trainer, GraphedTrainer])
@pytest.mark.parametrize(
    ("pool", "network", "words"),
    [
        (
            torch.randint(0, 50, (240, 12)),
            lambda: nn.Sequential(nn.Embedding(50, 6), nn.Flatten(), nn.Linear(72, DIM)),
            "Embedding has no stacked form",
        ),
        (torch.rand(240, 9), lambda: nn.Sequential(nn.Linear(9, 16), nn.ReLU(), nn.Linear(16, DIM)), ""),
        (torch.rand(240, 9), lambda: nn.Sequential(nn.BatchNorm1d(9), nn.Linear(9, DIM), nn.LayerNorm(DIM)), ""),
        (torch.rand(240, 4, 9), lambda: nn.Sequential(nn.Conv1d(4, 3, 3), nn.Flatten(), nn.Linear(21, DIM)), "Conv1d"),
        (torch.rand(240, 4, 9), lambda: nn.Sequential(nn.Linear(9, 3), nn.Flatten(), nn.Linear(12, DIM)), ALL),
    ],
    ids=["tokens", "table", "normalised table", "signal", "linear layer of rows"],
)
def test_tokens_and_tables_end_where_they_end_with_the_eager_trainer(
    pool: Tensor, network: Make, words: str | None, make: Callable[[], Trainer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("support_stacked.POOL", pool)
    trainer = make()

    def build(_name: str, seed: int) -> SplitModel:
        torch.manual_seed(seed)
        return split(network()).double()

    notes = compare(trainer, monkeypatch, build)
    if words is not ALL:
        assert words in notes if words and isinstance(trainer, StackedTrainer) else notes == ""


def data() -> TensorData:
    return TensorData(support_stacked.POOL, support_stacked.LABELS, 2 / 255, -1.0)


def test_weights_of_several_types_are_not_stacked() -> None:
    model = split(Base())
    model.register_buffer("calibration", torch.tensor(0.1, dtype=torch.float64))
    with pytest.raises(CannotStack, match="several types"):
        stacked_form(model, data())


def test_a_layer_without_weights_yet_is_no_crash() -> None:
    model = split(nn.Sequential(nn.Flatten(), nn.LazyLinear(DIM)))
    assert signature(model) != signature(copy.deepcopy(model))
    with pytest.raises(CannotStack, match="has hooks"):
        stacked_form(model, data())


def test_a_network_is_compared_once_however_often_it_is_stacked(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []
    monkeypatch.setattr(rehearsal, "_VERDICTS", {})
    monkeypatch.setattr(rehearsal, "_compare", lambda *_arguments: compared.append(1))
    for seed in range(3):
        stacked_form(as_built(plain, seed), data())
    assert compared == [1]


def test_a_trial_leaves_the_network_and_the_random_draws_of_the_run_as_they_are() -> None:
    model = as_built(lambda: plain(nn.BatchNorm1d(DIM), nn.Dropout(0.5)), 0).eval()
    before, drawn = {name: value.clone() for name, value in model.state_dict().items()}, random_states()
    stacked_form(model, data())
    assert random_states() == drawn
    assert not model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_only_networks_of_the_package_are_taken_without_a_trial() -> None:
    named = build_model("small_cnn_a", ModelShape((3, SIZE, SIZE), DIM, CLASSES, 0.0), 0)
    assert named.registered
    assert not as_built(lambda: copy.deepcopy(named.extractor), 0).registered
    assert not as_built(lambda: copy.deepcopy(named), 0).registered  # whatever was changed in it
