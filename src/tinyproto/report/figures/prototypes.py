"""Prototypes as the paper draws them, original and binary: one class over clients, one client over classes, global."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tinyproto.errors import ConfigError
from tinyproto.report import heatmap, svg
from tinyproto.report.figures import Figure
from tinyproto.report.runs import PrototypeValues
from tinyproto.report.studies import Series


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


@dataclass(frozen=True)
class _Rows:
    """Prototypes drawn below each other."""

    kind: str
    title: str
    names: list[str]
    values: NDArray[np.float32]  # (rows, d)
    present: NDArray[np.bool_]  # (rows,)


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
    over_classes = [str(index) for index in range(classes)]
    held, held_present = values.local[:, class_], values.local_present[:, class_]
    if values.global_ is not None and values.global_present is not None:
        over_clients.append("G")
        held = np.concatenate([held, values.global_[class_, None]])
        held_present = np.append(held_present, values.global_present[class_])
    selections = [
        _Rows("class", f"class {class_} over clients", over_clients, held, held_present),
        _Rows(
            "client", f"client {client} over classes", over_classes, values.local[client], values.local_present[client]
        ),
    ]
    if values.global_ is not None and values.global_present is not None:
        selections.append(_Rows("global", "global, over classes", over_classes, values.global_, values.global_present))
    for rows in selections:
        yield _figure(series, rows, f"{slug}-{rows.kind}")


def _figure(series: Series, rows: _Rows, slug: str) -> Figure:
    known = rows.values[rows.present]
    largest = float(np.abs(known).max()) if known.size else 0.0
    original = _matrix(rows, rows.values, largest, f"{rows.title}: original, up to {largest:.3g}")
    dead = _zeros(known)
    negative = f", {100 * float((known < 0).mean()):.0f} % negative" if (known < 0).any() else ""
    zero = "held by no client" if dead is None else f"{100 * dead:.0f} % zero{negative}"
    binary = _matrix(rows, (rows.values > 0).astype(np.float32), 1.0, f"{rows.title}: binary, {zero}")
    parts = heatmap.draw(original) + heatmap.draw(binary, original.height + 4)
    width = rows.values.shape[1]
    in_words = "All are missing." if dead is None else f"{100 * dead:.1f} % of the entries are zero."
    return Figure(
        slug=slug,
        title=f"{series.title}: {rows.title}",
        caption="",
        alternative=(
            f"Two heatmaps of {int(rows.present.sum())} prototypes with {width} entries each ({rows.title}): "
            f"original values above, positive or not below. {in_words}"
        ),
        svg=svg.figure(original.height + binary.height + 4, parts, f"Prototypes of {series.title}, {rows.title}"),
        columns=("row", *(f"unit_{unit}" for unit in range(width))),
        rows=[
            [name, *[float(f"{value:.4g}") for value in values.tolist()]]
            for name, values, present in zip(rows.names, rows.values, rows.present, strict=True)
            if present
        ],
    )


def _matrix(rows: _Rows, values: NDArray[np.float32], high: float, title: str) -> heatmap.Matrix:
    return heatmap.Matrix(
        values=values,
        present=np.broadcast_to(rows.present[:, None], values.shape),
        row_names=rows.names,
        column_names=[str(unit) for unit in range(values.shape[1])],
        column_title="unit",
        low=0.0,
        high=high,
        title=title,
        tallest_row=10.0,
    )
