"""`python -m benchmarks device`: what compressing, scaling, rounding and encoding cost a weak device besides training.

Measure one client of TinyProto-FT on one core, in processor time. A round of training is one epoch: a few steps are
timed and multiplied. The pass for local prototypes is left out, so the reported shares are upper bounds. The exchange
consists of scaling by count, compressing (CPS), rounding and encoding an upload, and opening and reconstructing a
download.
"""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
import typer
from rich.table import Table
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.codec import CodecSettings, Progress, best_seconds
from benchmarks.machine import machine_facts
from benchmarks.scale import PAPER
from benchmarks.synthetic import SHAPE
from tinyproto.algorithms import tinyproto_ft
from tinyproto.algorithms.base import Algorithm, FederationSpec, Round, expected_frames
from tinyproto.builder import Setup
from tinyproto.cli.progress import LoadingBar
from tinyproto.cli.terminal import Output, facts_table, plain_table
from tinyproto.core.prototypes import Message, Prototypes
from tinyproto.core.streams import Streams, one_thread
from tinyproto.core.task import FitResult, batch_plan, batch_sizes
from tinyproto.data.dataset import Dataset, FederatedData
from tinyproto.data.partition import Share
from tinyproto.engine.client import LocalTraining
from tinyproto.engine.training import make_trainer
from tinyproto.errors import ConfigError
from tinyproto.imports import unknown
from tinyproto.models import NETWORKS
from tinyproto.models.count import count_parameters
from tinyproto.report.words import size
from tinyproto.simulation.loop import Loopback, make_loopback
from tinyproto.tracking.environment import environment
from tinyproto.wire.codec import encode
from tinyproto.wire.frame import Header, Kind
from tinyproto.wire.validate import open_frame
from tinyproto.wire.values import VALUE_TYPES, Coding, ValueType, WireSettings

LIMIT = 0.01
"""The largest share of a round that the exchange may take."""


@dataclass(frozen=True)
class DeviceSettings:
    """One client of the paper's CIFAR-100 federation: 45 000 training samples among 20 clients."""

    networks: tuple[str, ...] = PAPER
    num_classes: int = 100
    held: int = 46
    proto_dim: int = 500
    cps_dim: int = 50
    samples: int = 2250
    batch_size: int = 32
    steps: int = 3  # that are timed, after one that is not
    passes: int = 7

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if name != "networks" and value < 1:
                raise ConfigError(f"{name} must be at least 1, not {value}")
        for name in self.networks:
            if name not in NETWORKS:
                raise ConfigError(f"networks: {unknown('network', name, NETWORKS)}")
        if self.held > self.num_classes:
            raise ConfigError(f"a client cannot hold {self.held} of {self.num_classes} classes")
        if self.cps_dim > self.proto_dim:
            raise ConfigError(f"cps_dim must be at most proto_dim, {self.proto_dim}, not {self.cps_dim}")

    @property
    def steps_per_round(self) -> int:
        """Return the steps of one epoch."""
        return len(batch_sizes(self.samples, self.batch_size, "join"))


def measure_device(settings: DeviceSettings, progress: Progress = lambda *_: None) -> dict[str, Any]:
    """Measure training of each network and the exchange in each type; return the largest share of a round."""
    with one_thread():
        training, total = [], len(settings.networks) + len(VALUE_TYPES)
        for done, network in enumerate(settings.networks):
            progress("timing training and exchange", done, total)
            training.append(_training(settings, network))
        quickest = min(training, key=lambda found: float(found["seconds_per_round"]))
        host, exchanges = _federation(settings, settings.networks[0]), []
        for done, values in enumerate(VALUE_TYPES.values(), start=len(settings.networks)):
            progress("timing training and exchange", done, total)
            exchanges.append(_exchange(settings, host, values, float(quickest["seconds_per_round"])))
    largest = max(found["share_of_quickest_round"] for found in exchanges)
    return {
        "schema_version": 1,
        "settings": asdict(settings),
        "timed": "one core, processor time; a round is one epoch, from a few steps; the exchange is its best pass",
        "steps_per_round": settings.steps_per_round,
        "training": training,
        "quickest_network": quickest["network"],
        "exchange": exchanges,
        "largest_share_of_a_round": largest,
        "within_limit": largest < LIMIT,
        "environment": environment("cpu", workers=1),
    }


def _federation(settings: DeviceSettings, network: str) -> Loopback:
    """Build a federation of one client of that network, with enough samples for the timed steps."""
    samples = max(settings.batch_size * (settings.steps + 1), settings.held)
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (samples, *SHAPE), generator=generator, dtype=torch.uint8)
    labels = torch.arange(samples) % settings.held
    images = Dataset("made up", pixels, labels, settings.num_classes, scale=2 / 255, shift=-1.0)
    data = FederatedData(images, [Share(train=np.arange(samples), test=np.arange(0))])
    training = LocalTraining(rounds=1, batch_size=settings.batch_size)
    spec = FederationSpec(settings.num_classes, settings.proto_dim, 0.01, SHAPE, networks=(network,))
    setup = Setup(spec, _algorithm(settings), training, Streams(0))
    cpu = torch.device("cpu")
    return make_loopback(setup, data, make_trainer("eager", cpu), cpu)


def _algorithm(settings: DeviceSettings) -> Algorithm:
    federation = FederationSpec(settings.num_classes, settings.proto_dim, 0.01, SHAPE)
    return tinyproto_ft.build(tinyproto_ft.TinyProtoFTHyper(cps_dim=settings.cps_dim), federation)


def _training(settings: DeviceSettings, network: str) -> dict[str, Any]:
    host = _federation(settings, network)
    client, runtime = host.store[0], host.clients
    client.received = Prototypes.absent(settings.num_classes, settings.proto_dim)

    def seconds(steps: int) -> float:
        plan = batch_plan(settings.batch_size * steps, settings.batch_size, 1, last="join", shuffle=None)
        task = runtime.side.task(client, plan, 0)
        start = time.process_time()
        runtime.trainer.fit([task])
        return time.process_time() - start

    seconds(1)
    step = min(seconds(settings.steps) for _ in range(2)) / settings.steps
    return {
        "network": network,
        "seconds_per_step": step,
        "seconds_per_round": step * settings.steps_per_round,
        "memory_bytes": 8 * count_parameters(client.model),  # parameters and gradients; activations come on top
    }


def _exchange(settings: DeviceSettings, host: Loopback, values: ValueType, round_seconds: float) -> dict[str, Any]:
    """Measure one upload and one download of the client in this type, rounded to nearest."""
    client, side = host.store[0], host.clients.side
    wire = WireSettings(values.name, values.name)
    expected = expected_frames(_algorithm(settings), settings.num_classes, settings.proto_dim, wire)
    generator, coding = torch.Generator().manual_seed(0), Coding(values)
    present = client.class_counts > 0
    means = torch.randn(settings.num_classes, settings.proto_dim, generator=generator).abs()
    client.local = Prototypes(means * present.unsqueeze(1), present)
    offered = Prototypes(
        torch.randn(settings.num_classes, settings.cps_dim, generator=generator),
        torch.ones(settings.num_classes, dtype=torch.bool),
    )
    download = encode(Header(Kind.TRAIN, 1, 0, expected.digest), Message(offered), coding)
    header, trained = Header(Kind.UPDATE, 1, 0, expected.digest), FitResult(torch.zeros(1, 0), (), 0, None, 0)

    def scale_and_compress() -> Message:
        return side.update(client, trained, Round(1, 2))

    def open_and_reconstruct() -> None:
        side.receive(client, open_frame(download, expected, 0, None, (Kind.TRAIN,)).message)

    message = scale_and_compress()
    timing = CodecSettings(passes=settings.passes, megabytes=2.0)
    row_bytes = 4 * settings.held * settings.cps_dim
    stages = {
        "scale_and_compress": best_seconds(timing, row_bytes, scale_and_compress),
        "round_and_encode": best_seconds(timing, row_bytes, lambda: encode(header, message, coding)),
        "open_and_reconstruct": best_seconds(timing, row_bytes, open_and_reconstruct),
    }
    upload = encode(header, message, coding)
    seconds = sum(stages.values())
    return {
        "type": values.name,
        "wire_bytes": {"up": len(upload), "down": len(download)},
        "microseconds": {name: 1e6 * found for name, found in stages.items()},
        "milliseconds": 1e3 * seconds,
        "share_of_quickest_round": seconds / round_seconds,
        "memory_bytes": _allocated([scale_and_compress, lambda: encode(header, message, coding), open_and_reconstruct]),
    }


def _allocated(stages: Sequence[Callable[[], object]]) -> int:
    """Return the bytes of the stage that allocates most: numpy's and Python's peak, and all that torch allocates."""
    most = 0
    for stage in stages:
        with _Allocations():  # the first use loads modules
            stage()
        tracemalloc.start()
        with _Allocations() as torchs:
            stage()
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        most = max(most, peak + sum(torchs.sizes.values()))
    return most


class _Allocations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records the storage of the tensors that operations return, by its address."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.sizes: dict[int, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {tensor.untyped_storage().data_ptr() for tensor in args if isinstance(tensor, Tensor)}
        returned = func(*args, **(kwargs or {}))
        for tensor in returned if isinstance(returned, tuple | list) else (returned,):
            if isinstance(tensor, Tensor) and (place := tensor.untyped_storage().data_ptr()) not in given:
                self.sizes[place] = max(self.sizes.get(place, 0), tensor.untyped_storage().nbytes())
        return returned


def show_device(settings: DeviceSettings, output: Output) -> None:
    """Measure and print; exit with status 1 if the exchange exceeds its limit."""
    with LoadingBar(output.console) as progress:
        found = measure_device(settings, progress)
    if output.wants_json:
        output.result(found)
    else:
        output.console.print(_training_table(found))
        output.console.print(_exchange_table(found))
        facts = [
            ("largest share", f"{_share(found['largest_share_of_a_round'])} of a round of {found['quickest_network']}"),
            ("timed", found["timed"]),
            *machine_facts(found["environment"]),
        ]
        output.console.print(facts_table(facts))
    if not found["within_limit"]:
        raise typer.Exit(1)


def _share(fraction: float) -> str:
    """Format a small share of a round."""
    return f"{100 * fraction:.3f} %"


def _training_table(found: Mapping[str, Any]) -> Table:
    table = plain_table()
    for name in ("network", "ms/step", "s/round", "parameters and gradients"):
        table.add_column(name, justify="left" if name == "network" else "right")
    for one in found["training"]:
        table.add_row(
            one["network"],
            f"{1e3 * one['seconds_per_step']:.1f}",
            f"{one['seconds_per_round']:.2f}",
            size(one["memory_bytes"]),
        )
    table.caption = f"a round is {found['steps_per_round']} steps"
    return table


def _exchange_table(found: Mapping[str, Any]) -> Table:
    table = plain_table()
    stages = ("scale_and_compress", "round_and_encode", "open_and_reconstruct")
    for name in ("type", *(f"{stage.replace('_', ' ')} µs" for stage in stages), "share of a round", "memory", "bytes"):
        table.add_column(name, justify="left" if name == "type" else "right")
    for one in found["exchange"]:
        table.add_row(
            one["type"],
            *(f"{one['microseconds'][stage]:.0f}" for stage in stages),
            _share(one["share_of_quickest_round"]),
            size(one["memory_bytes"]),
            f"{one['wire_bytes']['up']} + {one['wire_bytes']['down']}",
        )
    table.caption = f"one upload and one download; a round of {found['quickest_network']}, the fastest network"
    return table
