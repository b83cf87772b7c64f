"""Our Triton kernels, run by Triton's interpreter on a CPU, compared with PyTorch in float64.

Triton 3.6's interpreter needs NumPy below 2.4. It knows nothing of what the compiler makes of a kernel.
"""

from __future__ import annotations

import inspect
import os
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import partial
from importlib.util import find_spec
from types import FunctionType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from support_fit import all_but_the_last, by_autograd, make_network, make_uploads
from tinyproto.core.task import Batch, State
from tinyproto.stacked.convolution import _kernel_convolution, geometry, plain_convolution
from tinyproto.stacked.layers import (
    Activation,
    Depth,
    RunningStatistics,
    Squeeze,
    apply,
    check_excitation,
    check_normalisation,
    plain_excite,
    plain_normalise,
)

if find_spec("triton") is None or os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("needs Triton and TRITON_INTERPRET=1", allow_module_level=True)

from triton.runtime import interpreter

from tinyproto.stacked.kernels import contrast
from tinyproto.stacked.kernels.excitation import TritonExcitation
from tinyproto.stacked.kernels.fused import TritonNormalisation, normalise_by_running


@pytest.fixture(autouse=True)
def the_same_draws() -> None:
    torch.manual_seed(0)


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, requires_grad=True)


def assert_same(mine: Callable[..., Tensor], plain: Callable[..., Tensor], *inputs: Tensor) -> None:
    exact = [each.detach().double().requires_grad_() for each in inputs]
    outcome, expected = mine(*inputs), plain(*exact)
    upstream = torch.randn_like(outcome)
    found = (outcome, *torch.autograd.grad(outcome, inputs, upstream))
    wanted = (expected, *torch.autograd.grad(expected, exact, upstream.double()))
    for one, two in zip(found, wanted, strict=True):
        assert float((one - two).detach().abs().max()) <= 1e-5 * (10.0 + float(two.detach().abs().max()))


@pytest.mark.parametrize(
    ("kernel", "stride", "size"),
    [(3, 1, 1), (3, 2, 5), (5, 1, 4), (5, 2, 16), (5, 1, 1), (5, 1, 2), (3, 3, 7), (7, 2, 9)],
)
@pytest.mark.parametrize("groups", [7, 1])
def test_convolutions(groups: int, kernel: int, stride: int, size: int) -> None:
    values, weight = drawn(3, 7, 5, size, size), drawn(3, 7 if groups > 1 else 40, 7 // groups, kernel, kernel)
    shape = geometry(nn.Conv2d(7, weight.shape[1], kernel, stride, kernel // 2, groups=groups))
    assert_same(
        partial(_kernel_convolution, shape=shape), partial(plain_convolution, bias=None, shape=shape), values, weight
    )


SHAPES = [(3, 5, 8), (3, 5, 4, 1, 1), (2, 33, 32, 4, 4), (1, 2, 20, 32, 32)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("activation", [None, "relu", "relu6", "silu"])
@pytest.mark.parametrize("addition", ["none", "plain", "with stochastic depth"])
def test_normalisation(shape: tuple[int, ...], activation: Activation | None, addition: str) -> None:
    if addition != "none" and activation is not None and (activation == "silu" or addition != "plain"):
        pytest.skip("no such layer")
    inputs = [drawn(*shape), drawn(*shape[:2]), drawn(*shape[:2]), *([drawn(*shape)] if addition != "none" else [])]
    if addition == "with stochastic depth" and len(shape) == 3:
        pytest.skip("stochastic depth drops maps")
    depth = Depth.drawn(inputs[0], 0.4) if addition == "with stochastic depth" else None
    mine, other = (
        RunningStatistics(zeros, torch.ones_like(zeros), 0.1, 1e-5)
        for zeros in (torch.zeros(shape[:2], dtype=dtype) for dtype in (torch.float32, torch.float64))
    )

    def kernel(values: Tensor, weight: Tensor, bias: Tensor, added: Tensor | None = None) -> Tensor:
        return apply(TritonNormalisation, values, weight, bias, added, mine, activation, depth)

    def plain(values: Tensor, weight: Tensor, bias: Tensor, added: Tensor | None = None) -> Tensor:
        return plain_normalise(
            values, other, weight, bias, by_batch=True, activation=activation, added=added, depth=depth
        )

    values, weight, bias, added = (*inputs, None)[:4]
    assert values is not None
    assert weight is not None
    assert bias is not None
    check_normalisation(values, mine, weight, bias, by_batch=True, activation=activation, added=added, depth=depth)
    assert_same(kernel, plain, *inputs)
    assert torch.allclose(mine.mean, other.mean.float(), atol=1e-6)
    assert torch.allclose(mine.variance, other.variance.float(), atol=1e-5)
    if depth is None:
        check_normalisation(values, mine, weight, bias, by_batch=False, activation=activation, added=added)
        with torch.no_grad():
            found = normalise_by_running(values, weight, bias, added, mine, activation)
            expected = plain_normalise(values, mine, weight, bias, by_batch=False, activation=activation, added=added)
        assert torch.allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize(
    ("channels", "squeezed", "samples", "size"),
    [(7, 4, 1, 1), (7, 4, 5, 1), (7, 4, 1, 4), (7, 4, 5, 4), (7, 4, 5, 40), (150, 20, 33, 2)],
)
@pytest.mark.parametrize("activation", ["relu", "silu"])
def test_excitation(channels: int, squeezed: int, samples: int, size: int, activation: Activation) -> None:
    inputs = (
        drawn(3, channels, samples, size, size), drawn(3, squeezed, channels), drawn(3, squeezed),
        drawn(3, channels, squeezed), drawn(3, channels),
    )  # fmt: skip

    def kernel(*tensors: Tensor) -> Tensor:
        return apply(TritonExcitation, *tensors, activation)

    def plain(values: Tensor, first: Tensor, one: Tensor, second: Tensor, two: Tensor) -> Tensor:
        return plain_excite(values, Squeeze(first, one, second, two, activation))

    assert_same(kernel, plain, *inputs)
    check_excitation(inputs[0], Squeeze(*inputs[1:], activation))


def moved_by_an_epoch(samples: Batch, network: nn.Module, penalty: Tensor, batch: int) -> tuple[float, State]:
    """Return the mean loss of an epoch at rate 1, and how far each weight moved."""
    before = {name: value.detach().clone() for name, value in network.named_parameters()}
    weights, logged = {name: value.clone() for name, value in before.items()}, torch.zeros(1).double()
    contrast.epochs(weights, samples, batch, penalty, logged, 1.0)
    return float(logged) / len(samples.labels), {name: before[name] - weights[name] for name in before}


def in_float64(samples: Batch, network: nn.Module, penalty: Tensor, batch: int) -> tuple[float, State]:
    """The same by autograd; the network's weights move."""
    network, total = network.double(), 0.0
    before = {name: value.detach().clone() for name, value in network.named_parameters()}
    for inputs, labels in zip(*(torch.split(each, batch) for each in samples), strict=True):
        loss, gradients = by_autograd(network, Batch(inputs.double(), labels), penalty.double())
        total += float(loss) * len(labels)
        with torch.no_grad():
            for name, value in network.named_parameters():
                value.sub_(gradients[name])
    return total / len(samples.labels), {
        name: before[name] - value.detach() for name, value in network.named_parameters()
    }


def assert_moved_alike(samples: Batch, network: nn.Module, penalty: Tensor, batch: int) -> None:
    loss, moved = moved_by_an_epoch(samples, network, penalty, batch)
    size = {name: float(value.abs().max()) for name, value in network.state_dict().items()}
    wanted, expected = in_float64(samples, network, penalty, batch)
    assert loss == pytest.approx(wanted, rel=1e-5)
    for name, way in expected.items():
        assert float((moved[name] - way).abs().max()) <= 5e-5 * float(way.abs().max()) + 2e-7 * size[name]


@pytest.mark.parametrize("count", [1, 20, 32])
@pytest.mark.parametrize(("classes", "dim"), [(10, 100), (3, 33), (40, 50)])
def test_a_step_of_the_server_s_fit(classes: int, dim: int, count: int) -> None:
    samples = Batch(*make_uploads(classes, dim, count))
    assert_moved_alike(samples, make_network(classes, dim), all_but_the_last(classes), count)


@pytest.mark.filterwarnings("ignore:.*encountered in divide")
def test_an_upload_that_equals_a_prototype_gives_no_nan() -> None:
    network, samples = make_network(10, 40), Batch(*make_uploads(10, 40, 8))
    with torch.no_grad():  # prototypes that are equal to the last bit: all are zero
        network.output.weight.zero_()
        network.output.bias.zero_()
    samples.inputs[3] = 0.0
    loss, moved = moved_by_an_epoch(samples, network, all_but_the_last(10), 8)
    assert loss == loss
    assert all(bool(each.isfinite().all()) for each in moved.values())


class Programs:
    """Runs programs of the fit's kernel at once, a part of a step of each in random order, and notes what they touch.

    `conflicts` are addresses that a program wrote in a part and another touched in the same part. What a program does
    between its arrival and its wait belongs to the part before and to the part after.
    """

    def __init__(self, count: int, without: int | None = None) -> None:
        self.count, self.without = count, without  # the barrier of a step that is left out
        self.turn = threading.Condition()
        self.order = np.random.default_rng(0)
        self.waiting: list[int] = []
        self.current = 0
        self.waits = [0] * count
        self.touched: dict[str, dict[int, set[int]]] = {"load": defaultdict(set), "store": defaultdict(set)}
        self.touched_later = deepcopy(self.touched)
        self.arrived: set[int] = set()
        self.conflicts: set[int] = set()

    def run(self, programs: Sequence[Callable[[], None]]) -> None:
        errors: list[BaseException] = []

        def work(number: int) -> None:
            with self.turn:
                self.turn.wait_for(lambda: self.current == number)
            try:
                programs[number]()
            except BaseException as error:
                errors.append(error)
            self.arrive(number, for_good=True)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(self.count)]
        self.waiting = list(self.order.permutation(self.count))
        self.current = self.waiting.pop()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        assert not errors, errors[0]

    def announce(self, arrived: object) -> None:
        self.arrived.add(self.current)

    def wait(self, arrived: object, target: object) -> None:
        number = self.current
        self.arrived.discard(number)
        self.waits[number] += 1
        if self.without is None or (self.waits[number] - 1) % 5 != self.without:
            self.arrive(number)

    def arrive(self, number: int, *, for_good: bool = False) -> None:
        with self.turn:
            if not self.waiting:  # the last of this part
                self.compare()
                self.waiting = list(self.order.permutation(self.count))
            self.current = self.waiting.pop()
            self.turn.notify_all()
            if not for_good:
                self.turn.wait_for(lambda: self.current == number)

    def note(self, kind: str, pointers: Any, mask: Any) -> None:
        addresses = set(np.broadcast_to(pointers, mask.shape)[mask].ravel().tolist())
        self.touched[kind][self.current] |= addresses
        if self.current in self.arrived:
            self.touched_later[kind][self.current] |= addresses

    def compare(self) -> None:
        for writer, written in self.touched["store"].items():
            for kind in self.touched.values():
                for other, addresses in kind.items():
                    self.conflicts |= written & addresses if other != writer else set()
        self.touched, self.touched_later = self.touched_later, self.touched
        for kind in self.touched_later.values():
            kind.clear()


@pytest.fixture
def by_programs(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Programs]:
    """Let the fit's kernel run as several programs that take turns."""

    def use(count: int, without: int | None = None) -> Programs:
        programs = Programs(count, without)
        builder, ready = interpreter.interpreter_builder, []
        load, store = builder.create_masked_load, builder.create_masked_store

        class Grid(interpreter.GridExecutor):  # type: ignore[misc]
            def __init__(self, fn: Callable[..., None], *arguments: Any) -> None:
                super().__init__(fn, *arguments)
                if self.grid == (count,):
                    self.fn = self.gather(fn)

            def gather(self, fn: Callable[..., None]) -> Callable[..., None]:
                def start(**arguments: Any) -> None:
                    index = builder.grid_idx

                    def run() -> None:
                        builder.grid_idx = index  # read once, at the start of a program
                        fn(**arguments)

                    ready.append(run)
                    if len(ready) == count:
                        programs.run(ready)
                        ready.clear()

                # The interpreter looks at the arguments and the globals of what it calls.
                called = FunctionType(start.__code__, fn.__globals__, "start", None, start.__closure__)
                called.__annotations__, called.__dict__["__signature__"] = fn.__annotations__, inspect.signature(fn)
                return called

        def noted_load(pointers: Any, mask: Any, *rest: Any, **options: Any) -> Any:
            programs.note("load", pointers.data, mask.data)
            return load(pointers, mask, *rest, **options)

        def noted_store(pointers: Any, value: Any, mask: Any, *rest: Any, **options: Any) -> Any:
            programs.note("store", pointers.data, mask.data)
            return store(pointers, value, mask, *rest, **options)

        monkeypatch.setattr(interpreter, "GridExecutor", Grid)
        monkeypatch.setattr(builder, "create_masked_load", noted_load)
        monkeypatch.setattr(builder, "create_masked_store", noted_store)
        monkeypatch.setattr(contrast, "_programs", lambda device, shared: count)
        monkeypatch.setattr(contrast, "_arrive", programs.announce)
        monkeypatch.setattr(contrast, "_wait", programs.wait)
        return programs

    return use


@pytest.mark.parametrize(("classes", "dim", "batch", "count"), [(7, 33, 8, 20), (40, 100, 16, 48), (3, 130, 1, 2)])
def test_programs_of_the_server_s_fit_touch_nothing_that_another_writes(
    by_programs: Callable[..., Programs], classes: int, dim: int, batch: int, count: int
) -> None:
    programs = by_programs(5)
    samples = Batch(*make_uploads(classes, dim, count))
    assert_moved_alike(samples, make_network(classes, dim), all_but_the_last(classes), batch)
    assert programs.waits == [5 * -(-count // batch)] * 5
    assert not programs.conflicts


@pytest.mark.parametrize("count", [20, 16])
def test_epochs_of_one_launch_of_the_server_s_fit_are_those_of_several(
    by_programs: Callable[..., Programs], count: int
) -> None:
    programs = by_programs(5)
    one, network, penalty = Batch(*make_uploads(7, 33, count)), make_network(7, 33), all_but_the_last(7)
    together, alone = ({n: v.detach().clone() for n, v in network.named_parameters()} for _ in range(2))
    logged, losses = torch.zeros(3).double(), torch.zeros(3).double()
    contrast.epochs(together, Batch(*(torch.cat([each] * 3) for each in one)), 8, penalty, logged, 0.1)
    assert not programs.conflicts
    for mine in torch.split(losses, 1):
        contrast.epochs(alone, one, 8, penalty, mine, 0.1)
    assert torch.equal(logged, losses)
    assert all(torch.equal(together[name], alone[name]) for name in alone)


@pytest.mark.parametrize("barrier", range(5))
def test_each_barrier_of_the_server_s_fit_is_needed(by_programs: Callable[..., Programs], barrier: int) -> None:
    programs = by_programs(5, without=barrier)
    moved_by_an_epoch(Batch(*make_uploads(7, 33, 20)), make_network(7, 33), all_but_the_last(7), 8)
    assert programs.conflicts


def test_programs_that_wait_in_vain_go_on_and_the_loss_is_not_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contrast, "_programs", lambda device, shared: 2)  # the interpreter runs them one after another
    monkeypatch.setattr(contrast, "PATIENCE", 3)
    samples = Batch(*make_uploads(3, 16, 4))
    loss, _ = moved_by_an_epoch(samples, make_network(3, 16), all_but_the_last(3), 4)
    assert loss != loss
