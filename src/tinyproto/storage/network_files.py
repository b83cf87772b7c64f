"""Files with a client's trained network: those a run keeps, and the state of a device in a federation.

Both hold the network, the prototypes to classify with, and the facts that it takes to build the network again and to
prepare its inputs. A kept file has the state dict under PyTorch's names, so that any program can read it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import safetensors
from torch import Tensor

from tinyproto.errors import RunFolderError, one_line
from tinyproto.storage.tensor_files import load_sealed, save_tensors

FOLDER = "models"
"""The folder of a run's networks: `models/LABEL-SEED/client-N.safetensors`."""

KEPT_PARTS = ("model", "local", "received")
"""The parts of a client that are kept: its network, its local prototypes, the global prototypes it received last."""

TRAINED = "trained"
"""The key under which the facts of a device's state have those of its network."""

SCHEMA_VERSION = 2
_WITHOUT_PROTOTYPES = 1
_TAG = "tinyproto"


def file_name(client: int) -> str:
    """Return the name of a client's file, in a run and on a device."""
    return f"client-{client}.safetensors"


def write_network(file: Path, facts: Mapping[str, Any], parts: Mapping[str, Mapping[str, Tensor]]) -> None:
    """Write a client's network and prototypes, completely or not at all; raise OSError or SafetensorError."""
    tensors = dict(parts["model"])
    for part in KEPT_PARTS[1:]:  # the names of a network's tensors start with `extractor.` or `head.`
        tensors |= {f"{part}/{name}": tensor for name, tensor in parts.get(part, {}).items()}
    save_tensors(file, tensors, {_TAG: json.dumps({"schema_version": SCHEMA_VERSION, **facts})})


def read_facts(file: Path) -> dict[str, Any]:
    """Return the facts of a network without reading its tensors; raise RunFolderError if it has none we know."""
    with _reading(file), safetensors.safe_open(file, framework="pt") as opened:
        facts: dict[str, Any] = json.loads((opened.metadata() or {}).get(_TAG, "{}"))
    if facts.get("schema_version") in (_WITHOUT_PROTOTYPES, SCHEMA_VERSION):
        return facts
    if TRAINED in facts:
        trained: dict[str, Any] = facts[TRAINED]
        return trained
    if "parts" in facts:
        raise RunFolderError(
            f"{file} was written by an earlier release, which did not store how inputs are prepared; the next round "
            "that this client answers with this release adds it"
        )
    raise RunFolderError(f"{file} is not a network that this tinyproto kept; load it with the release that wrote it")


def read_network(file: Path) -> tuple[dict[str, Any], dict[str, dict[str, Tensor]]]:
    """Return the facts of a network and its tensors by part; a part that the client does not have is empty."""
    facts = read_facts(file)
    parts: dict[str, dict[str, Tensor]] = {part: {} for part in KEPT_PARTS}
    if "schema_version" in facts:
        with _reading(file), safetensors.safe_open(file, framework="pt") as opened:
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    else:
        _, tensors = load_sealed(file)
    for full_name, tensor in tensors.items():
        part, slash, name = full_name.partition("/")
        if not slash or part.startswith(("extractor.", "head.")):  # names of layers may have slashes
            parts["model"][full_name] = tensor
        elif part in parts:
            parts[part][name] = tensor
    return facts, parts


@contextmanager
def _reading(file: Path) -> Iterator[None]:
    """Turn errors in reading a file into a RunFolderError that names it."""
    try:
        yield
    except (OSError, ValueError, safetensors.SafetensorError) as error:
        raise RunFolderError(f"{file} cannot be read: {one_line(error)}") from error
