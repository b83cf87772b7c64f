"""Print the lower bounds of pyproject.toml as pins, one a line: the constraints of `make test-lowest`."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path

PYPROJECT = Path(__file__).parents[1] / "pyproject.toml"


def pins(requirements: Iterable[str]) -> Iterator[str]:
    """Yield `name==version` for each `name>=version` except torch, which constraints.txt pins."""
    for requirement in requirements:
        name, _, version = requirement.partition(">=")
        if not version:
            raise SystemExit(f"pyproject.toml: {requirement!r} has no lower bound; write {name}>=VERSION")
        if name != "torch":
            yield f"{name}=={version}"


if __name__ == "__main__":
    project = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["project"]
    print("\n".join(pins([*project["dependencies"], *project["optional-dependencies"]["dev"]])))
