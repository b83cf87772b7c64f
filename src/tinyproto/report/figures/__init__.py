"""The figures of a report: a picture, its description in words, and its data."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass

Value = str | float | int | None


@dataclass(frozen=True)
class Figure:
    """A figure as the page and the figure files need it."""

    slug: str  # names its files and its place on the page
    title: str
    caption: str
    alternative: str  # describes the picture for readers who cannot see it
    svg: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Value]]

    def csv(self) -> str:
        """Return the data behind the figure; unknown values are empty."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(self.columns)
        writer.writerows([_rounded(value) for value in row] for row in self.rows)
        return text.getvalue()


def _rounded(value: Value) -> Value:
    """Keep six significant digits of a float, more than any of them means."""
    return float(f"{value:.6g}") if isinstance(value, float) else value
