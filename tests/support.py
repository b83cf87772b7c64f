"""Small federations, networks and uploads that many tests share."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from tinyproto.algorithms.base import Algorithm, Client, ClientInfo, FederationSpec, Update
from tinyproto.algorithms.defence import Defence
from tinyproto.builder import Setup
from tinyproto.config.schema import EvaluateSection, TrainSection
from tinyproto.core.prototypes import Message, Prototypes
from tinyproto.core.streams import Streams, global_randomness
from tinyproto.core.task import FitResult, TensorData
from tinyproto.data.dataset import CountedSamples, Dataset, FederatedData
from tinyproto.engine.client import LocalTraining
from tinyproto.engine.participation import EvaluatedClients, Trace
from tinyproto.engine.server import NO_DEFENCE
from tinyproto.engine.training import Known, Precision, make_trainer
from tinyproto.memory import PeakMemory
from tinyproto.models import ModelEntry
from tinyproto.models.split import SplitModel
from tinyproto.simulation.client_store import UNBOUNDED
from tinyproto.simulation.loop import Simulation, make_loopback, make_stopwatch
from tinyproto.storage.client_files import ClientFiles, snapshot_clients
from tinyproto.wire.values import EXACT, WireSettings

NUM_CLASSES = 4
PROTO_DIM = 12


def make_images(samples: int, seed: int = 0) -> Dataset:
    """Noisy 6×6 images with a bright quarter that names the class."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(samples) % NUM_CLASSES
    pixels = torch.randint(0, 120, (samples, 1, 6, 6), generator=generator)
    for index, label in enumerate(labels.tolist()):
        row, column = divmod(label, 2)
        pixels[index, 0, 3 * row : 3 * row + 3, 3 * column : 3 * column + 3] += 120
    return Dataset("quarters", pixels.to(torch.uint8), labels, NUM_CLASSES, scale=2 / 255, shift=-1.0)


def make_patterns(samples: int, classes: int, shape: tuple[int, int, int], seed: int = 0) -> Dataset:
    """Noise over one smooth pattern for each class: of any shape, and learnable."""
    generator = torch.Generator().manual_seed(seed)
    channels, height, width = shape
    coarse = torch.rand(classes, channels, 4, 4, generator=generator)
    patterns = functional.interpolate(coarse, (height, width), mode="bilinear")
    labels = torch.arange(samples) % classes
    pixels = 160 * patterns[labels] + 90 * torch.rand(samples, *shape, generator=generator)
    return Dataset("patterns", pixels.to(torch.uint8), labels, classes, scale=2 / 255, shift=-1.0)


def tiny_net(input_shape: Sequence[int], proto_dim: int, num_classes: int) -> SplitModel:
    """A network with batch normalisation and dropout, so that both matter in tests."""
    pixels = int(np.prod(input_shape))
    hidden = (nn.Linear(pixels, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.1))
    extractor = nn.Sequential(nn.Flatten(), *hidden, nn.Linear(16, proto_dim), nn.ReLU())
    return SplitModel(extractor, nn.Linear(proto_dim, num_classes))


def wide_net(input_shape: Sequence[int], proto_dim: int, num_classes: int) -> SplitModel:
    """A larger network of another kind, with the same head."""
    pixels = int(np.prod(input_shape))
    extractor = nn.Sequential(nn.Flatten(), nn.Linear(pixels, 40), nn.ReLU(), nn.Linear(40, proto_dim), nn.ReLU())
    return SplitModel(extractor, nn.Linear(proto_dim, num_classes))


FEDERATION = FederationSpec(
    num_classes=NUM_CLASSES, proto_dim=PROTO_DIM, learning_rate=0.05, input_shape=(1, 6, 6), networks=(tiny_net,)
)
STREAMS = Streams(0)
NO_FIT = FitResult(torch.zeros(1, 0), (), 0, None, 0)


def make_client(counts: list[int], local: Prototypes | None = None, id_: int = 0) -> Client:
    generator = torch.Generator().manual_seed(id_)
    labels = torch.repeat_interleave(torch.arange(NUM_CLASSES), torch.tensor(counts))
    data = TensorData(torch.rand(len(labels), 1, 6, 6, generator=generator), labels)
    with global_randomness(id_):
        model = tiny_net((1, 6, 6), PROTO_DIM, NUM_CLASSES)
    absent = Prototypes.absent(NUM_CLASSES, PROTO_DIM)
    return Client(id_, "tiny", model, data, data, torch.tensor(counts), absent if local is None else local)


def head_weight(client: Client) -> Tensor:
    weight = client.model.head.weight
    assert isinstance(weight, Tensor)
    return weight.detach()


def random_prototypes(held: list[int], seed: int = 0, width: int = PROTO_DIM) -> Prototypes:
    present = torch.zeros(NUM_CLASSES, dtype=torch.bool)
    present[held] = True
    values = torch.rand(NUM_CLASSES, width, generator=torch.Generator().manual_seed(seed))
    return Prototypes(values * present.unsqueeze(1), present)


def update(rows: Prototypes | None, id_: int = 0, samples: int = 10, classes: int = 2) -> Update:
    return Update(ClientInfo(id_, samples, samples, classes), Message(rows=rows))


def tensors_update(tensors: Mapping[str, Tensor], id_: int = 0, samples: int = 10) -> Update:
    return Update(ClientInfo(id_, samples, samples, 2), Message(tensors=tensors))


def same_tensors(left: Mapping[str, Tensor], right: Mapping[str, Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


@dataclass(frozen=True)
class SimulationSettings:
    """Everything about a small simulation that is neither data, network nor algorithm."""

    training: LocalTraining
    proto_dim: int
    participation: float = 1.0
    dropout: float | Trace = 0.0
    late: float = 0.0
    max_left_out: float = 0.5
    evaluate_every: int = 1
    evaluate_clients: EvaluatedClients = "auto"
    counted_samples: CountedSamples = "train"
    trainer: Known = "eager"
    precision: Precision = "float32"
    device: str = "cpu"
    wire: WireSettings = EXACT
    defence: Defence = NO_DEFENCE
    client_memory: float = UNBOUNDED


class InProcess(Simulation):
    """A simulation whose clients are at hand."""

    def __init__(
        self, data: FederatedData, models: Sequence[ModelEntry], algorithm: Algorithm, settings: SimulationSettings,
        seed: int, clock: Callable[[], float] = time.perf_counter, folder: Path | None = None,
    ) -> None:  # fmt: skip
        images, device = data.images, torch.device(settings.device)
        spec = FederationSpec(
            images.num_classes, settings.proto_dim, 0.05, images.input_shape, networks=tuple(models), wire=settings.wire
        )
        setup = Setup(spec, algorithm, settings.training, Streams(seed))
        self.loopback = make_loopback(
            setup, data, make_trainer(settings.trainer, device, settings.precision), device, settings.counted_samples,
            files=ClientFiles(folder), memory=settings.client_memory, clock=clock,
        )  # fmt: skip
        self.clients = self.loopback.store
        trainer = make_trainer(settings.trainer, device, settings.precision)
        train = TrainSection(
            rounds=settings.training.rounds, participation=settings.participation, late=settings.late,
            max_left_out=settings.max_left_out,
        )  # fmt: skip
        evaluate = EvaluateSection(every=settings.evaluate_every, clients=settings.evaluate_clients)
        server = setup.server(trainer, make_stopwatch(clock, device), settings.defence)
        super().__init__(server, self.loopback, data.num_clients, train, evaluate, settings.dropout, PeakMemory(device))

    def snapshot(self) -> dict[str, Tensor]:
        """All that changes from round to round, by name."""
        server = {f"server/{name}": tensor.clone() for name, tensor in self.server.state.items()}
        return server | dict(snapshot_clients(self.clients.values()))
