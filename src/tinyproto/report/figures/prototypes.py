"""Prototypes as the paper draws them, original and binary: a class over clients, a client over classes, global."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tinyproto.errors import ConfigError
from tinyproto.report.draw import matrix, svg
from tinyproto.report.figures.figure import Figure
from tinyproto.report.runs import PrototypeValues
from tinyproto.report.studies import Series


@dataclass(frozen=True)
class Shown:
    """Which class and which client are to be drawn; None leaves it open."""

    class_: int | None = None
    client: int | None = None


ANY = Shown()


@dataclass(frozen=True)
class DeadUnits:
    """Shares of zero entries: a unit that is zero in a class's prototype was zero for all its training samples."""

    local: float | None  # None where there is no prototype
    global_: float | None


@dataclass(frozen=True)
class _Rows:
    """Prototypes under each other."""

    kind: str
    title: str
    names: list[str]
    values: NDArray[np.float32]  # (rows, d)
    present: NDArray[np.bool_]  # (rows,)


def choose(values: PrototypeValues, wanted: Shown) -> tuple[int, int]:
    """A class and a client: the class that most clients hold, the client that holds most classes, unless told."""
    clients, classes, _ = values.local.shape
    held = values.local_present
    class_ = int(held.sum(0).argmax()) if wanted.class_ is None else wanted.class_
    client = int(held.sum(1).argmax()) if wanted.client is None else wanted.client
    if class_ >= classes or client >= clients:
        raise ConfigError(
            f"there is no class {class_} or no client {client} to draw: classes go from 0 to {classes - 1}, "
            f"clients from 0 to {clients - 1}"
        )
    return class_, client


def dead_units(values: PrototypeValues) -> DeadUnits:
    """Of the prototypes that there are."""
    local = values.local[values.local_present]
    global_ = None if values.global_ is None else values.global_[values.global_present]
    return DeadUnits(_zeros(local), None if global_ is None else _zeros(global_))


def prototype_figures(series: Series, values: PrototypeValues, wanted: Shown, slug: str) -> Iterator[Figure]:
    """One figure per way of looking, each with the original above the binary."""
    for rows in _selections(values, *choose(values, wanted)):
        yield _figure(series, rows, f"{slug}-{rows.kind}")


def _selections(values: PrototypeValues, class_: int, client: int) -> Iterator[_Rows]:
    clients, classes, _ = values.local.shape
    of_class = _Rows(
        "class",
        f"class {class_} over clients",
        [f"L{index}" for index in range(clients)],
        values.local[:, class_],
        values.local_present[:, class_],
    )
    if values.global_ is not None and values.global_present is not None:
        of_class = _Rows(
            of_class.kind,
            of_class.title,
            [*of_class.names, "G"],
            np.concatenate([of_class.values, values.global_[class_, None]]),
            np.append(of_class.present, values.global_present[class_]),
        )
    names = [str(index) for index in range(classes)]
    yield of_class
    yield _Rows(
        "client",
        f"client {client} over classes",
        names,
        values.local[client],
        values.local_present[client],
    )
    if values.global_ is not None and values.global_present is not None:
        yield _Rows("global", "global, over classes", names, values.global_, values.global_present)


def _figure(series: Series, rows: _Rows, slug: str) -> Figure:
    known = rows.values[rows.present]
    largest = float(np.abs(known).max()) if known.size else 0.0
    original = _matrix(rows, rows.values, largest, f"{rows.title}: original, up to {largest:.3g}")
    dead = _zeros(known)
    negative = f", {100 * float((known < 0).mean()):.0f} % negative" if (known < 0).any() else ""
    zero = "nobody holds it" if dead is None else f"{100 * dead:.0f} % zero{negative}"
    binary = _matrix(rows, (rows.values > 0).astype(np.float32), 1.0, f"{rows.title}: binary, {zero}")
    parts = matrix.draw(original) + matrix.draw(binary, original.height + 4)
    width = rows.values.shape[1]
    return Figure(
        slug=slug,
        title=f"{series.title}: {rows.title}",
        caption="",
        alternative=(
            f"Two heatmaps of {int(rows.present.sum())} prototypes with {width} entries each ({rows.title}), "
            f"original values above, positive or not below. {_in_words(dead)}"
        ),
        svg=svg.figure(original.height + binary.height + 4, parts, f"Prototypes of {series.title}, {rows.title}"),
        columns=("row", *(f"unit_{unit}" for unit in range(width))),
        rows=[
            [name, *[float(f"{value:.4g}") for value in values.tolist()]]
            for name, values, present in zip(rows.names, rows.values, rows.present, strict=True)
            if present
        ],
    )


def _matrix(rows: _Rows, values: NDArray[np.float32], high: float, title: str) -> matrix.Matrix:
    return matrix.Matrix(
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


def _zeros(values: NDArray[np.float32]) -> float | None:
    return float((values == 0).mean()) if values.size else None


def _in_words(dead: float | None) -> str:
    return "All are missing." if dead is None else f"{100 * dead:.1f} % of the entries are zero."
