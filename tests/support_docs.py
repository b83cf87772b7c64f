"""The pages of the documentation taken apart: fenced blocks, links, inline code."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = [
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    *sorted((ROOT / "docs").glob("**/*.md")),
    *sorted((ROOT / "results").glob("**/*.md")),
    *sorted((ROOT / "benchmarks").glob("**/*.md")),
    *sorted((ROOT / "paper").glob("*.md")),
]
FENCE = re.compile(r"^\s*(`{3,}|~{3,})\s*(.*)$")


@dataclass(frozen=True)
class Block:
    """One fenced block; `info` is what stands behind the fence, the language first."""

    page: Path
    line: int
    info: str
    text: str

    @property
    def language(self) -> str:
        return self.info.split(" ", 1)[0]

    @property
    def file_name(self) -> str | None:
        """A block that starts with the comment `# name.py` or `# name.yaml` is a file of that name."""
        found = re.match(r"# ([\w/.-]+\.(?:py|yaml))\n", self.text)
        return found[1] if found else None

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def taken_apart(page: Path) -> tuple[list[Block], str]:
    """A page's fenced blocks, and its prose without them and without comments."""
    blocks: list[Block] = []
    prose: list[str] = []
    fence, info, start, body = "", "", 0, list[str]()
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), start=1):
        found = FENCE.match(line)
        if fence:
            if found and found[1].startswith(fence) and not found[2]:
                blocks.append(Block(page, start, info, "".join(f"{text}\n" for text in body)))
                fence, body = "", []
            else:
                body.append(line)
        elif found:
            fence, info, start = found[1], found[2].strip(), number
        else:
            prose.append(line)
    assert not fence, f"{page.name}:{start}: the fenced block has no end"
    return blocks, re.sub(r"<!--.*?-->", "", "\n".join(prose), flags=re.DOTALL)


def blocks_of(page: Path) -> list[Block]:
    return taken_apart(page)[0]


def inline_code(page: Path) -> list[str]:
    return re.findall(r"`([^`]+)`", taken_apart(page)[1])


def links(page: Path) -> list[str]:
    prose = re.sub(r"`[^`]*`", "", taken_apart(page)[1])
    return re.findall(r"\]\(([^)\s]+)\)", prose)


def anchors(page: Path) -> set[str]:
    """The names that GitHub gives a page's headings."""
    titles = re.findall(r"^#+ (.+)$", taken_apart(page)[1], re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


@contextmanager
def modules_of_a_folder(folder: Path) -> Iterator[None]:
    """Modules that the block imports from `folder` are forgotten afterwards, and so is the folder."""
    path, known = list(sys.path), set(sys.modules)
    try:
        yield
    finally:
        sys.path[:] = path
        for name in set(sys.modules) - known:
            module = sys.modules[name]
            if str(folder) in f"{getattr(module, '__file__', '')} {getattr(module, '__path__', '')}":
                del sys.modules[name]
