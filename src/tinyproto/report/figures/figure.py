"""A figure: a picture, the same in words, and its data."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass

Value = str | float | int | None


@dataclass(frozen=True)
class Figure:
    """What a page needs of a figure."""

    slug: str  # names its files and its place on the page
    title: str
    caption: str
    alternative: str  # what the picture shows, for those who do not see it
    svg: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Value]]

    def csv(self) -> str:
        """The data behind it; what is not known is empty."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(self.columns)
        writer.writerows([_written(value) for value in row] for row in self.rows)
        return text.getvalue()


def _written(value: Value) -> Value:
    """Floats to six significant digits, which is more than any of them means."""
    return float(f"{value:.6g}") if isinstance(value, float) else value
