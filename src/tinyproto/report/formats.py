"""The formats of exported tables and figures."""

from __future__ import annotations

from enum import StrEnum


class TableFormat(StrEnum):
    """A table of results as text."""

    LATEX = "latex"
    MARKDOWN = "markdown"
    CSV = "csv"


class FigureFormat(StrEnum):
    """A figure in a file of its own."""

    SVG = "svg"
    PDF = "pdf"
    PNG = "png"
