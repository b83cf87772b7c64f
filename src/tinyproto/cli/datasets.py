"""`tinyproto data split`: who holds what, as a table or as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from tinyproto.cli.progress import LoadingBar
from tinyproto.cli.terminal import Output, plain_table
from tinyproto.config import load_config
from tinyproto.data.partition import holdings
from tinyproto.data.sources import LabelledNames, load_labels
from tinyproto.fetch import fetch
from tinyproto.report.words import counted, number

FEW_CLASSES = 12
"""Up to so many, every class has a column."""


@dataclass(frozen=True)
class Split:
    """A partition in numbers."""

    dataset: LabelledNames
    counts: NDArray[np.int64]  # (M, K), train and test
    train: Sequence[int]  # samples per client
    test: Sequence[int]


def show_split(path: Path, overrides: Sequence[str], output: Output) -> None:
    """A config in, its partition out."""
    model = load_config(path, overrides).model
    with LoadingBar(output.console) as progress:
        dataset = load_labels(model.data.name, model.data.request(progress))
    shares = model.partition.asked().shares(dataset.labels)
    held = holdings(dataset.labels, shares, dataset.num_classes)
    if output.wants_json:
        output.result(held, indent=None)
        return
    split = Split(dataset, np.array(held["counts"]), held["train"], held["test"])
    output.say(f"{dataset.name}: partition {model.partition.kind}, {_facts(split)}")
    output.console.print(_table(split))


def _facts(split: Split) -> str:
    pairs = int((split.counts > 0).sum())
    held, there = int(split.counts.sum()), len(split.dataset.labels)
    unused = f"; {number(there - held)} of {number(there)} samples belong to nobody" if held < there else ""
    size = (
        f"{counted(len(split.counts), 'client')}, {counted(split.dataset.num_classes, 'class')}, {number(held)} samples"
    )
    return (
        f"{size}: {number(sum(split.train))} train, {number(sum(split.test))} test; "
        f"{number(pairs)} pairs of client and class, {held / pairs:.1f} samples each on average{unused}"
    )


def _table(split: Split) -> Table:
    few = split.dataset.num_classes <= FEW_CLASSES
    table = plain_table()
    names = ("client", "samples", "train", "test", "classes", "largest class")
    for name in (*names, *(map(str, range(split.dataset.num_classes)) if few else ())):
        table.add_column(name, justify="right", no_wrap=True)
    for client, (row, train, test) in enumerate(zip(split.counts, split.train, split.test, strict=True)):
        by_class = [number(count) if count else "·" for count in row.tolist()] if few else []
        held = f"{(row > 0).sum()} of {len(row)}"
        largest = f"{row.argmax()}: {number(row.max())}, {100 * row.max() / row.sum():.0f} %"
        table.add_row(str(client), number(train + test), number(train), number(test), held, largest, *by_class)
    return table


def fetch_dataset(name: str, root: Path, url: str | None) -> None:
    """Say what is done, and how a config names the result."""
    output = Output()
    with LoadingBar(output.console, in_bytes=True) as progress:
        folder = fetch(name, root, url=url, progress=progress)
    output.say(f"{folder} is there; a config reads it with data: {{name: {name}, root: {root}}}")
