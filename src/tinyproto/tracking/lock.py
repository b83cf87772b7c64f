"""Locks between processes: the kernel lets go of them when their holder ends, however that ends.

Processes that the holder starts do not inherit them.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from tinyproto.errors import InUseError, RunFolderError, TinyProtoError

NO_LOCKS = {errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK}
"""What file systems say that have no such locks; there, nobody is kept out."""


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """While open, no other process plays in a run folder, be it there or not yet; the lock lies beside it.

    So nothing in the folder differs by it, and it holds while the folder is replaced.
    """
    place = folder.resolve()
    file = place.with_name(f".{place.name}.lock")
    words = f"another process is running in {folder}; wait for it, or end it first"
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        lock = _take(file, InUseError(words))
    except OSError as error:
        raise RunFolderError(f"cannot write the run folder {folder}: {error.strerror or error}") from error
    with _held(file, lock):
        yield


@contextmanager
def locked(file: Path, otherwise: TinyProtoError) -> Iterator[None]:
    """While open, no other process has the lock; one that comes meanwhile ends with `otherwise`."""
    try:
        lock = _take(file, otherwise)
    except OSError as error:
        raise RunFolderError(f"cannot write {file}: {error.strerror or error}") from error
    with _held(file, lock):
        yield


@contextmanager
def _held(file: Path, lock: IO[str]) -> Iterator[None]:
    """Until the end, when the file goes."""
    with lock:
        try:
            yield
        finally:
            with suppress(OSError):  # such as: the folder is gone
                file.unlink()


def _take(file: Path, otherwise: TinyProtoError) -> IO[str]:
    """The file, open and locked; not one that whoever had the lock before has removed meanwhile."""
    while True:
        lock = file.open("w")
        try:
            _flock(lock)
            if os.path.samestat(os.fstat(lock.fileno()), file.stat()):
                return lock
        except BlockingIOError:
            lock.close()
            raise otherwise from None
        except FileNotFoundError:
            pass
        lock.close()


def _flock(file: IO[str]) -> None:
    """At once, or BlockingIOError."""
    try:
        import fcntl
    except ImportError:  # a system without such locks
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
