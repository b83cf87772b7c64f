"""What a new user has is a clone: packages are installed from it, and commands name files that are in it."""

from __future__ import annotations

import re
import shlex

import pytest

from support_docs import ROOT, blocks_of

SAID_IN = [
    ROOT / "README.md",
    *sorted(path for name in ("docs", "examples", "src") for path in (ROOT / name).rglob("*")),
]
SHELLS = ("bash flower", "bash mqtt")
FROM_THE_INDEX = re.compile(r"""pip3? install [^`\n]*?(?<![\w/.-])tinyproto(\[|['"\s`]|$)""")


def test_nothing_tells_to_install_from_the_index() -> None:
    """Where the name is a stranger's."""
    found = [
        f"{path.relative_to(ROOT)}: {told.group()}"
        for path in SAID_IN
        if path.suffix in (".md", ".py", ".toml", ".yaml")
        for told in FROM_THE_INDEX.finditer(path.read_text(encoding="utf-8"))
    ]
    assert not found
    assert FROM_THE_INDEX.search("pip install 'tinyproto[flower]'")


@pytest.mark.parametrize("page", ["README.md", "docs/start/federation.md", "docs/how-to/deploy.md"])
def test_a_federation_s_commands_name_configs_that_a_clone_has(page: str) -> None:
    typed = "".join(block.text for block in blocks_of(ROOT / page) if block.info in SHELLS).splitlines()
    commands = [shlex.split(line, comments=True) for line in typed if line.startswith("tinyproto ")]
    named = [word for words in commands for word in words if word.endswith(".yaml")]
    assert named
    assert [name for name in named if not (ROOT / name).is_file()] == []
