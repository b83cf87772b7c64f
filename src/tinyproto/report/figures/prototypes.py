"""Prototypes as the paper draws them, original and binary: one class over clients, one client over classes, global."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tinyproto.errors import ConfigError
from tinyproto.report import heatmap, svg
from tinyproto.report.figures import Figure
from tinyproto.report.runs import PrototypeValues
from tinyproto.report.studies import Series
from tinyproto.report.words import class_labels


@dataclass(frozen=True)
class Shown:
    """The class and the client to draw; None lets `choose` decide."""

    class_: int | None = None
    client: int | None = None


ANY = Shown()


@dataclass(frozen=True)
class DeadUnits:
    """Shares of zero entries: a unit that is zero in a class's prototype was zero for all its training samples."""

    local: float | None  # None if there is no prototype
    global_: float | None


def choose(values: PrototypeValues, wanted: Shown) -> tuple[int, int]:
    """Return the class and the client to draw: by default those with the most prototypes."""
    clients, classes, _ = values.local.shape
    held = values.local_present
    class_ = int(held.sum(0).argmax()) if wanted.class_ is None else wanted.class_
    client = int(held.sum(1).argmax()) if wanted.client is None else wanted.client
    if class_ >= classes:
        raise ConfigError(f"--class {class_} does not exist: classes go from 0 to {classes - 1}")
    if client >= clients:
        raise ConfigError(f"--client {client} does not exist: clients go from 0 to {clients - 1}")
    return class_, client


def dead_units(values: PrototypeValues) -> DeadUnits:
    """Return the shares of zeros in the prototypes that exist."""
    local = values.local[values.local_present]
    global_ = None if values.global_ is None else values.global_[values.global_present]
    return DeadUnits(_zeros(local), None if global_ is None else _zeros(global_))


def _zeros(values: NDArray[np.float32]) -> float | None:
    return float((values == 0).mean()) if values.size else None


def prototype_figures(series: Series, values: PrototypeValues, wanted: Shown, slug: str) -> Iterator[Figure]:
    """Yield a figure over clients, one over classes and one of global prototypes, original above binary."""
    class_, client = choose(values, wanted)
    clients, classes, _ = values.local.shape
    over_clients = [f"L{index}" for index in range(clients)]
    names = series.cells[0].result.get("class_names") if series.cells else None
    over_classes = class_labels(names, classes)
    of_class = f"class {class_} ({over_classes[class_]})" if names else f"class {class_}"
    held, held_present = values.local[:, class_], values.local_present[:, class_]
    if values.global_ is not None and values.global_present is not None:
        over_clients.append("G")
        held = np.concatenate([held, values.global_[class_, None]])
        held_present = np.append(held_present, values.global_present[class_])
    yield _figure(series, f"{slug}-class", f"{of_class} over clients", over_clients, held, held_present)
    held, held_present = values.local[client], values.local_present[client]
    yield _figure(series, f"{slug}-client", f"client {client} over classes", over_classes, held, held_present)
    if values.global_ is not None and values.global_present is not None:
        held, held_present = values.global_, values.global_present
        yield _figure(series, f"{slug}-global", "global, over classes", over_classes, held, held_present)


def _figure(
    series: Series, slug: str, title: str, names: Sequence[str], values: NDArray[np.float32],
    present: NDArray[np.bool_],
) -> Figure:  # fmt: skip
    """Draw prototypes (rows, d) below each other; `present` (rows,) has those that exist."""
    width = values.shape[1]
    known = values[present]
    largest = float(np.abs(known).max()) if known.size else 0.0
    original = heatmap.Matrix(
        values=values,
        present=np.broadcast_to(present[:, None], values.shape),
        row_names=names,
        column_names=[str(unit) for unit in range(width)],
        column_title="unit",
        low=0.0,
        high=largest,
        title=f"{title}: original, up to {largest:.3g}",
        tallest_row=10.0,
    )
    dead = _zeros(known)
    negative = f", {100 * float((known < 0).mean()):.0f} % negative" if (known < 0).any() else ""
    zero = "held by no client" if dead is None else f"{100 * dead:.0f} % zero{negative}"
    positive = (values > 0).astype(np.float32)
    binary = replace(original, values=positive, high=1.0, title=f"{title}: binary, {zero}")
    parts = heatmap.draw(original) + heatmap.draw(binary, original.height + 4)
    in_words = "All are missing." if dead is None else f"{100 * dead:.1f} % of the entries are zero."
    return Figure(
        slug=slug,
        title=f"{series.title}: {title}",
        caption="",
        alternative=(
            f"Two heatmaps of {int(present.sum())} prototypes with {width} entries each ({title}): "
            f"original values above, positive or not below. {in_words}"
        ),
        svg=svg.figure(original.height + binary.height + 4, parts, f"Prototypes of {series.title}, {title}"),
        columns=("row", *(f"unit_{unit}" for unit in range(width))),
        rows=[
            [name, *[float(f"{value:.4g}") for value in row.tolist()]]
            for name, row, exists in zip(names, values, present, strict=True)
            if exists
        ],
    )
