"""The simulated clients: building them, and all of them that changes as named tensors."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from tinyproto.algorithms.base import Client
from tinyproto.core.prototypes import Prototypes
from tinyproto.core.streams import Streams
from tinyproto.data.federation import CountedSamples, FederatedData
from tinyproto.models import ModelEntry, ModelShape, build_model, entry_name

PARTS = ("model", "modules", "state", "local", "received")
"""What of a client changes from round to round."""


def build_clients(
    data: FederatedData, models: Sequence[ModelEntry], shape: ModelShape, counted_samples: CountedSamples,
    streams: Streams, device: torch.device, only: Collection[int] | None = None,
) -> dict[int, Client]:  # fmt: skip
    """Client i with network i modulo their number, weights drawn from its own stream; all clients, or `only` some."""
    counts = data.counted(counted_samples)
    placed = data.to(device)
    clients = {}
    for client in range(data.num_clients) if only is None else sorted(only):
        index = client % len(models)
        entry = models[index]
        clients[client] = Client(
            id=client,
            architecture=entry if isinstance(entry, str) else (index, entry_name(entry)),
            model=build_model(entry, shape, streams.derive("model", client=client)).to(device),
            train=placed.train(client),
            test=placed.test(client),
            class_counts=counts[client].to(device),
            local=Prototypes.absent(shape.num_classes, shape.proto_dim, device),
        )
    return clients


def snapshot_clients(clients: Mapping[int, Client], parts: Collection[str] = PARTS) -> Iterator[tuple[str, Tensor]]:
    """`client/ID/PART/NAME` and a copy of the tensor, on the host."""
    for client in clients.values():
        for part, tensors in _parts(client).items():
            if part in parts:
                for name, tensor in tensors.items():
                    yield f"client/{client.id}/{part}/{name}", own(tensor)


def own(tensor: Tensor) -> Tensor:
    """A copy on the host: safetensors refuses tensors that share memory."""
    return tensor.detach().cpu().contiguous().clone()


def _parts(client: Client) -> dict[str, Mapping[str, Tensor]]:
    return {
        "model": client.model.state_dict(),
        "modules": client.modules.state_dict(),
        "state": client.state,
        "local": client.local._asdict(),
        "received": {} if client.received is None else client.received._asdict(),
    }


def grouped(tensors: Mapping[str, Tensor]) -> dict[tuple[int, str], dict[str, Tensor]]:
    """Tensors named by `snapshot_clients`, by client and part."""
    groups: dict[tuple[int, str], dict[str, Tensor]] = {}
    for full_name, tensor in tensors.items():
        if full_name.startswith("client/"):
            _, client, part, name = full_name.split("/", 3)
            groups.setdefault((int(client), part), {})[name] = tensor
    return groups


def restore_clients(clients: Mapping[int, Client], tensors: Mapping[str, Tensor]) -> None:
    """Put clients where the snapshot was taken; tensors of other clients are passed over."""
    groups = grouped(tensors)
    for client in clients.values():
        parts = {part: groups.get((client.id, part), {}) for part in PARTS}
        client.model.load_state_dict(parts["model"])
        client.modules.load_state_dict(parts["modules"])
        client.state = {name: tensor.to(client.device) for name, tensor in parts["state"].items()}
        client.local = Prototypes(**parts["local"]).to(client.device)
        client.received = Prototypes(**parts["received"]).to(client.device) if parts["received"] else None
