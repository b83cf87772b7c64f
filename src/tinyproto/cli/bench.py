"""`tinyproto bench`: measurements of this machine."""

from __future__ import annotations

from typing import Annotated

import typer

from tinyproto.cli.arguments import positive
from tinyproto.cli.options import Json, Verbose

bench = typer.Typer(
    name="bench",
    no_args_is_help=True,
    help="Measure this machine: rounds by trainer, aggregation at scale, many clients.",
    rich_markup_mode="markdown",
)


@bench.callback()
def root() -> None:
    """Measure this machine: rounds by trainer, aggregation at scale, many clients."""


@bench.command()
def round(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[CONFIG] [KEY=VALUE]...",
            help="A config file and config keys to set; without a file, made-up images of CIFAR-10's shape.",
            show_default=False,
        ),
    ] = None,
    trainers: Annotated[
        str, typer.Option(help="Trainers to compare, by comma; NAME*N has its clients in N worker processes.")
    ] = "eager",
    rounds: Annotated[
        int, typer.Option(parser=positive("--rounds"), metavar="INTEGER", help="Rounds that count, after the first.")
    ] = 5,
    naive: Annotated[
        str | None,
        typer.Option(
            help="Dotted name of the baseline; a checkout's benchmarks/naive if left out; none leaves it out."
        ),
    ] = None,
    samples: Annotated[
        int, typer.Option(parser=positive("--samples"), metavar="INTEGER", help="How many images to make up.")
    ] = 2000,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Compare trainers, and the round as published libraries write it, in turns on this machine.

    Shows seconds per phase, steps per second, how busy the device was, memory, and the ratio to the baseline; then
    class means and the three rules from given features.

    Examples:

    - tinyproto bench round configs/quickstart.yaml algorithms=[tinyproto_ft]
    - tinyproto bench round --trainers eager,eager*2 --rounds 3 --json
    """
    from tinyproto.cli.bench_round import bench_round
    from tinyproto.cli.terminal import Output

    bench_round(arguments or [], trainers, rounds, naive, samples, Output(json=json, verbose=verbose))
