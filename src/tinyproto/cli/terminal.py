"""Where output goes: words for people, JSON for programs."""

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
    """The kind of table that every verb prints: a line under the header, a caption below."""
    return Table(box=box.SIMPLE_HEAD, caption_justify="left", padding=(0, 1, 0, 0))


def facts_table(facts: Iterable[tuple[str, str]]) -> Table:
    """Names in bold and what there is to say of each; nothing in either is markup."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    for name, words in facts:
        table.add_row(escape(name), escape(words))
    return table


class Output:
    """What a verb says. With `json`, words go to standard error, so that standard output is one JSON value."""

    def __init__(self, *, json: bool = False, quiet: bool = False, verbose: bool = False) -> None:
        if quiet and verbose:
            raise ConfigError("--quiet and --verbose exclude each other")
        self.verbose = verbose
        self.wants_json = json
        self.console = Console(highlight=False, stderr=json, quiet=quiet)
        if not self.console.is_terminal:
            self.console = Console(highlight=False, stderr=json, quiet=quiet, width=PLAIN_WIDTH)

    @property
    def has_bars(self) -> bool:
        """Whether progress can be shown as bars that move."""
        return self.console.is_terminal and not self.console.quiet

    def say(self, words: str) -> None:
        """One line, however long; nothing in it is markup."""
        self.console.print(words, soft_wrap=True, markup=False)

    def result(self, value: Any, indent: int | None = 1) -> None:
        """What was asked for with `--json`; nothing without."""
        if self.wants_json:
            print(json.dumps(value, indent=indent, ensure_ascii=False))
