"""Files of named tensors, written completely or not at all, that detect later damage.

A sealed file has facts beside its tensors. The facts name the digest of the tensors, and the file's metadata holds the
digest of the facts, so a changed bit anywhere is found. Facts can be checked without reading a tensor.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from tinyproto.errors import DamagedError, one_line

_FACTS = "tinyproto"
_SEAL = "sha256"
_TENSORS = "tensors"
_UNREADABLE = (OSError, safetensors.SafetensorError, ValueError, TypeError, LookupError, RuntimeError)


def save_tensors(target: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> int:
    """Write under a temporary name, wait for the disk, then rename; return the number of bytes written.

    If that fails, the target is unchanged and the temporary file is removed.
    """
    partial = target.with_suffix(".partial")
    try:
        safetensors.torch.save_file(dict(tensors), partial, metadata=None if metadata is None else dict(metadata))
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        size = partial.stat().st_size
        partial.replace(target)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    return size


def save_sealed(target: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> int:
    """Write tensors and facts with their digests, completely or not at all; return the number of bytes written."""
    text = json.dumps({**facts, _TENSORS: digest(tensors)})
    return save_tensors(target, tensors, {_FACTS: text, _SEAL: _digest_of(text)})


def load_sealed(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the facts and tensors of a sealed file; raise DamagedError if anything differs from what was written."""
    facts = sealed_facts(path)
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except _UNREADABLE as error:
        raise DamagedError(f"{path} is damaged ({one_line(error)})") from error
    if digest(tensors) != facts[_TENSORS]:  # before copying, which turns every true byte into a 1
        raise DamagedError(f"{path} is damaged (its tensors differ from what was written)")
    return facts, {name: tensor.clone() for name, tensor in tensors.items()}


def sealed_facts(path: Path) -> dict[str, Any]:
    """Return the facts of a sealed file, without reading its tensors; raise DamagedError if they were changed."""
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
    except _UNREADABLE as error:
        raise DamagedError(f"{path} is damaged ({one_line(error)})") from error
    text = metadata.get(_FACTS)
    if text is None:
        raise DamagedError(f"{path} is damaged, or not a file of tinyproto (it has no facts beside its tensors)")
    if metadata.get(_SEAL) != _digest_of(text):
        raise DamagedError(f"{path} is damaged (its facts differ from what was written)")
    facts: dict[str, Any] = json.loads(text)
    return facts


def digest(tensors: Mapping[str, Tensor]) -> str:
    """Return a digest of names, types, shapes and values that does not depend on their order."""
    sha = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        sha.update(f"{name} {tensor.dtype} {tuple(tensor.shape)};".encode())
        sha.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return sha.hexdigest()[:32]


def _digest_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def disk_words(error: Exception) -> str:
    """Return the system's description of a disk error, without the words that safetensors puts around it."""
    words = getattr(error, "strerror", None) or str(error)
    quoted = re.search(r'IoError\(Os \{.* message: "(.*)" \}\)$', words)  # safetensors before 0.6
    if quoted:
        return quoted[1]
    return re.sub(r"^Error while serializing: (?:I/O error: )?|\s*\(os error \d+\)$", "", words)


def host_copy(tensor: Tensor) -> Tensor:
    """Return a copy in host memory; safetensors refuses tensors that share memory."""
    return tensor.detach().cpu().contiguous().clone()
