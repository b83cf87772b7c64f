"""A client's data, network and device, checked before it joins, and `tinyproto join --offline`: training alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tinyproto.builder import resolve_device
from tinyproto.cli.client_folder import JoinOptions, locked_folder, naming
from tinyproto.cli.progress import LoadingBar
from tinyproto.cli.terminal import Output
from tinyproto.config import load_config
from tinyproto.engine.measure import RULES
from tinyproto.engine.round import RoundRecord
from tinyproto.errors import ConfigError, DataError
from tinyproto.federation.client_data import ClientDataSection, ShareSection, check_samples
from tinyproto.federation.journal import writing
from tinyproto.federation.member import JoinFile
from tinyproto.federation.offline import train_offline
from tinyproto.models import find_model
from tinyproto.report.words import counted, percent


def train_alone(config: Path, options: JoinOptions, output: Output) -> None:
    """Train the client on this device by a config, without a coordinator; print its accuracy before each round."""
    record: RoundRecord | None = None
    loaded = load_config(config, [])
    with prepared(options, output):
        for record in train_offline(options.folder, options.client, loaded):
            if any(one.test_samples is not None for one in record.clients.values()):  # an evaluation was due
                done = counted(record.round - 1, "round")
                output.say(f"client {options.client}: after {done}: {_accuracies(record)}")
    rounds = counted(loaded.model.train.rounds, "round")
    output.say(f"client {options.client}: {rounds} are complete; its state is in {options.folder}")
    accuracy = {} if record is None else dict(record.accuracy)
    output.result({"client": options.client, "folder": str(options.folder), "accuracy": accuracy})


def _accuracies(record: RoundRecord) -> str:
    """Return the accuracy by each rule before this round's training."""
    known = [(rule, found) for rule in RULES if (found := record.accuracy[rule]) is not None]
    return ", ".join(f"{rule} {percent(found)}" for rule, found in known) or "no test samples"


@contextmanager
def prepared(options: JoinOptions, output: Output) -> Iterator[None]:
    """Check data, network and device; lock the client's folder and write its join.json for as long as this is open."""
    with naming(options.client):
        join = checked(options, output)
        with locked_folder(options.folder):
            write_join_file(options.folder, join)
            yield


def checked(options: JoinOptions, output: Output) -> JoinFile:
    """Check data, network and device; return what `join.json` says about them."""
    join = join_file(options)
    _check(options, join, output)
    return join


def write_join_file(folder: Path, join: JoinFile) -> None:
    """Write `join.json` into a client's folder."""
    with writing(folder):
        (folder / "join.json").write_text(join.model_dump_json(indent=1), encoding="utf-8")


def join_file(options: JoinOptions) -> JoinFile:
    """Return the command line as `join.json`; raise ConfigError if its options contradict each other."""
    if (options.data is None) == (options.share is None):
        raise ConfigError("give either --data, the client's samples, or --share, a config that splits a dataset")
    if options.share is not None:
        if options.image_size is not None:
            raise ConfigError(f"--image-size goes with --data; for --share set data.image_size in {options.share}")
        model = load_config(options.share, []).model
        data = ClientDataSection(share=ShareSection(data=model.data, partition=model.partition))
    else:
        assert options.data is not None
        if not options.data.exists():
            raise ConfigError(f"--data: {options.data} does not exist")
        if options.image_size is not None and not options.data.is_dir():
            raise ConfigError(f"--image-size is for a folder of images, and {options.data} is a file")
        data = ClientDataSection(path=str(options.data.resolve()), image_size=options.image_size)
    return JoinFile(data=data, model=options.model, device=options.device)


def _check(options: JoinOptions, join: JoinFile, output: Output) -> None:
    """Check device, network and data before anything starts; the terms are checked when they arrive."""
    resolve_device(options.device, "--device")
    find_model(options.model)
    with LoadingBar(output.console) as bar:
        try:
            check_samples(join.data, options.client, bar)
        except DataError as error:
            words = str(error) if options.share else str(error).replace("set data.image_size", "give --image-size")
            raise DataError(f"{'--share' if options.share else '--data'}: {words}") from error
