"""Output of the command: words for people, JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tinyproto.errors import ConfigError

PLAIN_WIDTH = 120


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
