"""docs/how-to/report.md names the verbs that take --json."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from tinyproto.cli.main import app

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "report.md"


def with_json(verb: Any, name: str) -> Iterator[str]:
    """The verb's name where it takes --json; of a group, those inside, or its own where all of them do."""
    inner = getattr(verb, "commands", {})
    found = [one for key, command in inner.items() for one in with_json(command, f"{name} {key}".strip())]
    if inner and name and len(found) == len(inner):
        yield name
    else:
        yield from found
    if any("--json" in parameter.opts for parameter in verb.params):
        yield name


def test_the_page_names_every_verb_that_takes_json() -> None:
    (sentence,) = re.findall(r"^(.*) take `--json`", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert set(re.findall(r"`([^`]+)`", sentence)) == set(with_json(typer.main.get_command(app), ""))
