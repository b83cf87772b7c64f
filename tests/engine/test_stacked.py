"""Clients trained together must end with the weights that each gets alone."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import tinyproto as tp
from support_stacked import (
    CLASSES,
    DIM,
    LABELS,
    NETWORKS,
    OPTIONS,
    POOL,
    SIZE,
    assert_alike,
    built,
    clients_of,
    side_of,
    stacked_trainer,
    trained,
)
from tinyproto.core.task import Batch, Step, Task, TensorData, Trainer, batch_plan
from tinyproto.engine.eager import EagerTrainer
from tinyproto.engine.graphed import GraphedTrainer
from tinyproto.models import SplitModel
from tinyproto.stacked import step_loop
from tinyproto.stacked.features import FeatureStack
from tinyproto.stacked.network import StackedModel
from tinyproto.stacked.state import StackedState
from tinyproto.stacked.trainer import StackedTrainer


@pytest.mark.parametrize("network", NETWORKS)
def test_a_stack_gives_every_client_s_own_features_logits_and_gradients(network: str) -> None:
    models = [built(network, seed) for seed in range(2)]
    state = StackedState(models[0], 2)
    state.load(models)
    images = torch.randn(2, 6, 3, SIZE, SIZE, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    found = StackedModel(models[0])(images, state.tensors, normalise=True, training=True)
    gradients = torch.autograd.grad(found.logits.square().sum(), list(state.parameters.values()))
    for number, model in enumerate(models):
        alone = model.train()(images[number])
        assert torch.allclose(found.features[number], alone.features, atol=1e-9)
        assert torch.allclose(found.logits[number], alone.logits, atol=1e-9)
        expected = torch.autograd.grad(alone.logits.square().sum(), list(model.parameters()))
        largest = max(float(gradient.abs().max()) for gradient in expected)
        for mine, other in zip(gradients, expected, strict=True):
            assert float((mine[number] - other).abs().max()) < 1e-8 * largest
        statistics = dict(model.named_buffers())
        for name, value in state.buffers.items():
            assert torch.allclose(value[number], statistics[name], atol=1e-9), name


@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize(
    "algorithm",
    [
        "local",
        "fedavg",
        "lg_fedavg",
        "fml",
        "fedkd",
        "feddistill",
        "fedproto",
        "fedtgp",
        "anchors",
        "fedgh",
        "protonorm",
        "fedorgp",
        "tinyproto_fp",
        "tinyproto_ft",
        "tinyproto_sphere",
        *OPTIONS,
    ],
)
def test_clients_of_unequal_size_end_where_each_ends_alone(algorithm: str) -> None:
    side = side_of(algorithm, "small_cnn_b")
    sizes = (44, 30, 5, 17)  # 17 = 8 + 9: the last sample joins; 5 is no whole batch
    alone, reference = trained(side, EagerTrainer(), "small_cnn_b", sizes)
    trainer = stacked_trainer()
    together, results = trained(side, trainer, "small_cnn_b", sizes)
    assert trainer.notes == []
    assert [stack is not None for stack in trainer.stacks.values()] == [True, True]
    assert_alike(together, alone)
    for mine, other in zip(results, reference, strict=True):
        assert (mine.steps, mine.part_names) == (other.steps, other.part_names)
        assert torch.allclose(mine.parts, other.parts, atol=1e-9)
        assert (mine.observed is None) == (other.observed is None)
        if mine.observed is not None and other.observed is not None:
            assert torch.allclose(mine.observed.sums, other.observed.sums, atol=1e-9)
            assert torch.equal(mine.observed.counts, other.observed.counts)


@pytest.mark.usefixtures("exact")
def test_clients_without_steps_leave_the_stack() -> None:
    side = side_of("fedproto", "small_cnn_a")
    sizes = (8, 160, 16, 16)  # one client with twenty batches, three with one or two
    alone, _ = trained(side, EagerTrainer(), "small_cnn_a", sizes)
    trainer = stacked_trainer()
    together, results = trained(side, trainer, "small_cnn_a", sizes)
    assert_alike(together, alone)
    done, paid = [result.steps for result in results], [result.steps_computed for result in results]
    assert done == [2, 40, 4, 4]
    assert paid[1] == 40
    assert trainer.notes == []
    assert [stack is not None for stack in trainer.stacks.values()] == [True]
    assert sum(paid) <= 1.1 * sum(done)  # a stack that never shrank would pay for 160


@pytest.mark.usefixtures("exact")
def test_no_step_is_lost_where_as_many_batches_are_of_other_sizes() -> None:
    side = side_of("local", "small_cnn_a")
    sizes = (18, 16, 26, 24)  # batches of 8 and 10, of 8 and 8, of 8, 8 and 10, of 8, 8 and 8
    alone, _ = trained(side, EagerTrainer(), "small_cnn_a", sizes)
    together, _ = trained(side, stacked_trainer(), "small_cnn_a", sizes)
    assert_alike(together, alone)


@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize("registered", [True, False])
@pytest.mark.parametrize("clip", [None, 0.1])
def test_a_module_whose_weights_are_all_frozen_stays_in_the_stack(
    monkeypatch: pytest.MonkeyPatch, clip: float | None, registered: bool
) -> None:
    def frozen(name: str, seed: int) -> SplitModel:
        model = built(name, seed).requires_grad_(False)
        model.registered = registered
        return model

    def clipped(task: Task) -> Task:
        return replace(task, groups=[group._replace(clip_norm=clip) for group in task.groups])

    monkeypatch.setattr("support_stacked.built", frozen)
    side, trainer = side_of("fml", "small_cnn_a"), stacked_trainer()
    alone, _ = trained(side, EagerTrainer(), "small_cnn_a", (20, 12), clipped)
    together, _ = trained(side, trainer, "small_cnn_a", (20, 12), clipped)
    assert_alike(together, alone)
    assert trainer.notes == []


@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize("make", [stacked_trainer, GraphedTrainer])
def test_layers_that_are_frozen_in_some_rounds_only_stay_as_they_are_in_these(make: Callable[[], Trainer]) -> None:
    side = side_of("local", "small_cnn_a")
    found = []
    for trainer in (EagerTrainer(), make()):
        clients = clients_of(side, "small_cnn_a", (20, 12))
        for frozen in (False, True, False, True):
            for client in clients:
                client.model.extractor.requires_grad_(not frozen)
            before = [client.model.extractor[0].weight.clone() for client in clients]  # type: ignore[index]
            plans = [batch_plan(len(client.train), 8, 1, last="join", shuffle=None) for client in clients]
            trainer.fit([side.task(client, plan, seed=0) for client, plan in zip(clients, plans, strict=True)])
            for client, weight in zip(clients, before, strict=True):
                assert torch.equal(client.model.extractor[0].weight, weight) == frozen  # type: ignore[index]
        found.append(clients)
    assert_alike(found[0], found[1])


@pytest.mark.usefixtures("exact")
def test_batches_of_one_sample_are_not_counted_by_normalisation() -> None:
    side = side_of("local", "resnet8")
    sizes = (1, 20)
    alone, _ = trained(side, EagerTrainer(), "resnet8", sizes)
    together, _ = trained(side, stacked_trainer(), "resnet8", sizes)
    assert_alike(together, alone)
    counters = [value for name, value in together[0].model.state_dict().items() if name.endswith("batches_tracked")]
    assert counters
    assert not any(counters)


def test_steps_are_kept_even_if_every_client_has_a_remaining_batch_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_loop, "MOST_CAPTURED", 2)
    built_steps: list[tuple[int, int, int]] = []
    make = step_loop._Steps.__init__

    def noted(steps: step_loop._Steps, stack: step_loop.Stack, first: int, last: int, batch: int, most: int) -> None:
        built_steps.append((first, last, batch))
        make(steps, stack, first, last, batch, most)

    monkeypatch.setattr(step_loop._Steps, "__init__", noted)
    trained(side_of("local", "small_cnn_a"), stacked_trainer(), "small_cnn_a", (9, 10, 11))
    assert len(built_steps) == len(set(built_steps)) == 3
    stack = step_loop.Stack(clients_task(), 1)
    for size in range(1, 6):
        stack._steps(0, 1, size, 1)
    stack._steps(0, 2, 8, 1)
    for size in range(6, 9):
        stack._steps(0, 1, size, 1)
    assert list(stack.captured) == [(0, 2, 8), (0, 1, 7), (0, 1, 8)]  # those of several clients go last


def clients_task() -> Task:
    side = side_of("local", "small_cnn_a")
    (client,) = clients_of(side, "small_cnn_a", (16,))
    return side.task(client, batch_plan(16, 8, 1, last="join", shuffle=None), seed=0)


def test_a_stack_that_grows_keeps_to_its_limit() -> None:
    side = side_of("local", "small_cnn_a")
    trainer = StackedTrainer(GraphedTrainer(), 4)
    clients = clients_of(side, "small_cnn_a", (8, 8, 8, 8))
    for client in clients:
        client.model.float()
    for count in (2, 4):
        plan = batch_plan(8, 8, 1, last="join", shuffle=None)
        trainer.fit([side.task(client, plan, seed=0) for client in clients[:count]])
        trainer.features([client.model for client in clients[:count]], [client.train for client in clients[:count]])
    for stacks in (trainer.stacks, trainer.feature_stacks):
        assert [stack and stack.clients for stack in stacks.values()] == [4]


@pytest.mark.usefixtures("exact")
def test_clients_with_a_module_without_weights_are_trained_alone_and_a_note_says_so() -> None:
    def with_nothing(task: Task) -> Task:
        modules = nn.ModuleDict({**task.modules, "nothing": nn.Identity()})
        return replace(task, modules=modules, key=("with nothing", task.key))

    side, trainer = side_of("local", "small_cnn_a"), stacked_trainer()
    alone, _ = trained(side, EagerTrainer(), "small_cnn_a", (20, 12), with_nothing)
    together, _ = trained(side, trainer, "small_cnn_a", (20, 12), with_nothing)
    assert_alike(together, alone, tolerance=0.0)
    (note,) = trainer.notes
    assert re.match(r"client 0 .*one by one: Identity has no weights", note)


@pytest.mark.usefixtures("exact")
def test_a_stack_takes_fewer_clients_than_it_was_built_for_and_more_make_it_grow() -> None:
    side, trainer = side_of("fedproto", "small_cnn_a"), stacked_trainer()
    alone, together = (clients_of(side, "small_cnn_a", (24, 30, 17)) for _ in range(2))
    for chosen in ([0, 1], [2], [0, 1, 2], [1, 2]):
        for clients, executing in ((alone, EagerTrainer()), (together, trainer)):
            tasks = []
            for client in (clients[number] for number in chosen):
                plan = batch_plan(len(client.train), 8, 1, last="keep", shuffle=None)
                tasks.append(side.task(client, plan, seed=0))
            executing.fit(tasks)
    assert_alike(together, alone)
    assert [stack.clients for stack in trainer.stacks.values() if stack is not None] == [3]


@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize("algorithm", ["local", "fml", "fedkd", "feddistill", "fedproto", "fedsa", "fedorgp", *OPTIONS])
def test_captured_steps_of_one_client_end_where_the_reference_ends(algorithm: str) -> None:
    side, sizes = side_of(algorithm, "small_cnn_b"), (44, 30, 5, 17)
    expected, reference = trained(side, EagerTrainer(), "small_cnn_b", sizes)
    trainer = GraphedTrainer()
    found, results = trained(side, trainer, "small_cnn_b", sizes)
    assert trainer.notes == []
    assert_alike(found, expected)
    for mine, other in zip(results, reference, strict=True):
        assert mine.steps == other.steps
        assert torch.allclose(mine.parts, other.parts, atol=1e-6)


@pytest.mark.usefixtures("exact")
def test_what_cannot_be_captured_runs_eagerly_and_a_note_says_so() -> None:
    def refusing(task: Task) -> Task:
        def loss(modules: nn.ModuleDict, batch: Batch, context: Mapping[str, Tensor]) -> Step:
            if modules is not task.modules:
                raise TypeError("its own modules wanted")
            return task.loss(modules, batch, context)

        return replace(task, loss=loss, key=("refusing", task.key))

    side, trainer = side_of("local", "small_cnn_a"), GraphedTrainer()
    alone, _ = trained(side, EagerTrainer(), "small_cnn_a", (20, 12), refusing)
    found, _ = trained(side, trainer, "small_cnn_a", (20, 12), refusing)
    assert_alike(found, alone, tolerance=0.0)
    (note,) = trainer.notes
    assert re.search(r"client 0 .* TypeError: its own modules wanted$", note)


@pytest.mark.parametrize("make", [stacked_trainer, GraphedTrainer])
def test_a_lack_of_memory_is_raised(make: Callable[[], Trainer]) -> None:
    def greedy(task: Task) -> Task:
        def loss(modules: nn.ModuleDict, batch: Batch, context: object) -> Step:
            raise torch.OutOfMemoryError("tried to allocate")

        return replace(task, loss=loss, key=("greedy", task.key))

    with pytest.raises(torch.OutOfMemoryError):
        trained(side_of("local", "small_cnn_a"), make(), "small_cnn_a", (20, 12), greedy)


@pytest.mark.usefixtures("exact")
def test_resnet_8_is_trained_together_too() -> None:
    side = side_of("fedproto", "resnet8")
    alone, _ = trained(side, EagerTrainer(), "resnet8", (24, 16))
    together, _ = trained(side, stacked_trainer(), "resnet8", (24, 16))
    assert_alike(together, alone)


class Odd(nn.Module):
    """Uses an operation without a stacked form."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3 * SIZE * SIZE, DIM)

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.layer(images.flatten(1)).cumsum(1)
        return features


@pytest.mark.usefixtures("exact")
def test_a_network_without_a_stacked_form_is_trained_alone_and_a_note_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def odd(_name: str, seed: int) -> SplitModel:
        torch.manual_seed(seed)
        return SplitModel(Odd(), nn.Linear(DIM, CLASSES)).double()

    monkeypatch.setattr("support_stacked.built", odd)
    side = side_of("local", "small_cnn_a")
    trainer = stacked_trainer()
    alone, _ = trained(side, EagerTrainer(), "odd", (20, 12))
    together, _ = trained(side, trainer, "odd", (20, 12))
    assert_alike(together, alone, tolerance=0.0)
    (note,) = trainer.notes
    assert re.match(r"client 0 .*one by one: \.flatten\(\)", note)


@pytest.mark.usefixtures("exact")
def test_a_loss_that_cannot_be_stacked_fails_before_anything_has_changed() -> None:
    def shifted(task: Task) -> Task:
        def loss(modules: nn.ModuleDict, batch: Batch, context: object) -> Step:
            logits = modules["model"](batch.inputs + 1.0).logits
            value = nn.functional.cross_entropy(logits, batch.labels)
            return Step(value, value.detach().unsqueeze(0))

        return replace(task, loss=loss, key=("shifted", task.key))

    side = side_of("local", "small_cnn_a")
    alone, _ = trained(side, EagerTrainer(), "small_cnn_a", (20, 12), shifted)
    trainer = stacked_trainer()
    together, _ = trained(side, trainer, "small_cnn_a", (20, 12), shifted)
    assert_alike(together, alone)
    (note,) = trainer.notes
    assert re.match(r"client 0 .*one by one: its loss .*inputs", note)


@pytest.mark.parametrize("network", ["small_cnn_d", "shufflenet_v2"])
def test_features_of_a_stack_are_each_client_s_own(network: str) -> None:
    models = [built(network, seed).float() for seed in range(3)]
    data = []
    for number, size in enumerate((40, 7, 60)):
        rows = torch.arange(60 * number, 60 * number + size)
        data.append(TensorData(POOL, LABELS[rows], 2 / 255, -1.0, rows))
    expected = EagerTrainer().features(models, data)
    trainer = stacked_trainer()
    for _ in range(2):  # the second time from what was built the first time
        found = trainer.features(models, data)
        for mine, other in zip(found, expected, strict=True):
            assert torch.allclose(mine, other, atol=1e-4)


def test_dropout_that_a_network_calls_in_training_only_is_traced_whatever_mode_it_was_left_in() -> None:
    class Dropping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.drop = nn.Dropout(0.5)

        def forward(self, values: Tensor) -> Tensor:
            return self.drop(values) if self.training else values

    stacked = StackedModel(SplitModel(Dropping(), Dropping()).eval())
    ones = torch.ones(2, 50, 20)
    dropped = stacked(ones, {}, normalise=True, training=True)
    assert 0.4 < float((dropped.features == 0).float().mean()) < 0.6
    assert float((dropped.logits == 0).float().mean()) > 0.6
    kept = stacked(ones, {}, normalise=False, training=False)
    assert torch.equal(kept.features, ones)
    assert torch.equal(kept.logits, ones)


def test_features_are_computed_for_no_more_samples_than_clients_have_whoever_takes_part() -> None:
    models = [built("small_cnn_a", seed).float() for seed in range(2)]
    trainer = stacked_trainer()
    widest = []
    for sizes in ((20, 40), (3, 100), (100, 1), (33, 2)):
        rows = [torch.arange(60 * number, 60 * number + size) for number, size in enumerate(sizes)]
        data = [TensorData(POOL, LABELS[each], 2 / 255, -1.0, each) for each in rows]
        found = trainer.features(models, data)
        for mine, other in zip(found, EagerTrainer().features(models, data), strict=True):
            assert torch.allclose(mine, other, atol=1e-4)
        (stack,) = trainer.feature_stacks.values()
        assert stack is not None
        widest.append([size for _, size in stack.captured])
        assert len(stack.rows) == 2 * max(widest[-1])  # however many sizes there are
        assert len(stack.found) == len(stack.rows)
    assert widest == [[64], [128], [128], [128, 64]]  # larger memory is captured anew, each size once


@pytest.mark.parametrize(("side", "most"), [(32, 512), (96, 455), (224, 83), (400, 32)])
def test_features_are_computed_for_as_many_samples_as_our_kernels_can_count(side: int, most: int) -> None:
    model = SplitModel(nn.Sequential(nn.Flatten(), nn.Linear(3 * side * side, DIM)), nn.Linear(DIM, CLASSES))
    pool = torch.zeros(2, 3, side, side, dtype=torch.uint8)
    stack = FeatureStack(model, TensorData(pool, LABELS[:2], 1.0, 0.0, torch.arange(2)), 512, 1)
    assert stack.batch == most


class Columns(nn.Module):
    """Averages over one axis of the map, which fails only when it is computed, if nobody tries it before."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3 * SIZE, DIM)
        self.flatten = nn.Flatten()

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.layer(self.flatten(images.mean((2,))))
        return features


def test_features_that_prove_not_to_stack_are_computed_alone() -> None:
    models = [SplitModel(Columns(), nn.Linear(DIM, CLASSES)) for _ in range(2)]
    models[0].registered = models[1].registered = True
    data = [TensorData(POOL, LABELS[rows], 2 / 255, -1.0, rows) for rows in (torch.arange(20), torch.arange(20, 45))]
    trainer = stacked_trainer()
    for _ in range(2):
        found = trainer.features(models, data)
        for mine, other in zip(found, EagerTrainer().features(models, data), strict=True):
            assert torch.equal(mine, other)
    (note,) = trainer.notes
    assert re.match(r"features .* one by one: a mean over axes", note)


@pytest.mark.parametrize("algorithm", ["fedtgp", "tinyproto_ft", "fedgh", "protonorm", "fedsa", "fedorgp", *OPTIONS])
def test_a_whole_simulation_gives_the_reference_s_numbers_up_to_rounding(algorithm: str) -> None:
    def simulated(trainer: str) -> tp.Result:
        train = {"trainer": trainer, "batch_size": 16}
        networks = ["small_cnn_a", "small_cnn_c"]
        entry = {"name": algorithm.partition(",")[0], **OPTIONS.get(algorithm, {})}
        return tp.simulate(algorithm=entry, models=networks, num_clients=6, rounds=2, settings={"train": train})

    eager, stacked = simulated("eager"), simulated("stacked")
    for mine, other in zip(stacked.rounds, eager.rounds, strict=True):
        assert mine.traffic == other.traffic
        assert mine.loss == pytest.approx(other.loss, rel=1e-3)
        for rule, accuracy in other.accuracy.items():
            assert mine.accuracy[rule] == (None if accuracy is None else pytest.approx(accuracy, abs=0.01))
