"""The messages on the page about errors are those of the source."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache

from support_docs import ROOT

PAGE = ROOT / "docs" / "how-to" / "troubleshooting.md"
ROW = re.compile(r"^\| (.+?) \| .+ \|$", re.MULTILINE)


@cache
def strings() -> str:
    """Every text in the source, one per line, with … in the place of each value."""
    return "\n".join(
        text.replace("\n", " ")
        for file in (ROOT / "src").rglob("*.py")
        for text in texts_in(ast.parse(file.read_text(encoding="utf-8")))
    )


def texts_in(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def is_in_the_source(message: str) -> bool:
    return re.search(".*".join(re.escape(part) for part in message.split("…")), strings()) is not None


def test_every_message_on_the_page_is_one_of_the_source() -> None:
    messages = [
        code
        for column in ROW.findall(PAGE.read_text(encoding="utf-8"))
        for code in re.findall(r"`([^`]+)`", column)
    ]  # fmt: skip
    assert len(messages) > 40
    assert [message for message in messages if not is_in_the_source(message)] == []


def test_a_message_that_was_reworded_would_be_noticed() -> None:
    assert is_in_the_source("no config file at …; use a built-in config")
    assert not is_in_the_source("no config file under …; use a built-in config")
