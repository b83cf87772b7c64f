"""`--live`: a page on this machine that follows a run and becomes its report at the end."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from html import escape
from importlib import resources
from pathlib import Path

from tinyproto.cli.live.server import HELD_SECONDS, LiveServer
from tinyproto.cli.live.state import COLUMNS, LiveState
from tinyproto.cli.terminal import Output
from tinyproto.config import Config
from tinyproto.errors import ConfigError, Interrupted, RunFolderError
from tinyproto.report import html
from tinyproto.report.page import document
from tinyproto.report.words import counted

FAREWELL_SECONDS = 5.0
"""Seconds that the command waits at its end for an open page to load the report."""


@contextmanager
def live_page(wanted: bool, config: Config, folder: Path, output: Output, *, new: bool) -> Iterator[LiveState | None]:
    """Serve the page while this is open, if it is wanted; `new` means that the folder is about to be created.

    At the end an open page loads the report, so that it stays usable when the command has ended.
    """
    if not wanted:
        yield None
        return
    if output.console.quiet:
        raise ConfigError("--live prints the address of its page, which --quiet hides; leave out one of them")
    state = LiveState(config, folder, new=new)
    try:
        server = LiveServer(page(config, folder), state.read)
    except OSError as error:
        raise RunFolderError(f"--live: cannot serve a page: {error.strerror or error}; leave out --live") from error
    output.say(f"live page, for this machine only: {server.address}")
    try:
        yield state
        server.end("The run is complete.", folder / "report.html")
    except (Interrupted, KeyboardInterrupt) as stopped:
        server.end("; ".join(filter(None, ("The run was interrupted", str(stopped)))), None)
        raise
    except BaseException as error:
        server.end(f"The run ended with an error: {error}", None)
        raise
    finally:
        with suppress(KeyboardInterrupt):
            if server.asked_at is not None and time.monotonic() - server.asked_at < HELD_SECONDS:
                server.delivered.wait(FAREWELL_SECONDS)
        server.shutdown()
        server.server_close()


def page(config: Config, folder: Path) -> str:
    """Return the page before the first state arrives."""
    model = config.model
    facts = (
        f"{counted(len(config.algorithms), 'method')}, {counted(len(model.seeds), 'seed')}, "
        f"{counted(model.train.rounds, 'round')}, preset {model.preset}"
    )
    rows = [[entry.title, *["–"] * (len(COLUMNS) - 1)] for entry in config.algorithms]
    caption = (
        "So far: accuracy in % at the last evaluation, mean over the seeds that have one, by own head, nearest global "
        "and nearest local prototype; bytes sent for training, up and down, by all clients and seeds."
    )
    numbers = html.element("div", html.table(COLUMNS, rows), id="numbers") + html.paragraph(caption, "quiet")
    who = html.element("h2", "Who is here") + html.element("ul", "", id="here")
    body = (
        html.element("h1", f"{escape(model.name)}: live")
        + html.paragraph(facts)
        + html.element("p", "Connecting …", id="status", role="status")
        + html.element("progress", value="0", max="1", id="done", aria_label="Rounds completed")
        + html.element(
            "p",
            html.element("span", "", id="rounds")
            + html.element("span", "", id="left")
            + html.element("button", "Pause", type="button", id="pause", aria_pressed="false"),
        )
        + html.element(
            "div", html.element("div", numbers + who) + html.element("figure", "", id="figure"), class_="figures"
        )
        + html.paragraph(f"The run folder is {folder}. At the end this page becomes {folder / 'report.html'}.", "quiet")
    )
    script = (resources.files("tinyproto.cli.live") / "live.js").read_text(encoding="utf-8")
    return document(f"{model.name}: live", body, script)
