"""`tinyproto data`: download a dataset, or show which client holds what."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from tinyproto.cli.options import ConfigFile, Json, Overrides
from tinyproto.cli.terminal import Output, plain_table
from tinyproto.errors import Interrupted
from tinyproto.report.words import class_labels, counted, number

if TYPE_CHECKING:
    from tinyproto.data import Dataset

data = typer.Typer(
    name="data",
    no_args_is_help=True,
    help="Download a dataset, or show which client holds what.",
    rich_markup_mode="markdown",
)

FEW_CLASSES = 12
"""Up to this number, every class has a column."""


@data.command()
def fetch(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="cifar10, cifar100 or tiny_imagenet.", show_default=False)
    ],
    root: Annotated[Path, typer.Option(help="The folder to put it in: data.root of a config.")] = Path("data"),
    url: Annotated[
        str | None, typer.Option(help="Another address of the same archive; its checksum must match the published one.")
    ] = None,
) -> None:
    """Download a dataset from its official address, verify it and unpack it.

    An interrupted download resumes where it stopped. Without a network, copy the archive into the folder yourself and
    run the same command, which verifies and unpacks it.

    Examples:

    - tinyproto data fetch cifar100
    - tinyproto data fetch tiny_imagenet --root /big/disk
    """
    from tinyproto.cli.progress import LoadingBar
    from tinyproto.fetch import fetch as fetch_dataset

    output = Output()
    try:
        with LoadingBar(output.console, in_bytes=True) as progress:
            folder = fetch_dataset(name, root, url=url, progress=progress)
    except KeyboardInterrupt:
        raise Interrupted("run the same command again to resume the download") from None
    output.say(f"{folder} is ready; a config reads it with data: {{name: {name}, root: {root}}}")


@data.command()
def split(config: ConfigFile, overrides: Overrides = None, json: Json = False) -> None:
    """Show the partition of a config: the samples of each client by class, and its train and test parts.

    With --json: **counts** (one row per client, one number per class, train and test together), **train** and
    **test** (samples per client), **class_names** (null if classes have none).

    Examples:

    - tinyproto data split quickstart
    - tinyproto data split quickstart partition.alpha=1 partition.num_clients=5 --json
    """
    from tinyproto.cli.progress import LoadingBar
    from tinyproto.config import load_config
    from tinyproto.data.partition import holdings
    from tinyproto.data.sources import find_source

    output = Output(json=json)
    model = load_config(config, overrides or []).model
    with LoadingBar(output.console) as progress:
        dataset = find_source(model.data.name).load(model.data.request(progress))
    labels = dataset.labels.numpy()
    held = holdings(labels, model.partition.asked().shares(labels), dataset.num_classes)
    if output.wants_json:
        output.result({**held, "class_names": dataset.class_names}, indent=None)
        return
    output.say(f"{dataset.name}: partition {model.partition.kind}, {_facts(dataset, **held)}")
    output.console.print(_table(class_labels(dataset.class_names, dataset.num_classes), **held))


def _facts(dataset: Dataset, counts: list[list[int]], train: list[int], test: list[int]) -> str:
    pairs = sum(count > 0 for row in counts for count in row)
    held, available = sum(map(sum, counts)), len(dataset)
    unused = f"; {number(available - held)} of {number(available)} samples are unused" if held < available else ""
    return (
        f"{counted(len(counts), 'client')}, {counted(dataset.num_classes, 'class')}, {number(held)} samples: "
        f"{number(sum(train))} train, {number(sum(test))} test; a client holds {pairs / len(counts):.1f} classes with "
        f"{held / pairs:.1f} samples each on average{unused}"
    )


def _table(names: list[str], counts: list[list[int]], train: list[int], test: list[int]) -> Table:
    classes = range(len(counts[0])) if len(counts[0]) <= FEW_CLASSES else ()
    table = plain_table()
    for name in ("client", "samples", "train", "test", "classes", "largest class", *(names[one] for one in classes)):
        table.add_column(name, justify="right", no_wrap=True)
    for client, row in enumerate(counts):
        held = f"{sum(count > 0 for count in row)} of {len(row)}"
        largest = f"{names[row.index(max(row))]}: {number(max(row))}, {100 * max(row) / max(1, sum(row)):.0f} %"
        by_class = [number(row[one]) if row[one] else "·" for one in classes]
        sizes = (number(train[client] + test[client]), number(train[client]), number(test[client]))
        table.add_row(str(client), *sizes, held, largest, *by_class)
    return table
