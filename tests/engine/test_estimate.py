"""The memory estimate against tensors counted on a CPU, and the way to run that it chooses."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from support_stacked import SIZE, clients_of, side_of
from tinyproto import memory
from tinyproto.core.task import Task, batch_plan
from tinyproto.engine.estimate import TEMPORARY, Kind, Known, Needs
from tinyproto.engine.training import Choice, choose, fitted, make_trainer
from tinyproto.memory import CONTEXT, SCRATCH, SCRATCH_FROM_HOPPER, USABLE, gpu_room, scratch_memory
from tinyproto.models import ModelShape, build_model
from tinyproto.models.count import StepSize, step_size
from tinyproto.stacked import capture, convolution
from tinyproto.stacked.capture import Branch, current_branch, why_no_kernels
from tinyproto.stacked.convolution import Geometry, plain_convolution
from tinyproto.stacked.step_loop import Stack

GIB = 2**30
PAPER = ("resnet8", "mobilenet_v2", "shufflenet_v2", "efficientnet_b0")
CLIENTS, BATCH = 2, 16


class Counted(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of storages that operations make, while they live."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live: dict[int, tuple[Any, int]] = {}
        self.peak = 0

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Sequence[type], args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        known = {each.untyped_storage().data_ptr() for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)}
        found = func(*args, **(kwargs or {}))
        self.live = {place: held for place, held in self.live.items() if not held[0].expired()}
        for tensor in tree_leaves(found):
            if isinstance(tensor, Tensor) and (storage := tensor.untyped_storage()).data_ptr() not in known:
                weak = torch.multiprocessing.reductions.StorageWeakRef(storage)  # type: ignore[no-untyped-call]
                self.live[storage.data_ptr()] = weak, storage.nbytes()
        self.peak = max(self.peak, sum(size for _, size in self.live.values()))
        return found


def size_of(network: str, proto_dim: int = 20, classes: int = 10) -> StepSize:
    shape = ModelShape((3, SIZE, SIZE), proto_dim, classes, 0.0)
    return step_size(build_model(network, shape, 0), shape.pair())


def needs_of(*networks: str, clients: int = CLIENTS, batch: int = BATCH, resident: int = 0, scratch: int = 0) -> Needs:
    sizes = [size_of(network, 500, 100) if len(networks) > 1 else size_of(network) for network in networks]
    return Needs(resident, batch, [Kind(clients, clients, size) for size in sizes], scratch)


def of_the_paper() -> Needs:
    """20 clients on CIFAR-100 on an H200: 60 000 images, and three copies of each network."""
    weights = 5 * sum(size_of(network, 500, 100).weights for network in PAPER)
    resident = 60_000 * (3 * 32 * 32 + 8) + 3 * weights
    return needs_of(*PAPER, clients=5, batch=32, resident=resident, scratch=SCRATCH_FROM_HOPPER)


class Keeping:
    """A branch without a stream. It keeps what it reads until it is joined, as on a GPU."""

    def __init__(self) -> None:
        self.kept: list[Tensor] = []

    @contextmanager
    def fork(self, *read: Tensor) -> Iterator[None]:
        self.kept += read
        yield

    def join(self) -> None:
        self.kept.clear()


@pytest.fixture
def branching_stacks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let all convolutions of a stack put the gradients of their filters on a branch, as on a GPU."""
    real_init, real_plain = Stack.__init__, plain_convolution

    def started(self: Stack, first: Task, clients: int, **options: bool) -> None:
        real_init(self, first, clients, **options)
        self.branch = Keeping()  # type: ignore[assignment]

    def keep(branch: Branch, values: Tensor, gradient: Tensor) -> None:
        with branch.fork(gradient, values):
            pass

    def noted(values: Tensor, weight: Tensor, bias: Tensor | None, shape: Geometry) -> Tensor:
        outcome, branch = real_plain(values, weight, bias, shape), current_branch()
        if branch is not None:
            outcome.register_hook(partial(keep, branch, values))  # type: ignore[no-untyped-call]
        return outcome

    monkeypatch.setattr(Stack, "__init__", started)
    monkeypatch.setattr(convolution, "plain_convolution", noted)


@pytest.mark.parametrize("network", PAPER)
@pytest.mark.parametrize("way", ["stacked", "graphed", "eager"])
@pytest.mark.usefixtures("branching_stacks")
def test_a_step_takes_half_of_the_estimate_or_more_and_not_much_more_than_all(network: str, way: Known) -> None:
    side = side_of("local", network)
    clients = clients_of(side, network, (BATCH,) * CLIENTS)
    for client in clients:
        client.model.float()
    plan = batch_plan(BATCH, BATCH, 1, last="join", shuffle=None)
    tasks = [side.task(client, plan, seed=0) for client in clients]
    with Counted() as counted:
        make_trainer(way, torch.device("cpu")).fit(tasks)
    needs = needs_of(network)
    estimated = needs.stacked(CLIENTS, 0) if way == "stacked" else needs.one_by_one(way, 0)
    assert 0.95 < estimated / counted.peak < 2.0


@pytest.mark.parametrize("network", PAPER)
@pytest.mark.parametrize("way", ["stacked", "eager"])
def test_features_take_half_of_the_estimate_or_more_and_not_much_more_than_all(network: str, way: Known) -> None:
    clients = clients_of(side_of("local", network), network, (60,) * CLIENTS)
    models = [client.model.float() for client in clients]
    for model in models:
        model.any_layout = False  # a GPU does not lay out weights anew
    with Counted() as counted:
        make_trainer(way, torch.device("cpu"), feature_batch=60).features(models, [client.train for client in clients])
    (kind,) = needs_of(network).kinds
    size, at_once = kind.size, CLIENTS if way == "stacked" else 1
    estimated = at_once * (size.weights * (way == "stacked") + 60 * TEMPORARY * size.widest)
    assert 0.85 < estimated / counted.peak < 2.0


@pytest.mark.parametrize(
    ("way", "record"), [("eager", "eager_cifar100"), ("graphed", "graphed_cifar100"), ("stacked", "speed_cifar100")]
)
def test_runs_on_an_h200_took_between_two_fifths_of_the_estimate_and_all_of_it(way: Known, record: str) -> None:
    summary = json.loads((Path(__file__).parents[2] / "results" / record / "summary.json").read_text())
    taken = max(result["peak_memory_bytes"] for result in summary["results"])
    assert 0.4 < taken / next(of_the_paper().ways(way)).bytes < 1.0


@pytest.mark.parametrize("trainer", ["eager", "graphed", "stacked"])
def test_a_card_with_room_runs_as_before(trainer: Known) -> None:
    found = fitted(Choice(trainer, "as before"), of_the_paper(), 125 * GIB)
    assert found[:1] + found[2:] == (trainer, None, 512)
    assert found.reason.startswith("as before; an estimated ")
    assert found.reason.endswith(" of 125.0 GiB")


@pytest.mark.parametrize(
    ("room", "trainer", "width", "batch"),
    [
        (14.0, "stacked", None, 512), (6.4, "stacked", None, 512), (4.0, "stacked", None, 128),
        (2.7, "stacked", 3, 128), (1.8, "stacked", 1, 128), (1.25, "graphed", None, 32),
        (0.9, "eager", None, 128), (0.2, "eager", None, 32),
    ],
)  # fmt: skip
def test_a_smaller_card_computes_less_at_once(room: float, trainer: Known, width: int | None, batch: int) -> None:
    found = fitted(Choice("stacked", "100000 steps"), of_the_paper(), room * GIB)
    assert (found.trainer, found.width, found.feature_batch) == (trainer, width, batch)
    assert f"of {room:.1f} GiB" in found.reason
    assert ("do not fit" in found.reason) == (room < 5)
    assert ("lower train.client_memory or train.batch_size" in found.reason) == (room < 0.5)


def test_the_reason_names_what_is_limited() -> None:
    found = fitted(Choice("stacked", "100000 steps"), of_the_paper(), 3 * GIB)
    assert re.fullmatch(
        r"100000 steps; an estimated \d\.\d of 3\.0 GiB do not fit, so stacked with at most 3 clients of a network and "
        r"128 samples for features at a time: \d\.\d GiB",
        found.reason,
    )


def test_ways_never_take_more_than_the_way_before_with_as_many_samples_for_features() -> None:
    ways = [way for way in of_the_paper().ways("stacked") if way.feature_batch == 512]
    assert [(way.trainer, way.width) for way in ways] == [
        ("stacked", None), ("stacked", 3), ("stacked", 2), ("stacked", 1), ("graphed", None), ("eager", None),
    ]  # fmt: skip
    assert [way.bytes for way in ways] == sorted((way.bytes for way in ways), reverse=True)


def test_scratch_memory_counts_for_every_stream_that_multiplies_matrices() -> None:
    one, none = needs_of(*PAPER, scratch=1), needs_of(*PAPER)
    pairs = list(zip(one.ways("stacked"), none.ways("stacked"), strict=True))
    added = {more.trainer: more.bytes - less.bytes for more, less in pairs}
    assert added == {"stacked": 4 * 4 + 2, "graphed": 4 * 2 + 2, "eager": 2}


def test_a_stack_has_memory_for_a_step_of_the_largest_network_besides_what_is_captured() -> None:
    needs = needs_of(*PAPER, batch=32)
    way, more = next(needs.ways("stacked")), needs_of("efficientnet_b0", "efficientnet_b0", batch=32).kinds[0]
    assert way.bytes - needs.stacked(CLIENTS, 512) == CLIENTS * max(
        32 * (more.size.saved + TEMPORARY * more.size.widest), 512 * TEMPORARY * more.size.widest
    )


def test_newer_gpus_have_more_scratch_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    for capability, expected in (((8, 6), SCRATCH), ((9, 0), SCRATCH_FROM_HOPPER), ((12, 0), SCRATCH_FROM_HOPPER)):
        assert scratch_memory(on_a_gpu(monkeypatch, capability, triton=True)) == expected
    assert scratch_memory(torch.device("cpu")) == 0


def on_a_gpu(monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], *, triton: bool) -> torch.device:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(capture, "why_no_triton", lambda: None if triton else "Triton is not installed")
    return torch.device("cuda")


@pytest.mark.parametrize(
    ("capability", "triton", "trainer", "because"),
    [
        ((9, 0), True, "stacked", "400000 steps pay for building stacks"),
        ((8, 6), True, "stacked", "400000 steps pay for building stacks"),
        ((7, 5), True, "graphed", "Triton needs compute capability 8.0, and this GPU has 7.5"),
        ((8, 6), False, "graphed", "Triton is not installed"),
    ],
)
@pytest.mark.parametrize("asked", ["auto", "stacked"])
def test_without_our_kernels_steps_are_captured_one_client_at_a_time(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], triton: bool, trainer: str, because: str, asked: Known
) -> None:
    device = on_a_gpu(monkeypatch, capability, triton=triton)
    found = choose(asked, "cuda", 400_000, why_no_kernels(device))
    assert found.trainer == trainer
    assert found.reason.endswith(because) or asked == trainer == "stacked"
    assert choose("eager", "cuda", 400_000, why_no_kernels(device)).trainer == "eager"


def test_a_cpu_has_neither_room_on_a_gpu_nor_a_reason_against_kernels() -> None:
    assert why_no_kernels(torch.device("cpu")) is None
    assert gpu_room(torch.device("cpu"), shared=False) is None


def test_room_is_what_is_free_and_what_torch_holds_unused(monkeypatch: pytest.MonkeyPatch) -> None:
    device = on_a_gpu(monkeypatch, (8, 6), triton=True)
    fraction = 1.0
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (5 * GIB, 8 * GIB))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 2 * GIB)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: GIB)
    monkeypatch.setattr(torch.cuda, "get_per_process_memory_fraction", lambda device: fraction)
    monkeypatch.setattr(memory, "total_memory", lambda device: 8 * GIB)
    assert gpu_room(device, shared=False) == pytest.approx(USABLE * (6 * GIB - CONTEXT))
    assert gpu_room(device, shared=True) == pytest.approx(USABLE * (8 * GIB - CONTEXT))
    fraction = 0.5
    assert gpu_room(device, shared=False) == pytest.approx(USABLE * (3 * GIB - CONTEXT))
    fraction = 0.1
    assert gpu_room(device, shared=False) == 0.0


def test_a_card_without_room_for_a_context_has_none_for_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_device: torch.device) -> tuple[int, int]:
        raise RuntimeError("CUDA error: out of memory")

    device = on_a_gpu(monkeypatch, (8, 6), triton=True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", full)
    assert gpu_room(device, shared=False) == 0.0
