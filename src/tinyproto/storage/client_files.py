"""Clients' states on disk: a file for each time a client was put there, with those of its parts that had changed."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import safetensors
from torch import Tensor

from tinyproto.errors import ClientStateError, one_line
from tinyproto.storage.tensor_files import digest, disk_words, own, save_whole

Tensors = Mapping[str, Tensor]
SUFFIX = ".safetensors"


class Place(NamedTuple):
    """Where one part of a client lies, and what it has to be."""

    file: str
    digest: str


Stored = dict[str, Place]
"""The parts of one client that differ from how it is built, by name."""


def stored_from(values: Mapping[str, Mapping[str, Sequence[str]]]) -> dict[int, Stored]:
    """Where clients' states lie, from what JSON made of it."""
    return {int(client): {part: Place(*place) for part, place in parts.items()} for client, parts in values.items()}


class ClientFiles:
    """The files of one simulation's clients in one folder; without one, in a temporary folder that goes with this.

    A file's name says what is in it and it is never changed, so what a killed run left behind is never taken for
    something else.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._unclaimed: set[str] = set()  # names that no checkpoint speaks of
        self.bytes_written = 0
        self.bytes_read = 0

    @property
    def folder(self) -> Path:
        """Made when first needed."""
        if self._folder is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="tinyproto-clients-")
            self._folder = Path(self._temporary.name)
        self._folder.mkdir(exist_ok=True)
        return self._folder

    def put(self, client: int, parts: Mapping[str, Tensors], digests: Mapping[str, str]) -> Stored:
        """Write these parts of a client as one file."""
        content = hashlib.sha256("".join(f"{part} {digests[part]};" for part in parts).encode()).hexdigest()[:16]
        name = f"{client:06}-{content}{SUFFIX}"
        tensors = {f"{part}/{key}": own(value) for part, values in parts.items() for key, value in values.items()}
        try:
            new = not (self.folder / name).exists()  # else a checkpoint may speak of it
            self.bytes_written += save_whole(self.folder / name, tensors)
        except (OSError, safetensors.SafetensorError) as error:
            raise ClientStateError(
                f"cannot write the state of client {client} to {self._folder}: "
                f"{disk_words(error)}; free some space there"
            ) from error
        if new:
            self._unclaimed.add(name)
        return {part: Place(name, digests[part]) for part in parts}

    def get(self, client: int, stored: Stored) -> dict[str, dict[str, Tensor]]:
        """Read a client's parts back, and make sure that they are what was written."""
        parts: dict[str, dict[str, Tensor]] = {part: {} for part in stored}
        for name in dict.fromkeys(place.file for place in stored.values()):
            path = self.folder / name
            try:
                with safetensors.safe_open(path, framework="pt") as file:
                    for full_name in file.keys():  # noqa: SIM118
                        part, _, key = full_name.partition("/")
                        if part in stored and stored[part].file == name:
                            parts[part][key] = file.get_tensor(full_name)
                self.bytes_read += path.stat().st_size
            except FileNotFoundError as error:
                raise ClientStateError(f"{path}, the state of client {client}, is missing") from error
            except (OSError, safetensors.SafetensorError) as error:
                raise ClientStateError(
                    f"{path}, the state of client {client}, is damaged ({one_line(error)})"
                ) from error
        for part, place in stored.items():
            if digest(parts[part]) != place.digest:
                raise ClientStateError(
                    f"{self.folder / place.file}, the state of client {client}, is damaged: it is not what was written"
                )
        return {part: {key: tensor.clone() for key, tensor in tensors.items()} for part, tensors in parts.items()}

    def forget(self, names: Collection[str]) -> None:
        """Remove files that are out of date, except those that a checkpoint may speak of."""
        for name in self._unclaimed & set(names):
            (self.folder / name).unlink(missing_ok=True)
            self._unclaimed.discard(name)

    def claim(self) -> None:
        """From now on every file there is belongs to a checkpoint, whose owner removes it."""
        self._unclaimed.clear()
