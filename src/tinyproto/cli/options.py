"""Options that several verbs share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from tinyproto.errors import ConfigError

ConfigFile = Annotated[
    Path,
    typer.Argument(
        metavar="CONFIG", help="A config file, or the name of a built-in one, such as quickstart.", show_default=False
    ),
]
Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Config keys to set, dotted.", show_default=False)
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON; words go to standard error.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing but errors.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Say more: a line per round.")]


def positive(option: str, at_most: int = 100_000) -> Callable[[str], int]:
    """A parser for a whole number from 1 on; what is wrong is said in one sentence, as everywhere else."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = 0
        if not 1 <= value <= at_most:
            raise ConfigError(f"{option}: a whole number from 1 to {at_most} is needed, not {text!r}")
        return value

    return parse
