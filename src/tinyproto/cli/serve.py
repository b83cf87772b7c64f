"""`tinyproto serve`: a federation's coordinator, from the config to the table."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from tinyproto.cli.federation_progress import FederationProgress
from tinyproto.cli.interrupt import StopOnInterrupt
from tinyproto.cli.run import conclude
from tinyproto.cli.terminal import Output
from tinyproto.config import Config, load_config
from tinyproto.config.load import differences
from tinyproto.errors import ConfigError, FederationError, Interrupted
from tinyproto.federation.certificates import ServerKeys, make_keys
from tinyproto.federation.files import ServeFile, writing
from tinyproto.federation.flower.gate import Gate, OpenGate, listening
from tinyproto.federation.flower.processes import Kept, SuperLink, split_address
from tinyproto.federation.journal import Follower, Journal
from tinyproto.federation.terms import agree, members, new_token, offered_terms
from tinyproto.report.words import counted
from tinyproto.tracking.lock import alone_in
from tinyproto.tracking.run_folder import SERVE_FILE, NewRun, RunFolder, how_to_resume, is_federation

LOOK_SECONDS = 0.3
LISTEN, KEYS = "127.0.0.1:8443", Path("keys")
"""Where nothing else was said, now or when it began."""


@dataclass(frozen=True)
class Asked:
    """What the command line says."""

    config: Path
    overrides: tuple[str, ...]
    runs: Path
    keys: Path | None
    listen: str | None
    overwrite: bool
    resume: bool


def serve_config(asked: Asked, output: Output) -> None:
    """A config and keys in, a run folder out, once clients have played all rounds."""
    folder, config, before = _source(asked)
    listen = asked.listen or (before and before.listen) or LISTEN
    host, port = split_address(listen, "--listen")
    with ExitStack() as stack:
        stack.enter_context(alone_in(folder))
        if asked.resume and RunFolder(folder).read_results():  # it has ended already
            conclude(output, config, folder)
            return
        keys = _taking_part(_keys(asked, folder, before), members(config), output, resume=asked.resume)
        keys.check()
        told = _told(asked, config, before, keys, listen)
        largest = agree(offered_terms(config, told.federation), config.model.models).setup.expectation.largest_frame
        opened = stack.enter_context(listening(host, port))  # before anything is replaced
        stop = stack.enter_context(StopOnInterrupt(signal.SIGTERM, signal.SIGHUP))
        new = None if asked.resume else stack.enter_context(NewRun(folder, overwrite=asked.overwrite))
        if new is not None:
            new.folder.write_config(config.resolved())
        words = f"go on with: {how_to_resume(folder)}" if new is None else "nothing has begun"
        superlink = _started(stack, folder, told, keys, lambda: _end_if_wanted(stop, words))
        journal = Journal(folder / "progress.jsonl")
        gate = OpenGate(Gate(superlink.address, keys, largest), host, port, keys, opened, journal.tell)
        stack.callback(gate.close)
        if new is not None:
            new.keep()
        progress = stack.enter_context(FederationProgress(output, config.model.evaluate.rule))
        output.say(
            f"{config.model.name}: open at {listen} for {counted(len(keys.clients), 'client')}: "
            f"tinyproto join --server HOST:{port} --client-id N --keys client-N ..."
        )
        _watch(folder, superlink, progress, stop)
    conclude(output, config, folder)


def _told(asked: Asked, config: Config, before: ServeFile | None, keys: ServerKeys, listen: str) -> ServeFile:
    """What the ServerApp has to know, and this command when it goes on."""
    return ServeFile(
        config=config.resolved(),
        federation=before.federation if before is not None else new_token(),
        resume=asked.resume,
        keys={str(client): key for client, key in keys.public_keys().items()},
        listen=listen,
        key_folder=str(keys.folder.absolute()),
    )


def _started(stack: ExitStack, folder: Path, told: ServeFile, keys: ServerKeys, look: Callable[[], None]) -> SuperLink:
    """A SuperLink that answers and has the clients' keys; `look` may end that before."""
    with writing(folder):
        told.write(folder)
    superlink = SuperLink(folder / "flower", keys, look)
    stack.callback(superlink.stop)
    superlink.wait_until_up()
    superlink.register(keys.clients)
    look()
    return superlink


def _end_if_wanted(stop: StopOnInterrupt, words: str) -> None:
    if stop.wanted:
        raise Interrupted(words)


def _source(asked: Asked) -> tuple[Path, Config, ServeFile | None]:
    """The run folder, its config, and what was served there before; a run folder may be named in place of a config.

    What is resumed goes on with the config that it began with; a file that says something else is refused.
    """
    is_folder = asked.config.is_dir()
    if is_folder and not asked.resume:
        raise ConfigError(f"{asked.config} is a folder; --resume goes on with the federation in it")
    if is_folder and asked.overrides:
        raise ConfigError("a federation goes on with the config it began with; leave out the overrides")
    config = None if is_folder else load_config(asked.config, list(asked.overrides))
    folder = asked.config if config is None else asked.runs / config.model.name
    if not asked.resume:
        assert config is not None
        return folder, config, None
    RunFolder.open(folder)
    if not is_federation(folder):
        raise FederationError(f"{folder} holds no federation to go on with: there is no {SERVE_FILE} in it")
    before = ServeFile.read(folder)
    begun = load_config(folder / "config.yaml", [])
    changed = differences([begun.resolved(), (config or begun).resolved()])
    if changed:
        changes = ", ".join(f"{key}: {then!r} → {now!r}" for key, (then, now) in changed.items())
        raise ConfigError(
            f"the federation in {folder} goes on with the config it began with, which is another ({changes}); "
            f"`{how_to_resume(folder)}` goes on with it"
        )
    return folder, begun, before


def _keys(asked: Asked, folder: Path, before: ServeFile | None) -> ServerKeys:
    """From the folder that is named, or that it began with. Keys that go on are those of before, each of them.

    What Flower no longer finds among the registered it takes back for good, so another federation's keys end this one.
    """
    known = (before.keys if before is not None else None) or {}
    remembered = Path(before.key_folder) if before is not None and before.key_folder is not None else None
    if asked.keys is None and remembered is not None and not remembered.is_dir():
        raise FederationError(f"{remembered}, where the keys of {folder} were, is not there; --keys names their folder")
    keys = ServerKeys.open(asked.keys or remembered or KEYS)
    had = keys.of([client for client in keys.clients if str(client) in known])
    for client, key in had.public_keys().items():
        if key != known[str(client)]:
            raise FederationError(
                f"{keys.clients[client]} is not the key that client {client} has in {folder}; --keys names the folder "
                f"of its keys, and a new key is taken after a --resume without the old one"
            )
    return keys


def _taking_part(keys: ServerKeys, clients: int, output: Output, *, resume: bool) -> ServerKeys:
    """Keys of members. A federation begins with all; taking keys away shuts clients out when it goes on."""
    there = [client for client in range(clients) if client in keys.clients]
    missing = [client for client in range(clients) if client not in keys.clients]
    if missing and not (resume and there):
        raise FederationError(
            f"{keys.folder} has no key for client {missing[0]}; "
            f"`tinyproto serve --init {keys.folder} --clients {clients}` makes it"
        )
    if missing:
        who = f"client{'s' if len(missing) > 1 else ''} {', '.join(map(str, missing))}"
        output.say(f"{keys.folder} has no key for {who}: no part in it without one")
    return keys.of(there)


def _watch(folder: Path, superlink: SuperLink, progress: FederationProgress, stop: StopOnInterrupt) -> None:
    """Submit the run and show what happens until it is over."""
    events = Follower(folder / "progress.jsonl")
    run = superlink.submit(folder)
    try:
        while not progress.over:
            for event in events.new():
                progress.tell(event)
            if progress.over:
                break
            _end_if_wanted(stop, f"go on with: {how_to_resume(folder)}")
            if superlink.process.ended:
                raise FederationError(
                    f"Flower's SuperLink ended; its log is {superlink.process.log}, and "
                    f"`{how_to_resume(folder)}` goes on"
                )
            if run.wait(LOOK_SECONDS):
                _last_words(events, progress, run, folder)
    finally:
        run.stop()


def _last_words(events: Follower, progress: FederationProgress, run: Kept, folder: Path) -> None:
    """The run is over: because all is done, or because something was wrong."""
    for event in events.new():
        progress.tell(event)
    if progress.over:
        return
    raise FederationError(
        progress.failure or f"Flower ended the run; its log is {run.log}, and `{how_to_resume(folder)}` goes on"
    )


AUTHORITY = {
    "certified again": "; the same authority with another ca.crt, beside which clients' own stay good",
    "new": "; a new authority: each client needs the new ca.crt",
}


def init_keys(folder: Path, clients: int, hosts: Sequence[str], output: Output) -> None:
    """Make what is not there yet, and say what belongs on which machine."""
    made = make_keys(folder, clients, hosts)
    output.say(f"{folder}/server      for this machine: a certificate for {', '.join(made.names)}")
    here = next((number for number in range(clients) if number not in made.elsewhere), "N")
    copied = f"scp -r {folder}/client-{here} DEVICE:tinyproto/keys/"
    output.say(f"{folder}/client-N    for client N and nobody else, such as: {copied}")
    output.say(f"{folder}/authority   makes more certificates; keep it where no other machine reads it")
    whose = f" (client {', '.join(map(str, made.clients))})" if 0 < len(made.clients) < clients else ""
    words = f"{counted(len(made.clients), 'new key')}{whose}; {'a new' if made.certificate else 'the same'} certificate"
    output.say(f"{words}{AUTHORITY.get(made.authority, '')}")
    if made.copied:
        output.say(f"ca.crt is written anew for: {', '.join(made.copied)}")
    if made.names_lost:
        output.say("no certificate of before could be read: --host adds the names that clients know this machine by")
    if made.elsewhere:
        output.say(
            f"not here: the private key of client {', '.join(map(str, made.elsewhere))}; where one is lost, remove "
            f"{folder}/server/clients/N.pub and give this command again"
        )
    output.result({"folder": str(folder), "names": list(made.names), "new_clients": list(made.clients),
                   "new_certificate": made.certificate, "new_authority": made.authority in ("first", "new"),
                   "copied": list(made.copied), "elsewhere": list(made.elsewhere)})  # fmt: skip
