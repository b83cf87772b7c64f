"""`tinyproto bench device`: what compressing, scaling, rounding and encoding cost a weak device, beside its training.

One client of TinyProto-FT, on one core and in processor time. A round of training is one epoch: some steps are timed
and multiplied; the pass for local prototypes, which every prototype method has, is left out, so the shares are rather
too large. What comes on top of training: scale by count and compress (CPS), round and encode of the upload; open and
reconstruct of the download.
"""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.codec import CodecSettings, Progress, best_seconds
from benchmarks.scale import PAPER
from benchmarks.synthetic import SHAPE
from tinyproto.algorithms import tinyproto_ft
from tinyproto.algorithms.base import Algorithm, FederationSpec, Round, expected_frames
from tinyproto.builder import Setup
from tinyproto.core.prototypes import Message, Prototypes
from tinyproto.core.streams import one_thread
from tinyproto.core.task import FitResult, batch_plan, batch_sizes
from tinyproto.data.images import FederatedData, Images
from tinyproto.data.partition import Share
from tinyproto.engine.client import LocalTraining
from tinyproto.engine.training import make_trainer
from tinyproto.errors import ConfigError
from tinyproto.imports import unknown
from tinyproto.models import NETWORKS
from tinyproto.models.count import count_parameters
from tinyproto.simulation.loop import Loopback, make_loopback
from tinyproto.tracking.environment import environment
from tinyproto.wire.codec import encode
from tinyproto.wire.frame import Header, Kind
from tinyproto.wire.validate import open_frame
from tinyproto.wire.values import VALUE_TYPES, Coding, ValueType, WireSettings

LIMIT = 0.01
"""What the exchange may take of a round."""


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
        """Of one epoch."""
        return len(batch_sizes(self.samples, self.batch_size, "join"))


def measure_device(settings: DeviceSettings, progress: Progress = lambda *_: None) -> dict[str, Any]:
    """Training of each network, the exchange in each type, and the largest share of a round that it takes."""
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
    """One client of that network, with as many samples as the timed steps need."""
    samples = max(settings.batch_size * (settings.steps + 1), settings.held)
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (samples, *SHAPE), generator=generator, dtype=torch.uint8)
    labels = torch.arange(samples) % settings.held
    images = Images("made up", pixels, labels, settings.num_classes, scale=2 / 255, shift=-1.0)
    data = FederatedData(images, [Share(train=np.arange(samples), test=np.arange(0))])
    training = LocalTraining(rounds=1, batch_size=settings.batch_size)
    spec = FederationSpec(settings.num_classes, settings.proto_dim, 0.01, SHAPE, networks=(network,))
    setup = Setup(spec, _algorithm(settings), training, seed=0)
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
    """What one upload and one download cost the client in this type, rounded to nearest."""
    client, side = host.store[0], host.clients.side
    wire = WireSettings(values.name, values.name)
    expected = expected_frames(_algorithm(settings), settings.num_classes, settings.proto_dim, wire)
    generator, coding = torch.Generator().manual_seed(0), Coding(values)
    present = client.class_counts > 0
    means = torch.randn(settings.num_classes, settings.proto_dim, generator=generator).abs()
    client.local = Prototypes(means * present.unsqueeze(1), present)
    whole = Prototypes(
        torch.randn(settings.num_classes, settings.cps_dim, generator=generator),
        torch.ones(settings.num_classes, dtype=torch.bool),
    )
    download = encode(Header(Kind.TRAIN, 1, 0, expected.digest), Message(whole), coding)
    header, trained = Header(Kind.UPDATE, 1, 0, expected.digest), FitResult(torch.zeros(1, 0), (), 0, None)

    def scale_and_compress() -> Message:
        return side.update(client, trained, Round(1, 2))

    def open_and_reconstruct() -> None:
        side.receive(client, open_frame(download, expected, 0, None, (Kind.TRAIN,)).message)

    message = scale_and_compress()
    timing = CodecSettings(passes=settings.passes, megabytes=2.0)
    size = 4 * settings.held * settings.cps_dim
    stages = {
        "scale_and_compress": best_seconds(timing, size, scale_and_compress),
        "round_and_encode": best_seconds(timing, size, lambda: encode(header, message, coding)),
        "open_and_reconstruct": best_seconds(timing, size, open_and_reconstruct),
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
    """Bytes that the neediest stage takes at the most: numpy's and Python's peak, and all that torch allocates."""
    most = 0
    for stage in stages:
        with _Allocations():  # whose first use loads modules
            stage()
        tracemalloc.start()
        with _Allocations() as torchs:
            stage()
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        most = max(most, peak + sum(torchs.sizes.values()))
    return most


class _Allocations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Storage of the tensors that operations return, by its address."""

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
