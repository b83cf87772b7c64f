"""The simulated clients: building one from its own stream, and all of it that changes as named tensors."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from tinyproto.algorithms.base import Client, ClientInfo, ClientSide
from tinyproto.core.prototypes import Prototypes
from tinyproto.core.streams import Streams, one_thread
from tinyproto.core.task import TensorData
from tinyproto.data.images import CountedSamples, FederatedData
from tinyproto.models import ModelEntry, ModelShape, build_model, entry_name
from tinyproto.storage.tensor_files import own

PARTS = ("model", "modules", "state", "local", "received")
"""What of a client changes from round to round."""


@dataclass(frozen=True)
class ClientBuilder:
    """Builds any client at any time to the same bits: all it draws comes from the client's own stream."""

    data: FederatedData
    models: Sequence[ModelEntry]
    shape: ModelShape
    counted_samples: CountedSamples
    side: ClientSide
    streams: Streams
    device: torch.device

    def kind(self, client: int) -> int:
        """Which of the networks it has: client i has network i modulo their number."""
        return client % len(self.models)

    def info(self, client: int) -> ClientInfo:
        """What it says of itself, which takes no network."""
        counts = self._counts[client]
        samples = len(self.data.shares[client].train)
        return ClientInfo(client, samples, int(counts.sum()), int((counts > 0).sum()))

    def build(self, client: int) -> Client:
        """As it is before round 1."""
        kind = self.kind(client)
        entry = self.models[kind]
        architecture = entry if isinstance(entry, str) else (kind, entry_name(entry))
        samples = (self._placed.train(client), self._placed.test(client))
        return new_client(
            client, entry, architecture, self.shape, samples, self._counts[client], self.side, self.streams
        )

    @cached_property
    def _counts(self) -> Tensor:
        return self.data.counted(self.counted_samples)

    @cached_property
    def _placed(self) -> FederatedData:
        return self.data.to(self.device)


def new_client(
    id_: int, entry: ModelEntry, architecture: Hashable, shape: ModelShape, samples: tuple[TensorData, TensorData],
    counts: Tensor, side: ClientSide, streams: Streams,
) -> Client:  # fmt: skip
    """A client as it is before round 1, where its samples (train, test) are; `counts` (K,) is its n_ij."""
    train, test = samples
    device = train.labels.device
    with one_thread():
        client = Client(
            id=id_,
            architecture=architecture,
            model=build_model(entry, shape, streams.derive("model", client=id_)).to(device),
            train=train,
            test=test,
            class_counts=counts.to(device),
            local=Prototypes.absent(shape.num_classes, shape.proto_dim, device),
        )
        side.init(client, streams)
    return client


def parts_of(client: Client) -> dict[str, Mapping[str, Tensor]]:
    """All that changes of a client, by part and name."""
    return {
        "model": client.model.state_dict(),
        "modules": client.modules.state_dict(),
        "state": client.state,
        "local": client.local._asdict(),
        "received": {} if client.received is None else client.received._asdict(),
    }


def put_back(client: Client, parts: Mapping[str, Mapping[str, Tensor]]) -> None:
    """Put these parts of a client to what they were; it keeps the others."""
    if "model" in parts:
        client.model.load_state_dict(dict(parts["model"]))
    if "modules" in parts:
        client.modules.load_state_dict(dict(parts["modules"]))
    if "state" in parts:
        client.state = {name: tensor.to(client.device) for name, tensor in parts["state"].items()}
    if "local" in parts:
        client.local = Prototypes(**parts["local"]).to(client.device)
    if "received" in parts:
        received = parts["received"]
        client.received = Prototypes(**received).to(client.device) if received else None


def memory_of(client: Client) -> int:
    """Bytes of all that changes, with room for the prototypes that are still to arrive."""
    parts = parts_of(client)
    values = [value for name in ("model", "modules", "state", "local") for value in parts[name].values()]
    return sum(value.numel() * value.element_size() for value in (*values, *parts["local"].values()))


def drop_gradients(client: Client) -> None:
    """What training leaves behind takes as much memory as the networks, and the next step begins without it."""
    for module in (client.model, client.modules):
        for parameter in module.parameters():
            parameter.grad = None


def snapshot_clients(clients: Iterable[Client], parts: Collection[str] = PARTS) -> Iterator[tuple[str, Tensor]]:
    """`client/ID/PART/NAME` and a copy of the tensor, on the host."""
    for client in clients:
        for part, tensors in parts_of(client).items():
            if part in parts:
                for name, tensor in tensors.items():
                    yield f"client/{client.id}/{part}/{name}", own(tensor)


def grouped(tensors: Mapping[str, Tensor]) -> dict[tuple[int, str], dict[str, Tensor]]:
    """Tensors named by `snapshot_clients`, by client and part."""
    groups: dict[tuple[int, str], dict[str, Tensor]] = {}
    for full_name, tensor in tensors.items():
        _, client, part, name = full_name.split("/", 3)
        groups.setdefault((int(client), part), {})[name] = tensor
    return groups
