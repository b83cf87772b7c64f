"""`tinyproto serve`: a federation's coordinator, from the config to the table of results."""

from __future__ import annotations

import shlex
import shutil
import signal
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tinyproto.cli.federation_progress import FederationProgress
from tinyproto.cli.interrupt import StopOnInterrupt
from tinyproto.cli.live import live_page
from tinyproto.cli.live.state import LiveState
from tinyproto.cli.options import PREFIX, TransportName
from tinyproto.cli.run import conclude
from tinyproto.cli.terminal import Output
from tinyproto.config import Config, load_config
from tinyproto.config.load import stated
from tinyproto.errors import ConfigError, FederationError, Interrupted
from tinyproto.federation import require_transport
from tinyproto.federation.journal import Follower, Journal, writing
from tinyproto.federation.key_making import make_keys
from tinyproto.federation.keys import ServerKeys
from tinyproto.federation.processes import Leashed, split_address
from tinyproto.federation.terms import MqttPlace, ServeFile, agree, members, new_token, offered_terms
from tinyproto.report.words import counted
from tinyproto.tracking.lock import alone_in
from tinyproto.tracking.run_folder import SERVE_FILE, RunFolder, how_to_resume, is_federation, not_a_run
from tinyproto.tracking.trackers import check_installed

LOOK_SECONDS = 0.3
LISTEN = {TransportName.FLOWER: "127.0.0.1:8443", TransportName.MQTT: "127.0.0.1:8883"}
KEYS = Path("keys")
"""Defaults, if neither the command line nor the federation to resume has them."""


@dataclass(frozen=True)
class ServeOptions:
    """The command line of `tinyproto serve`."""

    config: Path
    overrides: tuple[str, ...]
    runs: Path
    keys: Path | None
    listen: str | None
    overwrite: bool
    resume: bool
    live: bool = False
    transport: TransportName | None = None
    broker: str | None = None  # HOST:PORT of a broker that is not ours
    broker_ca: str | None = None
    topic: str | None = None


class Host(Protocol):
    """The transport on the coordinator's machine: `flower.host.FlowerHost` or `mqtt.host.MqttHost`."""

    options: str
    farewell_seconds: float

    def start(self, folder: Path, largest_frame: int, tell: Callable[..., None]) -> MqttPlace | None:
        """Start everything that clients connect to; return the MQTT broker, if there is one."""
        ...

    def submit(self, folder: Path) -> Leashed:
        """Start the coordinator of a run folder; the process ends with the run."""
        ...

    def watch(self) -> None:
        """Raise FederationError if something that was started has ended and cannot be started again."""
        ...

    def close(self) -> None:
        """End what was started."""
        ...


def serve_config(options: ServeOptions, output: Output) -> None:
    """Run a federation from a config and keys into a run folder, until clients have completed all rounds."""
    folder, config, before = _source(options)
    check_installed(config.model.tracking)
    with live_page(options.live, config, folder, output, new=not options.resume) as live:
        _serve(options, output, folder, config, before, live)
        conclude(output, config, folder)


def _serve(
    options: ServeOptions,
    output: Output,
    folder: Path,
    config: Config,
    before: ServeFile | None,
    live: LiveState | None,
) -> None:
    """Start what carries the federation and follow it to its end."""
    other = _other_broker(options, before)
    transport = _transport(options, before)
    listen = options.broker or options.listen or (before and before.listen) or LISTEN[transport]
    address = split_address(listen, "--broker" if options.broker else "--listen")
    with ExitStack() as stack:
        stack.enter_context(alone_in(folder))
        if options.resume and RunFolder(folder).read_results():  # it has already ended
            return
        keys = _members_keys(_keys(options, folder, before), members(config), output, resume=options.resume)
        keys.check()
        served = ServeFile(
            config=config.resolved(),
            federation=before.federation if before is not None else new_token(),
            resume=options.resume,
            keys={str(client): key for client, key in keys.public_keys().items()},
            listen=listen,
            key_folder=str(keys.folder.absolute()),
            mqtt=before.mqtt if before is not None else other,
        )
        largest = agree(offered_terms(config, served.federation), config.model.models).expectation.largest_frame
        host = _host(transport, keys, address, other)  # before anything is replaced
        stack.callback(host.close)
        stop = stack.enter_context(StopOnInterrupt(signal.SIGTERM, signal.SIGHUP))
        undo = stack.enter_context(ExitStack())
        aside = folder.with_name(f".{folder.name}.replaced")
        if not options.resume:
            new = RunFolder.create(folder, overwrite=options.overwrite, aside=aside)
            undo.callback(_restore, new, aside)
            new.write_config(stated(config.resolved()))
        try:
            with writing(folder):
                served.write(folder)
            place = host.start(folder, largest, Journal(folder / "progress.jsonl").tell)
            with writing(folder):
                served.model_copy(update={"mqtt": place}).write(folder)
        except FederationError:
            if not stop.wanted:  # Ctrl-C ends the processes that were started, too
                raise
        if stop.wanted:
            raise Interrupted(f"resume with: {how_to_resume(folder)}" if options.resume else "nothing has started")
        undo.pop_all()
        shutil.rmtree(aside, ignore_errors=True)
        progress = stack.enter_context(FederationProgress(output, config.model.evaluate.rule))
        output.say(
            f"{config.model.name}: {'using the broker' if other else 'listening'} at {listen} for "
            f"{counted(len(keys.clients), 'client')}: tinyproto join {host.options}{_where(listen, other)} "
            "--client-id N --keys keys/client-N ..."
        )
        if live is not None:
            live.here = lambda: progress.here(sorted(keys.clients))
        _watch(folder, host, progress, stop)


def _restore(new: RunFolder, aside: Path) -> None:
    """Remove a run that did not start, and put back the one that it was to replace."""
    new.remove()
    if aside.exists():
        aside.rename(new.path)


def _transport(options: ServeOptions, before: ServeFile | None) -> TransportName:
    """Return what carries the federation: on resume what carried it before."""
    if before is None:
        return options.transport or (TransportName.MQTT if options.broker else TransportName.FLOWER)
    used = TransportName.FLOWER if before.mqtt is None else TransportName.MQTT
    if options.transport not in (None, used) or (options.broker is not None and used is TransportName.FLOWER):
        raise ConfigError(
            f"this federation runs over {used.value}; leave out --transport and --broker, or start another one"
        )
    return used


def _other_broker(options: ServeOptions, before: ServeFile | None) -> MqttPlace | None:
    """Return the broker that --broker names, or that a federation to resume used; None for one of our own.

    A federation that moves to another broker keeps its topics and authority, unless others are named.
    """
    known = before.mqtt if before is not None and before.mqtt is not None and before.mqtt.foreign else None
    if options.broker is None:
        if known is not None and options.listen is not None:
            raise ConfigError("this federation uses a broker that runs already; leave out --listen")
        return known
    host, port = split_address(options.broker, "--broker")
    authority, prefix = (None, PREFIX) if known is None else (known.authority, known.prefix)
    return MqttPlace(
        host=host, port=port, foreign=True,
        authority=authority if options.broker_ca is None else options.broker_ca,
        prefix=prefix if options.topic is None else options.topic,
    )  # fmt: skip


def _host(transport: TransportName, keys: ServerKeys, address: tuple[str, int], other: MqttPlace | None) -> Host:
    """Return what carries the federation; raise FederationError if something that it needs is missing."""
    require_transport(transport.value)
    if transport is TransportName.FLOWER:
        from tinyproto.federation.flower.host import FlowerHost

        return FlowerHost(keys, address)
    from tinyproto.federation.mqtt.host import MqttHost

    return MqttHost(keys, address, other)


def _where(listen: str, other: MqttPlace | None) -> str:
    """Return the options with which a client finds the coordinator."""
    if other is None:
        return f"--server HOST:{listen.rpartition(':')[2]}"
    authority = f" --broker-ca {shlex.quote(other.authority)}" if other.authority is not None else ""
    topic = f" --topic {shlex.quote(other.prefix)}" if other.prefix != PREFIX else ""
    return f"--broker {listen}{authority}{topic}"


def _source(options: ServeOptions) -> tuple[Path, Config, ServeFile | None]:
    """Return the run folder and its config, and on resume, for which the run folder is named, its serve.json."""
    folder = options.config
    if not options.resume:
        if folder.is_dir():
            raise ConfigError(f"{folder} is a folder; add --resume to continue the federation in it")
        config = load_config(folder, list(options.overrides))
        return options.runs / config.model.name, config, None
    if not folder.exists():
        raise not_a_run(folder)
    if not folder.is_dir() or options.overrides:
        raise ConfigError(
            "--resume takes a run folder and no overrides, since a federation keeps the config it started with: "
            "`tinyproto serve runs/NAME --resume`"
        )
    RunFolder.open(folder)
    if not is_federation(folder):
        raise FederationError(f"{folder} holds no federation to resume: {SERVE_FILE} is missing")
    return folder, load_config(folder / "config.yaml", []), ServeFile.read(folder)


def _keys(options: ServeOptions, folder: Path, before: ServeFile | None) -> ServerKeys:
    """Open the keys that --keys names, or that the federation started with; raise if a client's key has changed.

    Flower unregisters for good every key that is not in the folder, so another federation's keys would end this one.
    """
    known = (before.keys if before is not None else None) or {}
    remembered = Path(before.key_folder) if before is not None and before.key_folder is not None else None
    if options.keys is None and remembered is not None and not remembered.is_dir():
        raise FederationError(f"{remembered}, the folder of the keys of {folder}, is missing; name it with --keys")
    keys = ServerKeys.open(options.keys or remembered or KEYS)
    same = keys.only([client for client in keys.clients if str(client) in known])
    for client, key in same.public_keys().items():
        if key != known[str(client)]:
            raise FederationError(
                f"{keys.clients[client]} is not the key of client {client} in {folder}; name the right folder with "
                "--keys, or --resume once without this client's key to replace it"
            )
    return keys


def _members_keys(keys: ServerKeys, clients: int, output: Output, *, resume: bool) -> ServerKeys:
    """Return the members' keys. A new federation needs all of them; on resume a client without one is excluded."""
    present = [client for client in range(clients) if client in keys.clients]
    missing = [client for client in range(clients) if client not in keys.clients]
    if missing and not (resume and present):
        raise FederationError(
            f"{keys.folder} has no key for client {missing[0]}; make it with "
            f"`tinyproto serve --init {keys.folder} --clients {clients}`"
        )
    if missing:
        excluded = f"client{'s' if len(missing) > 1 else ''} {', '.join(map(str, missing))}"
        output.say(f"{keys.folder} has no key for {excluded}: excluded")
    return keys.only(present)


def _watch(folder: Path, host: Host, progress: FederationProgress, stop: StopOnInterrupt) -> None:
    """Submit the run and show its events until it is complete; raise if it fails or is interrupted."""
    resume = f"resume with: {how_to_resume(folder)}"
    events = Follower(folder / "progress.jsonl")
    run = host.submit(folder)
    try:
        while not progress.over:
            ended = run.wait(LOOK_SECONDS)
            for event in events.new():
                progress.tell(event)
            if progress.over:
                run.wait(host.farewell_seconds)
                return
            if stop.wanted:
                raise Interrupted(resume)
            try:
                host.watch()
            except FederationError as error:
                raise FederationError(f"{error}; {resume}") from error
            if ended:
                raise FederationError(progress.failure or f"the coordinator ended; its log is {run.log}; {resume}")
    finally:
        run.stop()


def init_keys(folder: Path, clients: int, hosts: Sequence[str], output: Output) -> None:
    """Make the missing keys, and say which folder belongs on which machine."""
    made = make_keys(folder, clients, hosts)
    output.say(f"{folder}/server      for this machine: a certificate for {', '.join(made.names)}")
    first = shlex.quote(f"{folder}/client-0")
    output.say(f"{folder}/client-N    for client N only, for example: scp -r {first} DEVICE:tinyproto/keys/")
    output.say(f"{folder}/authority   signs certificates; keep it where no other machine can read it")
    whose = f" (client {', '.join(map(str, made.clients))})" if 0 < len(made.clients) < clients else ""
    keys = f"{counted(len(made.clients), 'new key')}{whose}"
    output.say(f"{keys}; {'a new' if made.certificate else 'the same'} certificate")
    if made.authority and len(made.clients) < clients:
        output.say(f"{folder}/server/ca.crt is new; a client that no longer trusts this coordinator needs a copy")
    if made.completed:
        whose = ", ".join(map(str, made.completed))
        output.say(f"{folder}/client-N has new files (client {whose}); for MQTT, copy them to these clients")
    if made.unsigned:
        output.say(
            f"{folder}/authority/ca.key is missing; only MQTT needs what it did not sign: {', '.join(made.unsigned)}"
        )
    output.result({
        "folder": str(folder), "names": list(made.names), "new_clients": list(made.clients),
        "new_certificate": made.certificate, "new_authority": made.authority, "completed": list(made.completed),
        "unsigned": list(made.unsigned),
    })  # fmt: skip
