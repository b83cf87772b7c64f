"""Files that a federation's processes share: read strictly, written with a sentence for what goes wrong."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

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
