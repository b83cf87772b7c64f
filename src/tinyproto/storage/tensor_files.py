"""Files of named tensors that are there whole or not at all, and that show when they were damaged since.

A sealed file has facts beside its tensors. The facts name the digest of the tensors, and the file's metadata holds the
digest of the facts, so a changed bit anywhere is found; facts alone are checked without reading a tensor.
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


def save_whole(target: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> int:
    """Write under another name, wait for the disk, then rename; returns the bytes written.

    Where that fails the target is as it was, and what was written of the other is gone.
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
    """Write tensors and facts with their digests, whole or not at all; return the bytes written."""
    text = json.dumps({**facts, _TENSORS: digest(tensors)})
    return save_whole(target, tensors, {_FACTS: text, _SEAL: _digest_of(text)})


def load_sealed(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the facts and tensors of a sealed file; raise DamagedError if anything differs from what was written.

    Releases before the seal wrote neither digest. Their files are read, and only what safetensors checks is checked.
    """
    facts = sealed_facts(path)
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except _UNREADABLE as error:
        raise DamagedError(f"{path} is damaged ({one_line(error)})") from error
    if is_sealed(facts) and digest(tensors) != facts[_TENSORS]:  # before copying, which makes every true byte a 1
        raise DamagedError(f"{path} is damaged (its tensors are not what was written)")
    return facts, {name: tensor.clone() for name, tensor in tensors.items()}


def sealed_facts(path: Path) -> dict[str, Any]:
    """Return the facts of a sealed file, without reading its tensors; raise DamagedError if they were changed."""
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
        text, seal = metadata.get(_FACTS, ""), metadata.get(_SEAL)
        if not text:
            raise DamagedError(f"{path} is damaged, or not a file of tinyproto (it has no facts beside its tensors)")
        facts: dict[str, Any] = dict(json.loads(text))
    except _UNREADABLE as error:
        raise DamagedError(f"{path} is damaged ({one_line(error)})") from error
    if (seal is not None or is_sealed(facts)) and seal != _digest_of(text):
        raise DamagedError(f"{path} is damaged (its facts are not what was written)")
    return facts


def is_sealed(facts: Mapping[str, Any]) -> bool:
    """Tell files with a seal from those of releases that wrote none."""
    return _TENSORS in facts


def digest(tensors: Mapping[str, Tensor]) -> str:
    """Return a digest of names, types, shapes and values, whatever their order."""
    sha = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        sha.update(f"{name} {tensor.dtype} {tuple(tensor.shape)};".encode())
        sha.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return sha.hexdigest()[:32]


def _digest_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def disk_words(error: Exception) -> str:
    """What the system said was wrong with the disk, without what the library that wrote puts around it."""
    words = getattr(error, "strerror", None) or str(error)
    quoted = re.search(r'IoError\(Os \{.* message: "(.*)" \}\)$', words)  # safetensors before 0.6
    if quoted:
        return quoted[1]
    return re.sub(r"^Error while serializing: (?:I/O error: )?|\s*\(os error \d+\)$", "", words)


def own(tensor: Tensor) -> Tensor:
    """A copy on the host: safetensors refuses tensors that share memory."""
    return tensor.detach().cpu().contiguous().clone()
