"""A client's command line and folder, whatever carries its messages; nothing heavy is imported."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tinyproto.errors import ConfigError, FederationError, Interrupted, TinyProtoError
from tinyproto.federation.device_keys import readable
from tinyproto.federation.journal import writing
from tinyproto.tracking.lock import locked


@dataclass(frozen=True)
class JoinOptions:
    """The command line of `tinyproto join`."""

    client: int
    keys: Path
    data: Path | None
    share: Path | None
    image_size: int | None
    model: str
    device: str
    folder: Path


def check_keys_folder(options: JoinOptions) -> None:
    """Raise ConfigError if the keys are missing, but lie beside or inside the named folder."""
    with readable(options.keys):
        if options.keys.joinpath("client.key").exists():
            return
        for other in (options.keys / f"client-{options.client}", Path("keys") / options.keys):
            if other.joinpath("client.key").is_file():
                raise ConfigError(f"{options.keys} holds no client.key; did you mean `--keys {other}`?")


@contextmanager
def naming(client: int) -> Iterator[None]:
    """Start every error with the client's number."""
    try:
        yield
    except Interrupted:
        raise
    except TinyProtoError as error:
        raise FederationError(f"client {client}: {error}") from error


@contextmanager
def locked_folder(folder: Path) -> Iterator[None]:
    """Create the client's private folder and lock it: two clients in one folder would damage each other's state."""
    if folder.is_file():
        raise ConfigError(f"--folder: {folder} is a file; name a folder for this client's state")
    with writing(folder):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with suppress(PermissionError):  # it belongs to another user
            folder.chmod(0o700)
    words = (
        f"another process is the client in {folder}; stop it first, or join as another client, with its own "
        "--client-id, --keys and --folder"
    )
    with locked(folder / ".lock", FederationError(words)):
        yield
