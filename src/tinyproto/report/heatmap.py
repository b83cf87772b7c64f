"""A matrix as a picture: named rows and columns, cells in one colour, numbers where they fit."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from tinyproto.report import svg

RIGHT = 432.0
NAME_LINE, TITLE_LINE, LETTER = 15.0, 20.0, 5.6
MOST_NUMBERS = 600
LONGEST_NAME = 34

SHADES = 32
POSITIVE, NEGATIVE, ABSENT_COLOUR = (11, 97, 164), (196, 84, 14), (128, 128, 128)
NOTHING, ABSENT = 0, 2 * SHADES + 1


@dataclass(frozen=True)
class Matrix:
    """The values to draw; cells that are not `present` are grey."""

    values: NDArray[np.float32]
    present: NDArray[np.bool_]
    row_names: Sequence[str]
    column_names: Sequence[str]
    column_title: str
    low: float  # drawn blank
    high: float  # drawn in full colour
    number: Callable[[float], str] | None = None  # written in each cell where it fits
    title: str = ""
    tallest_row: float = 15.0

    @property
    def left(self) -> float:
        """Return the left edge of the cells, to the right of the longest row name."""
        return 8 + LETTER * min(LONGEST_NAME, max(len(name) for name in self.row_names))

    @property
    def top(self) -> float:
        """Return the upper edge of the cells."""
        return TITLE_LINE if self.title else 6.0

    @property
    def row_height(self) -> float:
        """Return the height of a row: few rows stay readable, many share a limited height."""
        return min(self.tallest_row, max(2.0, 320.0 / len(self.row_names)))

    @property
    def height(self) -> float:
        """Return the height of the picture."""
        return self.top + self.row_height * len(self.row_names) + 2 * NAME_LINE + 4


def draw(matrix: Matrix, down: float = 0.0) -> list[str]:
    """Return the parts of the picture, moved down by `down`."""
    top, left = down + matrix.top, matrix.left
    rows, columns = matrix.values.shape
    width, height = RIGHT - left, matrix.row_height * rows
    cells = indices(matrix.values, matrix.present, matrix.low, matrix.high)
    parts = [
        svg.element(
            "image", href=data_address(png(cells), "image/png"), x=left, y=top, width=width, height=height,
            preserveAspectRatio="none", class_="cells",
        ),
        svg.rectangle(left, top, width, height, "outline"),
    ]  # fmt: skip
    if matrix.title:
        parts.append(svg.text(2, down + 13, matrix.title, class_="label strong"))
    every = max(1, int(np.ceil(9 / matrix.row_height)))
    for row in range(0, rows, every):
        middle = top + (row + 0.5) * matrix.row_height
        words = svg.short(matrix.row_names[row], LONGEST_NAME)
        parts.append(svg.text(left - 4, middle + 3.5, words, "end", "label small"))
    column_width = width / columns
    widest = max(len(name) for name in matrix.column_names) * LETTER + 4
    every = int(svg.round_step(max(1.0, widest / column_width)))  # so that names fall on round numbers
    for column in range(0, columns, every):
        middle = left + (column + 0.5) * column_width
        parts.append(svg.text(middle, top + height + 12, matrix.column_names[column], "middle", "label small"))
    parts.append(svg.text(RIGHT, top + height + NAME_LINE + 12, matrix.column_title, "end", "label strong"))
    return parts + _numbers(matrix, top, column_width)


def _numbers(matrix: Matrix, top: float, column_width: float) -> list[str]:
    if matrix.number is None or matrix.values.size > MOST_NUMBERS or matrix.row_height < 10:
        return []
    found = [
        (row, column, matrix.number(float(matrix.values[row, column])))
        for row, column in np.argwhere(matrix.present).tolist()
    ]
    if max((len(words) for _, _, words in found), default=0) * 4.6 > column_width:
        return []
    halfway = (matrix.low + matrix.high) / 2
    return [
        svg.text(
            matrix.left + (column + 0.5) * column_width,
            top + (row + 0.5) * matrix.row_height + 3,
            words,
            "middle",
            "label tiny on-ink" if matrix.values[row, column] > halfway else "label tiny",
        )
        for row, column, words in found
        if words
    ]


def indices(values: NDArray[np.float32], present: NDArray[np.bool_], low: float, high: float) -> NDArray[np.uint8]:
    """Return palette entries: none for `low` itself, stronger shades farther from it, towards ±`high`."""
    share = np.clip((np.where(present, values, low) - low) / (high - low if high > low else 1.0), -1, 1)
    shade = np.ceil(np.abs(share) * SHADES).astype(np.int64)
    coloured = np.where(share >= 0, shade, SHADES + shade) * (shade > 0)
    return np.where(present, coloured, ABSENT).astype(np.uint8)


def png(cells: NDArray[np.uint8]) -> bytes:
    """Return an indexed PNG whose shades are opacities of one colour, so that it fits any background."""
    opacity = [0, *(int(30 + 225 * (shade + 1) / SHADES) for shade in range(SHADES))]
    colours = [(0, 0, 0), *[POSITIVE] * SHADES, *[NEGATIVE] * SHADES, ABSENT_COLOUR]
    alphas = [*opacity, *opacity[1:], 60]
    image, file = Image.fromarray(cells), io.BytesIO()
    image.putpalette([channel for colour in colours for channel in colour])
    image.save(file, "PNG", transparency=bytes(alphas), optimize=True)
    return file.getvalue()


def data_address(content: bytes, kind: str) -> str:
    """Return a data URL, which holds the content inside the page."""
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"
