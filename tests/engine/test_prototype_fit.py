"""The server's fit by a kernel of many epochs; PyTorch stands in for the GPU's."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from support_fit import again, all_but_the_last, by_autograd, make_fit, make_network
from tinyproto.algorithms.fedtgp import contrastive_epoch
from tinyproto.core.task import Batch, ParamGroup, State, Task
from tinyproto.engine import graphed
from tinyproto.engine import prototype_fit as fits
from tinyproto.engine.eager import EagerTrainer
from tinyproto.engine.graphed import GraphedTrainer
from tinyproto.engine.prototype_fit import PrototypeFit, prototype_fit
from tinyproto.stacked.fallback import CannotStack


class Plain:
    """The kernel's results, computed by PyTorch."""

    def __init__(self) -> None:
        self.calls = 0
        self.shared: bool | None = None  # whether they were told that other cells run on the device

    def epochs(
        self, weights: State, samples: Batch, batch: int, penalty: Tensor, logged: Tensor, rate: float
    ) -> None:  # fmt: skip
        self.calls += 1
        network = make_network(*weights["embedding.weight"].shape)
        count = len(samples.labels) // len(logged)
        for sums, *epoch in zip(torch.split(logged, 1), *(torch.split(each, count) for each in samples), strict=True):
            for inputs, labels in zip(*(torch.split(each, batch) for each in epoch), strict=True):
                network.load_state_dict(weights)
                with torch.enable_grad():
                    loss, gradients = by_autograd(network, Batch(inputs, labels), penalty)
                for name, gradient in gradients.items():
                    weights[name].sub_(self.changed(name, gradient), alpha=rate)
                sums += loss * len(labels)

    def changed(self, name: str, gradient: Tensor) -> Tensor:
        return gradient


class Reversed(Plain):
    """Moves prototypes by each other's gradients."""

    def changed(self, name: str, gradient: Tensor) -> Tensor:
        return gradient.flip(0) if name == "embedding.weight" else gradient


class Still(Plain):
    """Does not move a bias."""

    def changed(self, name: str, gradient: Tensor) -> Tensor:
        return torch.zeros_like(gradient) if name == "hidden.bias" else gradient


class Empty(Plain):
    """Moves to NaN."""

    def changed(self, name: str, gradient: Tensor) -> Tensor:
        return gradient * torch.nan


class Careless(Plain):
    """Forgets that the last batch is shorter."""

    def epochs(
        self, weights: State, samples: Batch, batch: int, penalty: Tensor, logged: Tensor, rate: float
    ) -> None:  # fmt: skip
        whole = len(samples.labels) // batch * batch
        super().epochs(weights, Batch(*(each[:whole] for each in samples)), batch, penalty, logged, rate)


class Stalled(Plain):
    """Works at first; from a call on its programs wait for each other in vain, and the loss is NaN."""

    def __init__(self, first: int) -> None:
        super().__init__()
        self.first = first

    def epochs(
        self, weights: State, samples: Batch, batch: int, penalty: Tensor, logged: Tensor, rate: float
    ) -> None:  # fmt: skip
        super().epochs(weights, samples, batch, penalty, logged, rate)
        if self.calls >= self.first:
            logged.fill_(torch.nan)


class Failing(Plain):
    """Fails to compile."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    def epochs(
        self, weights: State, samples: Batch, batch: int, penalty: Tensor, logged: Tensor, rate: float
    ) -> None:  # fmt: skip
        raise self.error


def epochs_of(network: nn.Module, kernels: Plain, rate: float) -> PrototypeFit:
    return PrototypeFit(network, rate, kernels.epochs)


def epochs_by(monkeypatch: pytest.MonkeyPatch, kernels: Plain) -> None:
    """Let every fit take its steps with these kernels."""

    def replaced(task: Task, *, shared: bool) -> PrototypeFit:
        kernels.shared = shared
        return epochs_of(task.modules["prototypes"], kernels, task.groups[0].learning_rate)

    monkeypatch.setattr(graphed, "prototype_fit", replaced)


@pytest.mark.parametrize("at_once", [1, 3, 4])
@pytest.mark.parametrize("count", [70, 64, 3])
def test_a_fit_by_whole_epochs_ends_where_the_reference_ends(
    monkeypatch: pytest.MonkeyPatch, count: int, at_once: int
) -> None:
    monkeypatch.setattr(fits, "GATHERED", at_once * count * 20 * 4)
    kernels = Plain()
    epochs_by(monkeypatch, kernels)
    task = make_fit(7, 20, count, epochs=4)
    reference, mine = again(task), again(task)
    (expected,) = EagerTrainer().fit([reference])
    trainer = GraphedTrainer()
    (found,) = trainer.fit([mine])
    assert kernels.calls == -(-task.plan.epochs // at_once) + 1  # one check
    assert found.steps == task.plan.epochs * len(task.plan.sizes)
    assert trainer.notes == []
    torch.testing.assert_close(found.parts, expected.parts, rtol=1e-5, atol=1e-6)
    for one, two in zip(mine.modules.parameters(), reference.modules.parameters(), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("shared", [False, True])
def test_kernels_are_told_whether_other_cells_share_the_device(monkeypatch: pytest.MonkeyPatch, shared: bool) -> None:
    kernels = Plain()
    epochs_by(monkeypatch, kernels)
    GraphedTrainer(shared=shared).fit([make_fit(5, 8, 20)])
    assert kernels.shared is shared


def test_a_fit_with_another_batch_size_is_checked_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    epochs_by(monkeypatch, Plain())
    trainer = GraphedTrainer()
    for count in (40, 20, 50):
        reference = make_fit(5, 8, count)
        mine = again(reference)
        EagerTrainer().fit([reference])
        trainer.fit([mine])
        for one, two in zip(mine.modules.parameters(), reference.modules.parameters(), strict=True):
            torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-6)
    (built,) = trainer.captured.values()
    assert built is not None
    assert built.kernels is not None
    assert len(built.kernels.checked) == 2  # batches of 32 and 20


@pytest.mark.parametrize("kernels", [Reversed(), Still(), Empty(), Careless()], ids=["gradient", "bias", "nan", "last"])
def test_kernels_that_disagree_are_not_used_and_a_note_says_so(monkeypatch: pytest.MonkeyPatch, kernels: Plain) -> None:
    task = make_fit(7, 20, 40)
    expected, found = again(task), again(task)
    GraphedTrainer().fit([expected])
    epochs_by(monkeypatch, kernels)
    trainer = GraphedTrainer()
    trainer.fit([found])
    trainer.fit([again(task)])
    assert kernels.calls == 1
    (note,) = trainer.notes
    assert re.match(r"the server .*kernel.* disagrees with PyTorch", note)
    for one, two in zip(found.modules.parameters(), expected.modules.parameters(), strict=True):
        assert torch.equal(one, two)


@pytest.mark.parametrize("first", [2, 4, 14], ids=["at once", "later", "last"])
def test_a_fit_whose_kernel_stalls_is_soon_done_again_without_it(monkeypatch: pytest.MonkeyPatch, first: int) -> None:
    monkeypatch.setattr(fits, "GATHERED", 1)
    task = make_fit(7, 20, 40, epochs=13)
    expected, found = again(task), again(task)
    GraphedTrainer().fit([expected])
    kernels = Stalled(first)
    epochs_by(monkeypatch, kernels)
    trainer = GraphedTrainer()
    (result,) = trainer.fit([found])
    assert kernels.calls == first
    assert bool(result.parts.isfinite().all())
    (note,) = trainer.notes
    assert re.match(r"the server .*kernels: its loss is not finite", note)
    for one, two in zip(found.modules.parameters(), expected.modules.parameters(), strict=True):
        assert torch.equal(one, two)


def test_batches_that_grow_are_left_to_autograd(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = Plain()
    epochs_by(monkeypatch, kernels)
    task = make_fit(7, 20, 40)
    uneven = replace(task, plan=replace(task.plan, sizes=(8, 32)))
    (found,) = GraphedTrainer().fit([uneven])
    assert found.steps == 6
    assert kernels.calls == 0


def test_kernels_that_fail_to_compile_are_not_used_and_a_note_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    epochs_by(monkeypatch, Failing(RuntimeError("Failed to find C compiler.")))
    trainer = GraphedTrainer()
    (found,) = trainer.fit([make_fit(7, 20, 40)])
    assert found.steps == 6
    (note,) = trainer.notes
    assert re.match(r"the server .*kernels: RuntimeError: Failed to find C compiler\.$", note)


def test_a_lack_of_memory_in_a_check_is_no_verdict_on_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    epochs_by(monkeypatch, Failing(torch.OutOfMemoryError("none left")))
    with pytest.raises(torch.OutOfMemoryError, match="none left"):
        GraphedTrainer(shared=True).fit([make_fit(7, 20, 40)])
    trainer = GraphedTrainer()
    (found,) = trainer.fit([make_fit(7, 20, 40)])
    assert found.steps == 6
    assert trainer.notes == ["the server and similar tasks run without graphs: OutOfMemoryError: none left"]


@pytest.mark.parametrize("words", ["CUBLAS_STATUS_ALLOC_FAILED", "CUBLAS_STATUS_NOT_INITIALIZED"])
def test_nor_is_a_library_s_lack_of_memory(monkeypatch: pytest.MonkeyPatch, words: str) -> None:
    epochs_by(monkeypatch, Failing(RuntimeError(f"CUDA error: {words}")))
    trainer = GraphedTrainer()
    trainer.fit([make_fit(7, 20, 40)])
    (note,) = trainer.notes
    assert re.match(r"the server .* run without graphs: RuntimeError", note)


def test_a_fault_of_the_kernel_ends_the_fit_and_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tinyproto.engine.prototype_fit.still_usable", lambda *_: False)
    monkeypatch.setattr(graphed, "still_usable", lambda *_: False)
    epochs_by(monkeypatch, Failing(RuntimeError("CUDA error: an illegal memory access was encountered")))
    trainer = GraphedTrainer()
    with pytest.raises(RuntimeError, match="illegal memory access") as caught:
        trainer.fit([make_fit(7, 20, 40)])
    assert any("kernel of the server's fit" in note for note in caught.value.__notes__)
    assert trainer.notes == []


@pytest.mark.parametrize("classes", [2, 3, 7])
def test_a_check_runs_once_and_touches_neither_weights_nor_draws(classes: int) -> None:
    network, kernels = make_network(classes, 20), Plain()
    weights = {name: value.detach() for name, value in network.named_parameters()}
    before = {name: value.clone() for name, value in weights.items()}
    fit = epochs_of(network, kernels, rate=0.1)
    state = torch.get_rng_state()
    for _ in range(3):
        fit.check(weights, 9, all_but_the_last(classes))
    assert kernels.calls == 1
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in weights.items())
    with pytest.raises(CannotStack):
        epochs_of(network, Reversed(), rate=0.1).check(weights, 9, all_but_the_last(classes))


def test_only_a_fit_on_a_gpu_has_these_epochs() -> None:
    task = make_fit(7, 20, 40)
    assert prototype_fit(task) is None  # on a CPU
    assert prototype_fit(replace(task, groups=[ParamGroup("prototypes", 0.1, clip_norm=1.0)])) is None
    assert prototype_fit(replace(task, loss=lambda modules, batch, context: task.loss(modules, batch, context))) is None


def written_out(task: Task) -> Task:
    return replace(again(task), epoch=contrastive_epoch)


@pytest.mark.parametrize(("classes", "dim", "count"), [(7, 20, 70), (3, 5, 64), (30, 8, 3), (10, 100, 200)])
def test_a_fit_written_out_for_a_cpu_ends_where_autograd_ends(classes: int, dim: int, count: int) -> None:
    task = make_fit(classes, dim, count, epochs=5)
    reference, mine = again(task), written_out(task)
    expected, found = EagerTrainer().fit([reference, mine])
    assert found.steps == expected.steps
    torch.testing.assert_close(found.parts, expected.parts, rtol=1e-5, atol=1e-6)
    for start, one, two in zip(*(each.modules.parameters() for each in (task, mine, reference)), strict=True):
        assert not torch.equal(one, start)
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-6)


def test_uneven_batches_and_uploads_on_a_prototype_are_written_out_as_well() -> None:
    task = make_fit(7, 20, 40)
    with torch.no_grad():
        on_top = task.modules["prototypes"]()[task.data.labels].clone()  # where the distance has no slope
    for data, sizes in ((task.data, (8, 32)), (replace(task.data, pool=on_top), (40,))):
        uneven = replace(task, data=data, plan=replace(task.plan, sizes=sizes))
        reference, mine = again(uneven), written_out(uneven)
        expected, found = EagerTrainer().fit([reference, mine])
        torch.testing.assert_close(found.parts, expected.parts, rtol=1e-5, atol=1e-6)
        for one, two in zip(mine.modules.parameters(), reference.modules.parameters(), strict=True):
            torch.testing.assert_close(one, two, rtol=1e-3, atol=1e-4)


def test_without_uploads_a_fit_that_is_written_out_changes_nothing() -> None:
    task = make_fit(7, 20, 40)
    nothing = written_out(replace(task, plan=replace(task.plan, sizes=())))
    (found,) = EagerTrainer().fit([nothing])
    assert found.steps == 0
    for one, two in zip(nothing.modules.parameters(), task.modules.parameters(), strict=True):
        assert torch.equal(one, two)
