"""Hooks of mkdocs.yml: pages that are written for the code host become a site, without a second copy of anything.

The navigation is the list of pages in docs/README.md. The API reference is made from docstrings when the site is built.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.structure.files import Files

DOCS = Path(__file__).parent
API_PAGE = "reference/api.md"
API = """# API

What `import tinyproto as tp` offers. [Imports for extensions](extensions.md) lists the rest that code may rely on.

## tinyproto

::: tinyproto

## tinyproto.data

::: tinyproto.data

## tinyproto.errors

::: tinyproto.errors
"""
SECTION = re.compile(r"^\*\*(.+)\*\*$", re.MULTILINE)
PAGE_LINK = re.compile(r"\]\(([\w/-]+\.md)\)")
FENCE = re.compile(r"^(\s*```(?:bash|text)) \w+$", re.MULTILINE)
LINK_OUT = re.compile(r"(?<!!)\[([^\]]+)\]\((?:\.\./)+((?:results|paper|benchmarks|examples|configs)(?:/[^)#]*)?)\)")


def sections() -> dict[str, list[str]]:
    """Return the pages of each section of docs/README.md."""
    _, *parts = SECTION.split((DOCS / "README.md").read_text(encoding="utf-8"))
    return {title: PAGE_LINK.findall(text) for title, text in zip(parts[::2], parts[1::2], strict=True)}


def on_config(config: Any) -> Any:
    """Set the navigation to the sections of docs/README.md, with the API last."""
    listed = sections()
    listed["Reference"].append(API_PAGE)
    config.nav = [{"Home": "README.md"}, *({title: pages} for title, pages in listed.items())]
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the page of the API."""
    from mkdocs.structure.files import File  # here, so that tests read this file without mkdocs

    files.append(File.generated(config, API_PAGE, content=API))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Return a page as the site needs it.

    A fence names only its language: the second word is for our tests. A link to a file that the site does not have
    becomes its path in the repository.
    """
    return LINK_OUT.sub(r"\1 (`\2` in the repository)", FENCE.sub(r"\1", markdown))
