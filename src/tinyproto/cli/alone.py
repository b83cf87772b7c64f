"""One process at a time."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tinyproto.errors import FederationError


@contextmanager
def alone_with(folder: Path) -> Iterator[None]:
    """The run folder is this process's, whether it is there yet or is replaced: the lock lies beside it."""
    folder = folder.resolve()
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock = (folder.parent / f".{folder.name}.lock").open("w")
    except OSError as error:
        raise FederationError(f"cannot write to {folder.parent}: {error.strerror or error}") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FederationError(
                f"another process serves the federation in {folder}; end that first, or choose another name"
            ) from None
        yield
