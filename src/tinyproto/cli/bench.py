"""`tinyproto bench`: measurements of this machine."""

from __future__ import annotations

import typer

bench = typer.Typer(
    name="bench",
    no_args_is_help=True,
    help="Measure this machine: rounds by trainer, aggregation at scale, many clients.",
    rich_markup_mode="markdown",
)


@bench.callback()
def root() -> None:
    """Measure this machine: rounds by trainer, aggregation at scale, many clients."""
