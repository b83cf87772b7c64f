"""Files of named tensors that are there whole or not at all."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

import safetensors.torch
from torch import Tensor


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
