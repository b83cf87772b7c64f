"""The Dockerfiles are read, not built: no Docker daemon is expected here."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
import typer.main

from support_docs import ROOT, blocks_of
from tinyproto.cli.main import app

FILES = sorted((ROOT / "docker").glob("*.Dockerfile"))
RUNS = re.compile(r"docker run .*?(tinyproto-(?:coordinator|client))(.*?)$", re.MULTILINE | re.DOTALL)


def words(file: Path, instruction: str) -> list[str]:
    found = re.findall(rf"^{instruction} (\[.*\])$", file.read_text(), re.MULTILINE)
    assert len(found) == 1
    given: list[str] = json.loads(found[0])
    return given


def assert_options_exist(verb: str, options: list[str]) -> None:
    parameters = typer.main.get_command(app).commands[verb].params  # type: ignore[attr-defined]
    known = {name for parameter in parameters for name in parameter.opts} | {"--help"}
    assert [word for word in options if word.startswith("--") and word not in known] == []


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_it_starts_a_verb_with_options_that_there_are(file: Path) -> None:
    program, verb, *options = [*words(file, "ENTRYPOINT"), *words(file, "CMD")]
    assert program == "tinyproto"
    assert_options_exist(verb, options)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_it_ends_as_another_user_than_root_and_copies_only_sources(file: Path) -> None:
    text = file.read_text()
    assert re.findall(r"^USER (.+)$", text, re.MULTILINE) == ["tinyproto"]
    copied = {
        name for line in re.findall(r"^COPY (?!--from)(.+)$", text, re.MULTILINE) for name in line.split()[:-1]
    }  # fmt: skip
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    assert ignored[1] == "*"
    assert copied == {line.removeprefix("!") for line in ignored if line.startswith("!")}
    assert all((ROOT / name).exists() for name in copied)


def test_the_page_runs_images_that_it_builds_with_options_that_there_are() -> None:
    text = "\n".join(block.text for block in blocks_of(ROOT / "docs" / "how-to" / "install.md")).replace("\\\n", "")
    built = dict(re.findall(r"docker build --file docker/(\w+)\.Dockerfile --tag (\S+)", text))
    assert sorted(built) == [file.stem for file in FILES]
    runs = RUNS.findall(text)
    assert sorted(image for image, _ in runs) == sorted(built.values())
    for image, arguments in runs:
        assert_options_exist("join" if image == built["client"] else "serve", shlex.split(arguments))
