"""`tinyproto serve`: a federation's coordinator, from the config to the table of results."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from tinyproto.cli.federation_progress import FederationProgress
from tinyproto.cli.interrupt import StopOnInterrupt
from tinyproto.cli.live import live_page
from tinyproto.cli.live.state import LiveState
from tinyproto.cli.run import conclude
from tinyproto.cli.terminal import Output
from tinyproto.config import Config, load_config
from tinyproto.config.load import stated
from tinyproto.errors import ConfigError, FederationError, Interrupted
from tinyproto.federation.flower.gate import Gate, OpenGate, listening
from tinyproto.federation.flower.processes import SuperLink, split_address
from tinyproto.federation.journal import Follower, Journal, writing
from tinyproto.federation.keys import ServerKeys, make_keys
from tinyproto.federation.terms import ServeFile, agree, members, new_token, offered_terms
from tinyproto.report.words import counted
from tinyproto.tracking.lock import alone_in
from tinyproto.tracking.run_folder import SERVE_FILE, RunFolder, how_to_resume, is_federation, not_a_run
from tinyproto.tracking.trackers import check_installed

LOOK_SECONDS = 0.3
LISTEN, KEYS = "127.0.0.1:8443", Path("keys")
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
    """Start Flower's processes and follow the federation to its end."""
    listen = options.listen or (before and before.listen) or LISTEN
    host, port = split_address(listen, "--listen")
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
        )
        largest = agree(offered_terms(config, served.federation), config.model.models).expectation.largest_frame
        opened = stack.enter_context(listening(host, port))  # before anything is replaced
        stop = stack.enter_context(StopOnInterrupt(signal.SIGTERM, signal.SIGHUP))
        undo = stack.enter_context(ExitStack())
        aside = folder.with_name(f".{folder.name}.replaced")
        if not options.resume:
            new = RunFolder.create(folder, overwrite=options.overwrite, aside=aside)
            undo.callback(_restore, new, aside)
            new.write_config(stated(config.resolved()))
        try:
            superlink = _start(stack, folder, served, keys)
        except FederationError:
            if not stop.wanted:  # Ctrl-C ends Flower's processes, too
                raise
        if stop.wanted:
            raise Interrupted(f"resume with: {how_to_resume(folder)}" if options.resume else "nothing has started")
        tell = Journal(folder / "progress.jsonl").tell
        gate = OpenGate(Gate(superlink.address, keys, largest), keys, opened, tell)
        stack.callback(gate.close)
        undo.pop_all()
        shutil.rmtree(aside, ignore_errors=True)
        progress = stack.enter_context(FederationProgress(output, config.model.evaluate.rule))
        output.say(
            f"{config.model.name}: listening at {listen} for {counted(len(keys.clients), 'client')}: "
            f"tinyproto join --server HOST:{port} --client-id N --keys keys/client-N ..."
        )
        if live is not None:
            live.here = lambda: progress.here(sorted(keys.clients))
        _watch(folder, superlink, progress, stop)


def _restore(new: RunFolder, aside: Path) -> None:
    """Remove a run that did not start, and put back the one that it was to replace."""
    new.remove()
    if aside.exists():
        aside.rename(new.path)


def _start(stack: ExitStack, folder: Path, served: ServeFile, keys: ServerKeys) -> SuperLink:
    """Return a SuperLink that answers and has the clients' keys registered."""
    with writing(folder):
        served.write(folder)
    superlink = SuperLink(folder / "flower", keys)
    stack.callback(superlink.stop)
    superlink.wait_until_up()
    superlink.register()
    return superlink


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


def _watch(folder: Path, superlink: SuperLink, progress: FederationProgress, stop: StopOnInterrupt) -> None:
    """Submit the run and show its events until it is complete; raise if it fails or is interrupted."""
    resume = f"resume with: {how_to_resume(folder)}"
    events = Follower(folder / "progress.jsonl")
    run = superlink.submit(folder)
    try:
        while not progress.over:
            ended = run.wait(LOOK_SECONDS)
            for event in events.new():
                progress.tell(event)
            if progress.over:
                return
            if stop.wanted:
                raise Interrupted(resume)
            if superlink.status is not None:
                raise FederationError(f"Flower's SuperLink ended; its log is {superlink.log}; {resume}")
            if ended:
                raise FederationError(progress.failure or f"Flower ended the run; its log is {run.log}; {resume}")
    finally:
        run.stop()


def init_keys(folder: Path, clients: int, hosts: Sequence[str], output: Output) -> None:
    """Make the missing keys, and say which folder belongs on which machine."""
    made = make_keys(folder, clients, hosts)
    output.say(f"{folder}/server      for this machine: a certificate for {', '.join(made.names)}")
    output.say(f"{folder}/client-N    for client N only, for example: scp -r {folder}/client-0 DEVICE:tinyproto/keys/")
    output.say(f"{folder}/authority   signs certificates; keep it where no other machine can read it")
    whose = f" (client {', '.join(map(str, made.clients))})" if 0 < len(made.clients) < clients else ""
    keys = f"{counted(len(made.clients), 'new key')}{whose}"
    output.say(f"{keys}; {'a new' if made.certificate else 'the same'} certificate")
    if made.authority and len(made.clients) < clients:
        output.say(f"{folder}/server/ca.crt is new; a client that no longer trusts this coordinator needs a copy")
    output.result({
        "folder": str(folder), "names": list(made.names), "new_clients": list(made.clients),
        "new_certificate": made.certificate, "new_authority": made.authority,
    })  # fmt: skip
