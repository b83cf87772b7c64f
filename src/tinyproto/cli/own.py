"""What a client brings along: its command line as its processes read it, looked at before anybody is waited for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tinyproto.cli.loading import LoadingBar
from tinyproto.cli.terminal import Output
from tinyproto.config import load_config
from tinyproto.errors import ConfigError, DataError, FederationError
from tinyproto.experiment import resolve_device
from tinyproto.flower.member import JoinFile
from tinyproto.flower.own_data import OwnDataSection, ShareSection, read_samples
from tinyproto.models import find_model


@dataclass(frozen=True)
class Own:
    """What is the client's own: its number, keys, samples, network and folder."""

    client: int
    keys: Path
    data: Path | None
    share: Path | None
    image_size: int | None
    model: str
    device: str
    folder: Path
    give_up: int | None = None  # minutes that a coordinator may be away


def join_file(own: Own) -> JoinFile:
    """What the command line says, as the client's own processes will read it."""
    if (own.data is None) == (own.share is None):
        raise ConfigError(
            "either --data says where this client's samples are, or --share a config that splits a dataset"
        )
    if own.share is not None:
        if own.image_size is not None:
            raise ConfigError(f"--image-size goes with --data; with --share {own.share} says it, as data.image_size")
        model = load_config(own.share, []).model
        data = OwnDataSection(share=ShareSection(data=model.data, partition=model.partition))
    else:
        assert own.data is not None
        if not own.data.exists():
            raise ConfigError(f"--data: there is nothing at {own.data}")
        if own.image_size is not None and not own.data.is_dir():
            raise ConfigError(f"--image-size is for a folder of images, and {own.data} is a file")
        data = OwnDataSection(path=str(own.data.resolve()), image_size=own.image_size)
    return JoinFile(data=data, model=own.model, device=own.device)


def check(own: Own, join: JoinFile, output: Output) -> None:
    """What can be seen before anybody is waited for; whether it fits shows once the terms are known."""
    resolve_device(own.device, "--device")
    find_model(own.model)
    with LoadingBar(output.console) as bar:
        try:
            read_samples(join.data, own.client, bar)
        except DataError as error:
            said = str(error) if own.share else str(error).replace("set data.image_size", "give --image-size")
            raise DataError(f"{'--share' if own.share else '--data'}: {said}") from error


def write(file: Path, join: JoinFile) -> None:
    """Where the client's processes look for it."""
    try:
        file.write_text(join.model_dump_json(indent=1), encoding="utf-8")
    except OSError as error:
        raise FederationError(f"cannot write {file}: {error.strerror or error}") from error
