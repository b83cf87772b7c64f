"""Options that several verbs share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from tinyproto.errors import ConfigError

ConfigFile = Annotated[
    Path,
    typer.Argument(metavar="CONFIG", help="A config file, or a built-in one such as quickstart.", show_default=False),
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="KEY=VALUE", help="Config keys to set, such as train.rounds=10.", show_default=False),
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON; other output goes to standard error.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Print a line per round.")]


def positive(option: str, at_most: int = 100_000) -> Callable[[str], int]:
    """Return a parser for an integer from 1 to `at_most` that raises a ConfigError naming the option."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = 0
        if not 1 <= value <= at_most:
            raise ConfigError(f"{option}: expected an integer from 1 to {at_most}, not {text!r}")
        return value

    return parse
