"""Files that a federation's processes share: read strictly, written with a sentence for what goes wrong."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from tinyproto.config.schema import Section
from tinyproto.errors import ConfigError, FederationError
from tinyproto.federation.terms import Token
from tinyproto.tracking.run_folder import SERVE_FILE, write_atomic

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


class ServeFile(Section):
    """What `tinyproto serve` tells the ServerApp, and itself when it goes on."""

    config: dict[str, Any]  # resolved
    federation: Token
    resume: bool = False
    keys: dict[str, str] | None = None  # by client id: its public key, in hexadecimal, as Flower tells it
    listen: str | None = None  # where clients reach it
    key_folder: str | None = None  # where its own keys are

    @classmethod
    def read(cls, folder: Path) -> ServeFile:
        """Checked strictly."""
        return read_section(cls, folder / SERVE_FILE)

    def write(self, folder: Path) -> None:
        """Whole, or as it was."""
        write_atomic(folder / SERVE_FILE, self.model_dump_json(indent=1, exclude_none=True))

    def public_keys(self) -> dict[int, bytes]:
        """By client id."""
        return {int(client): bytes.fromhex(key) for client, key in (self.keys or {}).items()}
