"""The paper and the benchmarks import from the package what docs/reference/extensions.md names; it imports neither."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reference" / "extensions.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| `(tinyproto[\w.]*)` \| (.+?) \|", PAGE, re.MULTILINE)
NAMED = {(module, name) for module, names in ROWS for name in re.findall(r"`(\w+)`", names)}
INTERNALS = tuple(re.findall(r"`(tinyproto\.\w+)\.\*`", PAGE))


def imports(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield module and name of every import below a folder; the name is empty where a module is imported."""
    for file in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module is not None and node.level == 0:
                yield from ((node.module, alias.name) for alias in node.names)
            elif isinstance(node, ast.Import):
                yield from ((alias.name, "") for alias in node.names)


def of_the_package(folder: str) -> set[tuple[str, str]]:
    found = {one for one in imports(ROOT / folder) if one[0].partition(".")[0] == "tinyproto"}
    return found - {("tinyproto", "")}


def is_internal(module: str, name: str) -> bool:
    return not name.startswith("_") and any(module == one or module.startswith(f"{one}.") for one in INTERNALS)


def test_the_paper_imports_only_what_the_page_names() -> None:
    assert sorted(of_the_package("paper") - NAMED) == []


def test_benchmarks_import_only_what_the_page_names_and_public_names_of_internals() -> None:
    assert [one for one in sorted(of_the_package("benchmarks") - NAMED) if not is_internal(*one)] == []


def test_every_name_on_the_page_exists() -> None:
    missing = [
        f"{module}.{name}"
        for module, name in sorted(NAMED)
        if not hasattr(import_module(module), name) and find_spec(f"{module}.{name}") is None
    ]
    assert missing == []


def test_the_page_is_short() -> None:
    assert len(PAGE.splitlines()) <= 60


def test_the_package_imports_no_extension() -> None:
    found = {module for module, _ in imports(ROOT / "src") if module.partition(".")[0] in ("paper", "benchmarks")}
    assert found == set()
