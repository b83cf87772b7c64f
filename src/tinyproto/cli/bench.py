"""`tinyproto bench`: measurements of this machine."""

from __future__ import annotations

from typing import Annotated

import typer

from tinyproto.cli.options import Json

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
def aggregate(
    uploads: Annotated[int, typer.Option(help="How many uploads are taken in.")] = 1_000_000,
    classes: Annotated[int, typer.Option(help="K.")] = 100,
    held: Annotated[int, typer.Option(help="Classes that a client holds, so rows per upload.")] = 46,
    cps_dim: Annotated[int, typer.Option(help="s, values per row.")] = 50,
    proto_dim: Annotated[int, typer.Option(help="d, of which s are sent.")] = 500,
    shards: Annotated[int, typer.Option(help="Edge aggregators, whose sums are merged in a tree.")] = 1,
    json: Json = False,
) -> None:
    """Take in the uploads of a TinyProto-FP round on one core: decode, validate, fold into sums.

    The defaults are a million clients on CIFAR-100. Says gigabytes of payload and uploads per second of processor time,
    peak memory, the share of each stage and the rate of the readable way, and holds the sums to the exact ones.

    Examples:

    - tinyproto bench aggregate
    - tinyproto bench aggregate --uploads 20000 --shards 8 --json
    """
    from tinyproto.bench.aggregate import AggregateSettings
    from tinyproto.cli.bench_aggregate import show_aggregate
    from tinyproto.cli.terminal import Output

    show_aggregate(AggregateSettings(uploads, classes, held, cps_dim, proto_dim, shards), Output(json=json))
