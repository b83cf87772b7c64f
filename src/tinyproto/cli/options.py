"""Options that several verbs share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tinyproto.errors import ConfigError


def _folder(path: Path) -> Path:
    """Return the path; raise ConfigError if it, or a part of it, is a file."""
    for place in (path, *path.parents):
        if place.is_file():
            raise ConfigError(f"--runs: {place} is a file; name a folder, in which run folders are created")
    return path


ConfigFile = Annotated[
    Path,
    typer.Argument(metavar="CONFIG", help="A config file, or a built-in one such as quickstart.", show_default=False),
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="KEY=VALUE", help="Config keys to set, such as train.rounds=10.", show_default=False),
]
Runs = Annotated[Path, typer.Option(help="The folder to create run folders in.", callback=_folder)]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON; other output goes to standard error.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]
Live = Annotated[
    bool, typer.Option("--live", help="Follow the run on a page for this machine's browser; prints its address.")
]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Print a line per round.")]
