"""How to install: from the clone, wherever it is said. The package's name on the public index is a stranger's."""

from __future__ import annotations

import re

from support_docs import ROOT

SAID_IN = [
    ROOT / "README.md",
    *sorted(path for name in ("docs", "examples", "src") for path in (ROOT / name).rglob("*")),
]
FROM_THE_INDEX = re.compile(r"""pip3? install [^`\n]*?(?<![\w/.-])tinyproto(\[|['"\s`]|$)""")


def test_nothing_tells_to_install_from_the_index() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {told.group()}"
        for path in SAID_IN
        if path.suffix in (".md", ".py", ".toml", ".yaml")
        for told in FROM_THE_INDEX.finditer(path.read_text(encoding="utf-8"))
    ]
    assert not found
    assert FROM_THE_INDEX.search("pip install 'tinyproto[flower]'")
