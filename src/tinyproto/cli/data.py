"""`tinyproto data`: getting datasets, and seeing who holds what."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tinyproto.cli.options import ConfigFile, Json, Overrides
from tinyproto.errors import Interrupted

data = typer.Typer(
    name="data",
    no_args_is_help=True,
    help="Get a dataset, or see which client holds what.",
    rich_markup_mode="markdown",
)


@data.command()
def fetch(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="cifar10, cifar100 or tiny_imagenet.", show_default=False)
    ],
    root: Annotated[Path, typer.Option(help="The folder to put it in: the config's data.root.")] = Path("data"),
    url: Annotated[
        str | None, typer.Option(help="Another address of the same archive; its checksum has to be the published one.")
    ] = None,
) -> None:
    """Download a dataset from its official address, check it and unpack it.

    A download that was interrupted goes on where it stopped. Without a network, put the archive into the folder by
    hand and run the same command: it is checked and unpacked.

    Examples:

    - tinyproto data fetch cifar100
    - tinyproto data fetch tiny_imagenet --root /big/disk
    """
    from tinyproto.cli.datasets import fetch_dataset

    try:
        fetch_dataset(name, root, url)
    except KeyboardInterrupt:
        raise Interrupted("run the same command again to go on") from None


@data.command()
def split(
    config: ConfigFile,
    overrides: Overrides = None,
    json: Json = False,
) -> None:
    """Show a config's partition: every client's samples by class, and its train and test part.

    With --json: **counts** (one row per client, one number per class, train and test together), **train** and
    **test** (samples per client).

    Examples:

    - tinyproto data split quickstart
    - tinyproto data split quickstart partition.alpha=1 partition.num_clients=5 --json
    """
    from tinyproto.cli.datasets import show_split
    from tinyproto.cli.terminal import Output

    show_split(config, overrides or [], Output(json=json))
