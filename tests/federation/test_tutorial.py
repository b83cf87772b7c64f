"""The commands for Flower of the pages on a federation, typed one block after another in a fresh folder."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from support_docs import ROOT, blocks_of
from support_federation import eventually, marked
from support_tutorial import Reader

pytestmark = [pytest.mark.flower, pytest.mark.flower_slow]

PAGES = (ROOT / "docs" / "start" / "federation.md", ROOT / "docs" / "how-to" / "deploy.md")
COMMANDS = [block.text for page in PAGES for block in blocks_of(page) if block.info == "bash flower"]


def block(holding: str) -> str:
    (found,) = [text for text in COMMANDS if holding in text]
    return found


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    made = Reader(tmp_path)
    yield made
    made.close()


def test_three_clients_on_one_machine(reader: Reader) -> None:
    reader.type("tinyproto serve --init keys --clients 3")  # the page shows it for MQTT
    said = reader.type(block("--client-id 2 --share configs/federation.yaml"))
    reader.assert_three_clients_did_five_rounds(said, "flower")


def test_every_block_of_the_pages_is_typed_somewhere() -> None:
    assert len(COMMANDS) == 5  # that which installs Flower, and those of the other tests


def simulated() -> bool:
    return importlib.util.find_spec("ray") is not None


@pytest.mark.skipif(not simulated(), reason="Ray is not installed; the extra flower-simulation brings it")
def test_flower_s_own_way_simulated_on_ray(reader: Reader) -> None:
    reader.type(block("export FLWR_HOME"), block("runs/simulated"))
    assert reader.events("simulated")[-1] == "finished"
    assert reader.events("simulated").count("concluded") == 3


def test_flower_s_own_way_deployed(reader: Reader) -> None:
    reader.type(block("export FLWR_HOME"), block("runs/deployed"))
    assert reader.events("deployed")[-1] == "finished"
    eventually(lambda: not marked(reader.mark), 30, "the last line ends what the others started")
    reader.type("tinyproto report runs/deployed")
