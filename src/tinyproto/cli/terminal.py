"""Output of the command: words for people, JSON for programs."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from io import TextIOWrapper
from typing import Any

import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tinyproto.errors import ConfigError, Interrupted, TinyProtoError

PLAIN_WIDTH = 120
USER_ERROR = 2


def plain_table() -> Table:
    """Return an empty table in the style of every verb: a line under the header, a caption below."""
    return Table(box=box.SIMPLE_HEAD, caption_justify="left", padding=(0, 1, 0, 0))


def facts_table(facts: Iterable[tuple[str, str]]) -> Table:
    """Return a table of names in bold and their values, without markup."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    for name, words in facts:
        table.add_row(escape(name), escape(words))
    return table


class Output:
    """The output of a verb. With `json`, words go to standard error, so that standard output is one JSON value."""

    def __init__(self, *, json: bool = False, quiet: bool = False, verbose: bool = False) -> None:
        if quiet and verbose:
            raise ConfigError("--quiet and --verbose exclude each other; leave out one of them")
        self.verbose = verbose
        self.wants_json = json
        self.console = Console(highlight=False, stderr=json, quiet=quiet)
        if not self.console.is_terminal:
            self.console = Console(highlight=False, stderr=json, quiet=quiet, width=PLAIN_WIDTH)

    @property
    def has_bars(self) -> bool:
        """Return True if progress can be shown as moving bars."""
        return self.console.is_terminal and not self.console.quiet

    def say(self, words: str) -> None:
        """Print one line of any length, without markup."""
        self.console.print(words, soft_wrap=True, markup=False)

    def result(self, value: Any, indent: int | None = 1) -> None:
        """Print the result if `--json` asks for it."""
        if self.wants_json:
            print(json.dumps(value, indent=indent, ensure_ascii=False))


def run_app(app: typer.Typer, name: str) -> None:
    """Run a command line: an error that a user can cause becomes one sentence on stderr and exit status 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # a terminal without Unicode shows ? instead of failing
            stream.reconfigure(errors="replace")
    try:
        app()
    except Interrupted as stopped:
        print(f"{name}: interrupted; {stopped}", file=sys.stderr)
        sys.exit(stopped.status)
    except TinyProtoError as error:
        print(f"{name}: error: {error}", file=sys.stderr)
        sys.exit(USER_ERROR)
    except OSError:
        if _can_print(name, "\n"):
            raise
        sys.exit(USER_ERROR)
    except SystemExit as ended:
        sys.exit(ended.code if _can_print(name) else USER_ERROR)


def _can_print(name: str, more: str = "") -> bool:
    """Write out what was printed, and more; if that fails, such as on a full disk, say so and discard the rest."""
    try:
        print(end=more, flush=True)
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python fails again at its end
        print(f"{name}: error: cannot write to standard output: {error.strerror or error}", file=sys.stderr)
        return False
    return True
