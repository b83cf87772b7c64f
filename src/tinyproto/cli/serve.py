"""`tinyproto serve`: a federation's coordinator, from the config to the table."""

from __future__ import annotations

import json
import signal
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tinyproto.cli.federation_progress import FederationProgress
from tinyproto.cli.interrupt import StopOnInterrupt
from tinyproto.cli.run import conclude
from tinyproto.cli.terminal import Output
from tinyproto.config import Config, load_config
from tinyproto.errors import ConfigError, FederationError, Interrupted
from tinyproto.flower.certificates import ServerKeys
from tinyproto.flower.files import served_alone, writing
from tinyproto.flower.follower import Follower
from tinyproto.flower.gate import Gate, OpenGate, listening
from tinyproto.flower.processes import Kept, SuperLink, split_address
from tinyproto.flower.terms import agree, members, new_token, offered_terms
from tinyproto.report.words import counted
from tinyproto.tracking.differences import differences
from tinyproto.tracking.run_folder import RunFolder, how_to_go_on, write_whole

LOOK_SECONDS = 0.3


@dataclass(frozen=True)
class Asked:
    """What the command line says."""

    config: Path
    overrides: tuple[str, ...]
    runs: Path
    keys: Path
    listen: str
    overwrite: bool
    resume: bool


def serve_config(asked: Asked, output: Output) -> None:
    """A config and keys in, a run folder out, once clients have played all rounds."""
    host, port = split_address(asked.listen, "--listen")
    keys = ServerKeys.open(asked.keys)
    folder, config, before = _source(asked)
    with ExitStack() as stack:
        stack.enter_context(served_alone(folder))
        if asked.resume and RunFolder(folder).read_results():  # it has ended already
            conclude(output, config, folder)
            return
        token = str(before["federation"]) if before is not None else new_token()
        largest = agree(offered_terms(config, token), config.model.models).expectation.largest_frame
        taking_part = _taking_part(keys, members(config), asked, output)
        opened = stack.enter_context(listening(host, port))  # before anything is replaced
        run_folder = RunFolder(folder) if asked.resume else RunFolder.create(folder, overwrite=asked.overwrite)
        if not asked.resume:
            run_folder.write_config(config.resolved())
        stack.enter_context(writing(folder))
        stop = stack.enter_context(StopOnInterrupt(signal.SIGTERM, signal.SIGHUP))
        _write_serve_file(folder, config, token, asked.resume, keys, taking_part)
        superlink = SuperLink(folder / "flower", keys)
        stack.callback(superlink.stop)
        superlink.wait_until_up()
        superlink.register({client: keys.clients[client] for client in taking_part})
        gate = OpenGate(Gate(superlink.address, keys, largest), host, port, keys, opened)
        stack.callback(gate.close)
        progress = stack.enter_context(FederationProgress(output, config.model.evaluate.rule))
        output.say(
            f"{config.model.name}: open at {asked.listen} for {counted(len(taking_part), 'client')}: "
            f"tinyproto join --server HOST:{port} --client-id N --keys client-N ..."
        )
        _watch(folder, superlink, progress, stop)
    conclude(output, config, folder)


def _source(asked: Asked) -> tuple[Path, Config, dict[str, Any] | None]:
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
    file = folder / "serve.json"
    try:
        before: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise FederationError(f"{folder} holds no federation to go on with: {file.name} cannot be read") from error
    begun = load_config(folder / "config.yaml", [])
    changed = differences([begun.resolved(), (config or begun).resolved()])
    if changed:
        changes = ", ".join(f"{key}: {then!r} → {now!r}" for key, (then, now) in changed.items())
        raise ConfigError(
            f"the federation in {folder} goes on with the config it began with, which is another ({changes}); "
            f"`{how_to_go_on(folder)}` goes on with it"
        )
    return folder, begun, before


def _taking_part(keys: ServerKeys, clients: int, asked: Asked, output: Output) -> list[int]:
    """Clients that have a key. A federation begins with all; taking keys away shuts clients out when it goes on."""
    there = [client for client in range(clients) if client in keys.clients]
    missing = [client for client in range(clients) if client not in keys.clients]
    if missing and not (asked.resume and there):
        raise FederationError(
            f"{asked.keys} has no key for client {missing[0]}; "
            f"`tinyproto serve --init {asked.keys} --clients {clients}` makes it"
        )
    if missing:
        who = f"client{'s' if len(missing) > 1 else ''} {', '.join(map(str, missing))}"
        output.say(f"{asked.keys} has no key for {who}: no part in it without one")
    return there


def _write_serve_file(
    folder: Path, config: Config, token: str, resume: bool, keys: ServerKeys, clients: Sequence[int]
) -> None:
    public = keys.public_keys()
    told = {str(client): public[client] for client in clients}
    content = {"config": config.resolved(), "federation": token, "resume": resume, "keys": told}
    write_whole(folder / "serve.json", json.dumps(content, indent=1))


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
            if stop.wanted:
                raise Interrupted(f"go on with: {how_to_go_on(folder)}")
            if superlink.process.ended:
                raise FederationError(
                    f"Flower's SuperLink ended; its log is {superlink.process.log}, and "
                    f"`{how_to_go_on(folder)}` goes on"
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
        progress.failure or f"Flower ended the run; its log is {run.log}, and `{how_to_go_on(folder)}` goes on"
    )
