"""HTML as text: elements, tables, figures with their data."""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Sequence
from html import escape

from tinyproto.report.figures import Figure
from tinyproto.report.heatmap import data_address
from tinyproto.report.svg import written_attributes
from tinyproto.report.terms import column, explained

WORTH_PACKING = 20_000
"""Characters from which a CSV is compressed."""


def element(name: str, content: str = "", **attributes: str) -> str:
    """Return one element around HTML."""
    return f"<{name}{written_attributes(attributes)}>{content}</{name}>"


def paragraph(words: str, class_: str = "") -> str:
    """Return a paragraph of plain words, its terms explained."""
    return element("p", explained(words), **({"class_": class_} if class_ else {}))


def bullets(sentences: Iterable[str]) -> str:
    """Return a list of plain sentences, their terms explained."""
    seen: set[str] = set()
    return element("ul", "".join(element("li", explained(sentence, seen)) for sentence in sentences))


def folded(summary: str, content: str, class_: str = "") -> str:
    """Return HTML that the reader can unfold under a plain summary."""
    return element("details", element("summary", escape(summary)) + content, **({"class_": class_} if class_ else {}))


LONG_CELL = 30
"""Characters of a table's cell that is a list of words rather than a number; it may wrap."""


def _classes(**wanted: bool) -> dict[str, str]:
    names = [name for name, is_wanted in wanted.items() if is_wanted]
    return {"class_": " ".join(names)} if names else {}


def table(header: Sequence[str], rows: Sequence[Sequence[str]], strong: Sequence[int | None] = ()) -> str:
    """Return a table of plain words; the first cell names its row, `strong` gives one column per row to stress."""
    head = "".join(element("th", column(name), scope="col") for name in header)
    body = ""
    for index, (name, *cells) in enumerate(rows):
        stressed = strong[index] if index < len(strong) else None
        written = "".join(
            element("td", escape(cell), **_classes(headline=column == stressed, long=len(cell) > LONG_CELL))
            for column, cell in enumerate(cells, 1)
        )
        body += element("tr", element("th", escape(name), scope="row") + written)
    content = element("thead", element("tr", head)) + element("tbody", body)
    return element("div", element("table", content), class_="wide", tabindex="0")


def figure(drawn: Figure, *, with_data: bool = True) -> str:
    """Return the picture, its description in words, and links to download both picture and data."""
    links = [element("button", "SVG", type="button", class_="link", data_svg=drawn.slug, hidden="")]
    if with_data:
        links.insert(0, _data_link(drawn))
    words = element("span", escape(drawn.title), class_="title") + explained(drawn.caption)
    described = folded("In words", paragraph(drawn.alternative), "quiet")
    caption = element("figcaption", words + described + element("p", " · ".join(links), class_="quiet downloads"))
    return element("figure", drawn.svg + caption, id=drawn.slug)


def _data_link(drawn: Figure) -> str:
    text = drawn.csv()
    if len(text) < WORTH_PACKING:
        name, address = f"{drawn.slug}.csv", data_address(text.encode(), "text/csv")
    else:
        packed = gzip.compress(text.encode(), 9, mtime=0)
        name, address = f"{drawn.slug}.csv.gz", data_address(packed, "application/gzip")
    return element("a", name.partition(".")[2].upper(), download=name, href=address)
