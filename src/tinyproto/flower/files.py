"""Files that a federation's processes share: read strictly, written with a sentence for what goes wrong, locked."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TypeVar

from pydantic import ValidationError

from tinyproto.config.schema import Section
from tinyproto.errors import ConfigError, FederationError

S = TypeVar("S", bound=Section)


def read_section(kind: type[S], file: Path) -> S:
    """A JSON file as the section it has to be."""
    try:
        return kind.model_validate_json(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror or error}") from error
    except ValidationError as error:
        raise ConfigError(f"{file}: {first_fault(error)}") from error


def first_fault(error: ValidationError) -> str:
    """Where a JSON object is not as it has to be, and why."""
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """What goes wrong with the disk is an error that names the folder."""
    try:
        yield
    except OSError as error:
        raise FederationError(f"cannot write to {folder}: {error.strerror or error}") from error


@contextmanager
def served_alone(folder: Path) -> Iterator[None]:
    """The run folder is this process's, whether it is there yet or is replaced: the lock lies beside it."""
    folder = folder.resolve()
    with writing(folder.parent):
        folder.parent.mkdir(parents=True, exist_ok=True)
    words = f"another process serves the federation in {folder}; end that first, or choose another name"
    with locked(folder.parent / f".{folder.name}.lock", words):
        yield


@contextmanager
def locked(file: Path, otherwise: str) -> Iterator[None]:
    """While open, no other process has the lock, and then the file goes; one that is killed lets go of the lock."""
    with _lock(file, otherwise):
        try:
            yield
        finally:
            with suppress(OSError):  # such as: the folder is gone
                file.unlink()


def _lock(file: Path, otherwise: str) -> IO[str]:
    """The file, open and locked; not one that whoever had the lock before has removed meanwhile."""
    while True:
        with writing(file.parent):
            lock = file.open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(lock.fileno()), file.stat()):
                return lock
        except BlockingIOError:
            lock.close()
            raise FederationError(otherwise) from None
        except FileNotFoundError:
            pass
        except OSError as error:  # such as: a network's disk that knows no locks
            lock.close()
            raise FederationError(f"cannot lock {file}: {error.strerror or error}") from error
        lock.close()
