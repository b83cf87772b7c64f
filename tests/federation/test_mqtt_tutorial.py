"""The commands for MQTT of the README and of the tutorial, typed one block after another in a fresh folder."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from filelock import FileLock

import support_mosquitto  # noqa: F401  # isort: skip
from support_docs import ROOT, blocks_of
from support_tutorial import Reader

pytestmark = pytest.mark.mqtt

TUTORIAL = ROOT / "docs" / "start" / "federation.md"


def commands(page: Path) -> list[str]:
    return [block.text for block in blocks_of(page) if block.info == "bash mqtt"]


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    with FileLock(Path(tempfile.gettempdir()) / "tinyproto-port-8883.lock"):  # the pages' own port
        made = Reader(tmp_path)
        yield made
        made.close()


def test_three_clients_on_one_machine(reader: Reader) -> None:
    make_keys, run, look = commands(TUTORIAL)
    assert reader.type(make_keys) in [block.text for block in blocks_of(TUTORIAL) if block.info == "text"]
    reader.assert_three_clients_did_five_rounds(reader.type(run))
    said = reader.type(look)
    assert "summary.json" in said
    assert "TinyProto-FT" in said


@pytest.mark.mqtt_slow
def test_the_readme_s_federation(reader: Reader) -> None:
    reader.assert_three_clients_did_five_rounds(reader.type(*commands(ROOT / "README.md")))
