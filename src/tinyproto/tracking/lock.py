"""Locks between processes: the kernel releases a lock when its holder ends, however that ends.

Processes that the holder starts do not inherit it. This is not `filelock`: that leaves its files behind, beside every
run folder, and on a file system without `flock` its fallback outlives a killed process.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from tinyproto.errors import InUseError, RunFolderError, TinyProtoError

NO_LOCKS = {errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK}
"""Errors of file systems without such locks; there, no process is kept out."""


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Keep other processes out of a run folder while open, even if it does not exist yet.

    The lock lies beside the folder, so it does not change the folder and holds while that is replaced.
    """
    place = folder.resolve()
    in_use = InUseError(f"another process is running in {folder}; wait for it, or end it first")
    with suppress(OSError):  # the lock then fails with the same reason
        place.parent.mkdir(parents=True, exist_ok=True)
    with locked(place.with_name(f".{place.name}.lock"), in_use, f"the run folder {folder}"):
        yield


@contextmanager
def locked(file: Path, otherwise: TinyProtoError, what: str = "") -> Iterator[None]:
    """Hold a lock while open, then remove its file; raise `otherwise` if another process holds it."""
    try:
        lock = _take(file, otherwise)
    except OSError as error:
        raise RunFolderError(f"cannot write {what or file}: {error.strerror or error}") from error
    with lock:
        try:
            yield
        finally:
            with suppress(OSError):  # such as: the folder is gone
                file.unlink()


def _take(file: Path, otherwise: TinyProtoError) -> IO[str]:
    """Open and lock the file, but not one that its previous holder has removed meanwhile."""
    while True:
        lock = file.open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            raise otherwise from None
        except OSError as error:
            if error.errno not in NO_LOCKS:
                lock.close()
                raise
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(lock.fileno()), file.stat()):
                return lock
        lock.close()
