"""Where memory runs out, in any round, training continues in a slower way and ends at the reference's numbers."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from support_stacked import LABELS, POOL, assert_alike, built, clients_of, side_of, stacked_trainer, trained
from tinyproto.algorithms.base import Client
from tinyproto.core.task import Batch, Step, Task, TensorData, Trainer, batch_plan
from tinyproto.engine.eager import EagerTrainer
from tinyproto.engine.graphed import GraphedTrainer
from tinyproto.memory import is_out_of_memory, lacked_memory, leaves_room
from tinyproto.stacked import features, step_loop
from tinyproto.stacked import trainer as stacked
from tinyproto.stacked.fallback import UNUSABLE, CannotStack
from tinyproto.stacked.step_loop import Stack, gather
from tinyproto.stacked.trainer import StackedTrainer

SIZES = (44, 30, 5, 17)
TOLD = "memory ran out: OutOfMemoryError: tried to allocate"


def lack(monkeypatch: pytest.MonkeyPatch, lacking: Callable[[Tensor], bool]) -> None:
    """Let stacks gather only batches (clients, samples) for which memory suffices."""

    def scarce(data: TensorData, rows: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        if lacking(rows):
            raise torch.OutOfMemoryError("tried to allocate")
        return gather(data, rows, dtype)

    monkeypatch.setattr(step_loop, "gather", scarce)
    monkeypatch.setattr(features, "gather", scarce)


class After:
    """Is true for all calls after so many."""

    def __init__(self, calls: int, *, times: int = 10**9) -> None:
        self.left, self.times = calls, times

    def __call__(self, _rows: Tensor) -> bool:
        self.left -= 1
        self.times -= self.left < 0
        return self.left < 0 <= self.times


def reference(algorithm: str = "fedproto") -> list[Client]:
    return trained(side_of(algorithm, "small_cnn_b"), EagerTrainer(), "small_cnn_b", SIZES)[0]


@pytest.mark.usefixtures("exact")
def test_a_stack_that_is_too_wide_continues_in_parts() -> None:
    with pytest.MonkeyPatch.context() as patch:
        lack(patch, lambda rows: rows.shape[0] > 2)
        trainer = stacked_trainer()
        found, results = trained(side_of("fedproto", "small_cnn_b"), trainer, "small_cnn_b", SIZES)
    assert_alike(found, reference())
    assert [result.steps for result in results] == [12, 8, 2, 4]
    assert trainer.notes == [f"from now on clients of a network run 2 at a time, since {TOLD}"]
    assert [stack.clients for stack in trainer.stacks.values() if stack is not None] == [2, 1]


@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize("algorithm", ["fedproto", "fml", "fedproto, running"])
@pytest.mark.parametrize("calls", [1, 7, 30])
def test_a_lack_of_memory_in_the_middle_of_a_round_changes_no_number(
    monkeypatch: pytest.MonkeyPatch, calls: int, algorithm: str
) -> None:
    lack(monkeypatch, After(calls, times=1))
    trainer = stacked_trainer()
    found, _ = trained(side_of(algorithm, "small_cnn_b"), trainer, "small_cnn_b", SIZES)
    assert_alike(found, reference(algorithm))
    assert len(trainer.notes) == 1


@pytest.mark.usefixtures("exact")
def test_without_memory_for_any_stack_clients_run_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    lack(monkeypatch, After(25))
    trainer = stacked_trainer()
    found, _ = trained(side_of("fedproto", "small_cnn_b"), trainer, "small_cnn_b", SIZES)
    assert_alike(found, reference())
    assert trainer.notes[-1] == f"from now on clients run one by one, since {TOLD}"
    assert (trainer.width, trainer.stacks) == (0, {})


def test_a_stack_that_lacks_memory_is_freed_before_anything_else_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    built_stacks: list[weakref.ref[Stack]] = []
    alive: list[int] = []
    real = Stack.__init__

    def noted(self: Stack, first: Task, clients: int, **options: bool) -> None:
        alive.append(sum(stack() is not None for stack in built_stacks))
        built_stacks.append(weakref.ref(self))
        real(self, first, clients, **options)

    monkeypatch.setattr(Stack, "__init__", noted)
    lack(monkeypatch, lambda rows: rows.shape[0] > 1)
    gc.disable()  # what is freed is freed on purpose
    try:
        trained(side_of("local", "small_cnn_a"), stacked_trainer(), "small_cnn_a", (16, 16, 16))
    finally:
        gc.enable()
    assert alive == [0, 0, 0]  # stacks of three, two and one client


@pytest.mark.usefixtures("exact")
def test_stacks_that_leave_no_memory_to_what_nobody_could_run_again_are_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = stacked_trainer()

    def fits(_device: torch.device) -> bool:
        return all(stack is None or stack.clients <= 2 for stack in trainer.stacks.values())

    monkeypatch.setattr(stacked, "leaves_room", fits)
    found, _ = trained(side_of("fedproto", "small_cnn_b"), trainer, "small_cnn_b", SIZES)
    assert_alike(found, reference())
    assert trainer.notes == [
        "from now on clients of a network run 2 at a time, since memory ran out: stacks leave less than 64 MiB"
    ]
    trained(side_of("fedproto", "small_cnn_b"), trainer, "small_cnn_b", SIZES)
    assert len(trainer.notes) == 1


def test_beside_other_cells_stacks_need_not_leave_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacked, "leaves_room", lambda device: False)
    trainer = StackedTrainer(GraphedTrainer(shared=True), shared=True)
    trained(side_of("local", "small_cnn_a"), trainer, "small_cnn_a", (16, 16))
    assert trainer.notes == []


def test_room_is_left_if_it_can_be_allocated(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    free = 100 * 2**20

    def empty(size: int, **_options: object) -> None:
        asked.append(size)
        if size > free:
            raise torch.OutOfMemoryError("tried to allocate")

    monkeypatch.setattr(torch, "empty", empty)
    assert leaves_room(torch.device("cpu"))
    assert asked == []
    assert leaves_room(torch.device("cuda"))
    free = 2**20
    assert not leaves_room(torch.device("cuda"))


def test_a_stack_that_cannot_even_be_built_becomes_narrower(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Stack.__init__

    def scarce(self: Stack, first: Task, clients: int, **options: bool) -> None:
        if clients > 1:
            raise torch.OutOfMemoryError("tried to allocate")
        real(self, first, clients, **options)

    monkeypatch.setattr(Stack, "__init__", scarce)
    trainer = stacked_trainer()
    trained(side_of("local", "small_cnn_a"), trainer, "small_cnn_a", (16, 16, 16))
    assert trainer.notes == [f"from now on clients of a network run {n} at a time, since {TOLD}" for n in (2, 1)]
    assert [stack.clients for stack in trainer.stacks.values() if stack is not None] == [1]


def poor(task: Task, lacking: Callable[[Tensor], bool]) -> Task:
    def loss(modules: torch.nn.ModuleDict, batch: Batch, context: Mapping[str, Tensor]) -> Step:
        if modules is not task.modules and lacking(batch.labels):
            raise torch.OutOfMemoryError("tried to allocate")
        return task.loss(modules, batch, context)

    return replace(task, loss=loss, key=("poor", task.key))


@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize("calls", [0, 3, 20])
def test_captured_steps_that_lack_memory_are_taken_eagerly_from_where_the_fit_began(calls: int) -> None:
    lacking, side, trainer = After(calls), side_of("local", "small_cnn_b"), GraphedTrainer()
    clients = clients_of(side, "small_cnn_b", SIZES)
    for number in range(2):
        tasks = []
        for client in clients:
            shuffle = torch.Generator().manual_seed(100 * number + client.id)
            plan = batch_plan(len(client.train), 8, 2, last="join", shuffle=shuffle)
            tasks.append(poor(side.task(client, plan, seed=0), lacking))
        trainer.fit(tasks)
    assert_alike(clients, reference("local"))
    assert len(trainer.notes) == 1
    assert trainer.notes[0].endswith("run without graphs: OutOfMemoryError: tried to allocate")


@pytest.mark.usefixtures("exact")
def test_a_capture_that_fails_in_a_later_round_is_no_error_either() -> None:
    side, trainer, failing = side_of("local", "small_cnn_b"), GraphedTrainer(), False

    def refusing(task: Task) -> Task:
        def loss(modules: torch.nn.ModuleDict, batch: Batch, context: Mapping[str, Tensor]) -> Step:
            if failing and modules is not task.modules:
                raise CannotStack("a step could not be captured: RuntimeError: operation not permitted")
            return task.loss(modules, batch, context)

        return replace(task, loss=loss, key=("refusing", task.key))

    mine, other = (clients_of(side, "small_cnn_b", (24, 16)) for _ in range(2))
    for clients, executing in ((other, EagerTrainer()), (mine, trainer)):
        for client in clients:
            plan = batch_plan(len(client.train), 8, 1, last="join", shuffle=None)
            executing.fit([refusing(side.task(client, plan, seed=0))])
            failing = executing is trainer
    assert_alike(mine, other)
    (note,) = trainer.notes
    assert note.endswith("run without graphs: a step could not be captured: RuntimeError: operation not permitted")


def unchanged_and_raised(trainer: Trainer, make: Callable[[Task], Task]) -> None:
    side = side_of("local", "small_cnn_a")
    clients = clients_of(side, "small_cnn_a", (16, 16))
    before = [tensor.clone() for client in clients for tensor in client.model.state_dict().values()]
    tasks = [make(side.task(client, batch_plan(16, 8, 1, last="join", shuffle=None), seed=0)) for client in clients]
    with pytest.raises(torch.OutOfMemoryError):
        trainer.fit(tasks)
    after = [tensor for client in clients for tensor in client.model.state_dict().values()]
    assert all(torch.equal(one, two) for one, two in zip(after, before, strict=True))
    assert trainer.notes == []


@pytest.mark.usefixtures("exact")
def test_beside_other_cells_a_lack_of_memory_is_raised_since_fewer_have_to_run(monkeypatch: pytest.MonkeyPatch) -> None:
    graphed = GraphedTrainer(shared=True)
    unchanged_and_raised(graphed, lambda task: poor(task, After(1)))
    lack(monkeypatch, After(1))
    unchanged_and_raised(StackedTrainer(graphed, shared=True), lambda task: task)
    monkeypatch.setattr(EagerTrainer, "_in_batches", lambda *_: exec("raise torch.OutOfMemoryError('none')"))
    with pytest.raises(torch.OutOfMemoryError):
        EagerTrainer(shared=True).features([built("small_cnn_a", 0)], [TensorData(POOL, LABELS)])


def shares(longest: int = 60) -> list[TensorData]:
    found = []
    for number, size in enumerate((40, 7, longest)):
        rows = (torch.arange(size) + 60 * number) % len(POOL)
        found.append(TensorData(POOL, LABELS[rows], 2 / 255, -1.0, rows))
    return found


@pytest.mark.parametrize(
    ("longest", "most", "width", "batch"),
    [
        (400, 3 * 512, None, 512), (400, 3 * 128, None, 128), (400, 3 * 32, None, 32), (400, 32, 1, 32),
        (60, 3 * 64, None, 512), (60, 3 * 32, None, 32), (60, 8, 0, 32),
    ],
)  # fmt: skip
def test_features_are_computed_fewer_at_a_time_and_then_by_fewer_clients(
    monkeypatch: pytest.MonkeyPatch, longest: int, most: int, width: int | None, batch: int
) -> None:
    models = [built("small_cnn_d", seed).float() for seed in range(3)]
    expected = EagerTrainer().features(models, shares(longest))
    lack(monkeypatch, lambda rows: rows.numel() > most)
    trainer = stacked_trainer()
    for _ in range(2):
        for mine, other in zip(trainer.features(models, shares(longest)), expected, strict=True):
            assert torch.allclose(mine, other, atol=1e-4)
    assert (trainer.width, trainer.feature_batch) == (width, batch)
    assert all(TOLD in note for note in trainer.notes)


def test_the_reference_s_features_take_smaller_batches_down_to_one_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    model, data = built("small_cnn_a", 0).float(), shares()
    expected = EagerTrainer().features([model] * 3, data)
    trainer, real = EagerTrainer(), TensorData.batch
    error: Exception = torch.OutOfMemoryError("tried to allocate")

    def scarce(self: TensorData, indices: Tensor | slice) -> Batch:
        found = real(self, indices)
        if len(found.labels) > most:
            raise error
        return found

    monkeypatch.setattr(TensorData, "batch", scarce)
    most = 20
    for mine, other in zip(trainer.features([model] * 3, data), expected, strict=True):
        assert torch.allclose(mine, other, atol=1e-5)
    assert trainer.feature_batch == 16
    assert trainer.notes[-1] == "features are computed 16 samples at a time: OutOfMemoryError: tried to allocate"
    most, error = 8, RuntimeError("CUDNN_STATUS_ALLOC_FAILED")
    trainer.features([model] * 3, data)
    assert trainer.feature_batch == 8
    most = 0
    with pytest.raises(RuntimeError, match="ALLOC_FAILED"):
        trainer.features([model], data[:1])


@pytest.mark.usefixtures("exact")
def test_a_refused_kernel_in_a_later_round_is_no_error_either(monkeypatch: pytest.MonkeyPatch) -> None:
    def refusing(data: TensorData, rows: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        if rows.shape[0] == 2:
            raise CannotStack("the odd kernel disagrees with PyTorch on this device")
        return gather(data, rows, dtype)

    monkeypatch.setattr(step_loop, "gather", refusing)
    side, trainer = side_of("local", "small_cnn_a"), stacked_trainer()
    clients = clients_of(side, "small_cnn_a", (16, 16, 16))
    for chosen in (clients, clients[:2]):
        plan = batch_plan(16, 8, 1, last="join", shuffle=None)
        trainer.fit([side.task(client, plan, seed=0) for client in chosen])
    (note,) = trainer.notes
    assert note.endswith("one by one: the odd kernel disagrees with PyTorch on this device")


@pytest.mark.parametrize("make", [stacked_trainer, GraphedTrainer])
def test_no_other_trainer_takes_over_on_a_gpu_that_a_fault_has_made_unusable(
    monkeypatch: pytest.MonkeyPatch, make: Callable[[], StackedTrainer | GraphedTrainer]
) -> None:
    def faulty(task: Task) -> Task:
        def loss(modules: torch.nn.ModuleDict, batch: Batch, context: Mapping[str, Tensor]) -> Step:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

        return replace(task, loss=loss, key=("faulty", task.key))

    trainer = make()
    trainer.device = torch.device("cuda")
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: exec("raise RuntimeError('CUDA error')"))
    with pytest.raises(RuntimeError, match="illegal memory access") as caught:
        trained(side_of("local", "small_cnn_a"), trainer, "small_cnn_a", (16, 16), faulty)
    assert UNUSABLE in caught.value.__notes__
    assert trainer.notes == []


def test_an_error_that_follows_a_lack_of_memory_is_known_as_one() -> None:
    def fail() -> None:
        try:
            raise torch.OutOfMemoryError("tried to allocate")
        finally:
            raise RuntimeError("the capture was invalidated")

    with pytest.raises(RuntimeError, match="invalidated") as caught:
        fail()
    assert lacked_memory(caught.value)
    assert not is_out_of_memory(caught.value)
    assert is_out_of_memory(RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED"))
    assert not lacked_memory(RuntimeError("a fault"))
