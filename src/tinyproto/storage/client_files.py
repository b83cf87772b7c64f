"""The state of clients: all of it that changes, as named tensors, and the files that hold it.

A client has one file for each time it was written; the file holds the parts that had changed.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import safetensors
from torch import Tensor

from tinyproto.algorithms.base import Client
from tinyproto.core.prototypes import Prototypes
from tinyproto.errors import ClientStateError, one_line
from tinyproto.models.build import load_weights
from tinyproto.storage.tensor_files import digest, disk_words, host_copy, save_tensors

Tensors = Mapping[str, Tensor]
SUFFIX = ".safetensors"

PARTS = ("model", "modules", "state", "local", "received")
"""The parts of a client that change from round to round."""


def parts_of(client: Client) -> dict[str, Tensors]:
    """Return all that changes of a client, by part and name."""
    return {
        "model": client.model.state_dict(),
        "modules": client.modules.state_dict(),
        "state": client.state,
        "local": client.local._asdict(),
        "received": {} if client.received is None else client.received._asdict(),
    }


def put_back(client: Client, parts: Mapping[str, Tensors]) -> None:
    """Set these parts of a client to the values given; leave its other parts as they are."""
    if "model" in parts:
        load_weights(client.model, parts["model"])
    if "modules" in parts:
        load_weights(client.modules, parts["modules"])
    if "state" in parts:
        client.state = {name: tensor.to(client.device) for name, tensor in parts["state"].items()}
    if "local" in parts:
        client.local = Prototypes(**parts["local"]).to(client.device)
    if "received" in parts:
        received = parts["received"]
        client.received = Prototypes(**received).to(client.device) if received else None


def snapshot_clients(clients: Iterable[Client], parts: Collection[str] = PARTS) -> Iterator[tuple[str, Tensor]]:
    """Yield `client/ID/PART/NAME` and a copy of the tensor in host memory."""
    for client in clients:
        for part, tensors in parts_of(client).items():
            if part in parts:
                for name, tensor in tensors.items():
                    yield f"client/{client.id}/{part}/{name}", host_copy(tensor)


def grouped(tensors: Tensors) -> dict[tuple[int, str], dict[str, Tensor]]:
    """Group tensors named by `snapshot_clients` by client and part."""
    groups: dict[tuple[int, str], dict[str, Tensor]] = {}
    for full_name, tensor in tensors.items():
        _, client, part, name = full_name.split("/", 3)
        groups.setdefault((int(client), part), {})[name] = tensor
    return groups


class Place(NamedTuple):
    """The file that holds one part of a client, and the digest of that part."""

    file: str
    digest: str


Stored = dict[str, Place]
"""The parts of one client that differ from a newly built one, by name."""


def stored_from(values: Mapping[str, Mapping[str, Sequence[str]]]) -> dict[int, Stored]:
    """Return the places of clients' states as they were before JSON turned them into lists."""
    return {int(client): {part: Place(*place) for part, place in parts.items()} for client, parts in values.items()}


class ClientFiles:
    """The files of one simulation's clients in one folder, which is temporary if none is given.

    A file is named after its content and never changed, so a file that a killed run left behind cannot be mistaken for
    another.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._unclaimed: set[str] = set()  # names that no checkpoint refers to
        self.bytes_written = 0
        self.bytes_read = 0

    @property
    def folder(self) -> Path:
        """Return the folder; create it when it is first needed."""
        if self._folder is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="tinyproto-clients-")
            self._folder = Path(self._temporary.name)
        self._folder.mkdir(exist_ok=True)
        return self._folder

    def put(self, client: int, parts: Mapping[str, Tensors], digests: Mapping[str, str]) -> Stored:
        """Write these parts of a client as one file."""
        content = hashlib.sha256("".join(f"{part} {digests[part]};" for part in parts).encode()).hexdigest()[:16]
        name = f"{client:06}-{content}{SUFFIX}"
        tensors = {f"{part}/{key}": host_copy(value) for part, values in parts.items() for key, value in values.items()}
        try:
            new = not (self.folder / name).exists()  # else a checkpoint may refer to it
            self.bytes_written += save_tensors(self.folder / name, tensors)
        except (OSError, safetensors.SafetensorError) as error:
            raise ClientStateError(
                f"cannot write the state of client {client} to {self._folder}: "
                f"{disk_words(error)}; free some space there"
            ) from error
        if new:
            self._unclaimed.add(name)
        return {part: Place(name, digests[part]) for part in parts}

    def get(self, client: int, stored: Stored) -> dict[str, dict[str, Tensor]]:
        """Read a client's parts back; raise ClientStateError if they are missing or differ from what was written."""
        parts: dict[str, dict[str, Tensor]] = {part: {} for part in stored}
        for name in dict.fromkeys(place.file for place in stored.values()):
            path = self.folder / name
            what = f"{path}, the state of client {client},"
            try:
                with safetensors.safe_open(path, framework="pt") as file:
                    for full_name in file.keys():  # noqa: SIM118
                        part, _, key = full_name.partition("/")
                        if part in stored and stored[part].file == name:
                            parts[part][key] = file.get_tensor(full_name)
                self.bytes_read += path.stat().st_size
            except FileNotFoundError as error:
                raise ClientStateError(f"{what} is missing") from error
            except (OSError, safetensors.SafetensorError) as error:
                raise ClientStateError(f"{what} is damaged ({one_line(error)})") from error
            for part, place in stored.items():
                if place.file == name and digest(parts[part]) != place.digest:
                    raise ClientStateError(f"{what} is damaged: it differs from what was written")
        return {part: {key: tensor.clone() for key, tensor in tensors.items()} for part, tensors in parts.items()}

    def forget(self, names: Collection[str]) -> None:
        """Remove outdated files, except those that a checkpoint may refer to."""
        for name in self._unclaimed & set(names):
            (self.folder / name).unlink(missing_ok=True)
            self._unclaimed.discard(name)

    def claim(self) -> None:
        """Leave every existing file to a checkpoint: from now on `forget` does not remove it."""
        self._unclaimed.clear()
