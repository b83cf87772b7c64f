"""What a page quotes is what the committed record says."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from types import ModuleType

import pytest

from benchmarks import attacks, communication, networks, papers_networks
from support_docs import modules_of_a_folder
from tinyproto.config import load_config
from tinyproto.report.compare import Row, compare, share_cell
from tinyproto.report.words import points, size

ROOT = Path(__file__).parents[1]
RECORD = ROOT / "results" / "quickstart"


def quoted(row: Row, gain: float | None) -> str:
    accuracies = " | ".join(share_cell(row.accuracy[rule]) for rule in ("head", "global", "local"))
    over = "–" if gain is None else points(gain)
    return f"| {row.title} | {accuracies} | {over} | {size(row.payload_bytes)} |"


@pytest.mark.parametrize(
    ("page", "record"), [("README.md", "quickstart"), ("docs/how-to/add_an_algorithm.md", "robust_proto")]
)
def test_a_page_s_table_is_the_record_s(page: str, record: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)  # a record may name an algorithm of ours by its dotted path
    folder = ROOT / "results" / record
    with modules_of_a_folder(ROOT / "examples"):
        config = load_config(folder / "config.yaml")
    titles = {entry.label: entry.title for entry in config.algorithms}
    results = json.loads((folder / "summary.json").read_text())["results"]
    comparison = compare(results, titles, config.model.evaluate.rule, config.model.evaluate.statistic)
    text = (ROOT / page).read_text()
    for row in comparison.rows:
        assert quoted(row, comparison.over_local(row, comparison.rule)) in text


def test_the_record_is_of_the_quickstart_config_and_says_where_it_was_made() -> None:
    seeds = "seeds=[0,1,2]"
    assert (
        load_config(RECORD / "config.yaml").resolved()
        == load_config(ROOT / "configs/quickstart.yaml", [seeds]).resolved()
    )
    environment = json.loads((RECORD / "environment.json").read_text())
    assert len(environment["commit"]) == 40
    assert environment["packages"]["torch"]
    cells = {(line["algorithm"], line["seed"]) for line in map(json.loads, (RECORD / "rounds.jsonl").open())}
    assert len(cells) == 21


@pytest.mark.parametrize(
    ("page", "study", "record"),
    [
        ("docs/explain/hostile_clients.md", attacks, "attacks"),
        ("docs/reference/networks.md", networks, "networks"),
        ("docs/explain/what_communication_buys.md", communication, "communication/digits"),
        ("docs/explain/what_communication_buys.md", communication, "communication/cifar10"),
    ],
)
def test_a_page_s_table_is_what_the_study_s_record_says(page: str, study: ModuleType, record: str) -> None:
    folder = ROOT / "results" / record
    cells = [json.loads(line) for line in (folder / "cells.jsonl").read_text().splitlines()]
    assert study.table(cells).strip() in (ROOT / page).read_text()
    assert (folder / "table.md").read_text() == study.table(cells)
    assert len(json.loads((folder / "environment.json").read_text())["commit"]) == 40


def test_the_page_s_table_of_the_paper_s_networks_is_what_their_cells_say() -> None:
    assert papers_networks.table() in (ROOT / "docs/explain/what_communication_buys.md").read_text()


COMMANDS = re.findall(r"^\| `(\w+)` \| `tinyproto run ([^`]+)`", (ROOT / "results/README.md").read_text(), re.MULTILINE)


def test_every_record_stands_in_the_list() -> None:
    listed = set(re.findall(r"^\| `(\w+)` \| `", (ROOT / "results/README.md").read_text(), re.MULTILINE))
    assert listed == {path.name for path in (ROOT / "results").iterdir() if path.is_dir()}


@pytest.mark.parametrize(("record", "command"), COMMANDS, ids=[name for name, _ in COMMANDS])
def test_a_record_is_of_the_command_that_stands_beside_it(
    record: str, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    config, *overrides = shlex.split(command)
    with modules_of_a_folder(ROOT / "examples"):
        told = load_config(Path(config), overrides)
        kept = load_config(ROOT / "results" / record / "config.yaml")
    assert kept.resolved() == told.resolved()
