"""Files written completely or not at all; nothing heavy is imported, so a device's listener can use them."""

from __future__ import annotations

import errno
import os
from io import FileIO
from pathlib import Path


def write_atomic(file: Path, content: str | bytes, mode: int = 0o666) -> None:
    """Write a file completely, or leave it as it was; it has its mode from the first byte on."""
    partial = file.with_name(partial_name(file.name))
    partial.unlink(missing_ok=True)
    partial.touch(mode)
    partial.write_bytes(content.encode() if isinstance(content, str) else content)
    partial.replace(file)


def partial_name(name: str) -> str:
    """Return the name of a file while it is being written."""
    return f".{name}.partial"


def append_atomic(file: FileIO, data: bytes) -> None:
    """Append all of the data to an open file, or raise OSError and append nothing."""
    start = file.seek(0, os.SEEK_END)
    try:
        if file.write(data) != len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    except OSError:
        file.truncate(start)
        raise
