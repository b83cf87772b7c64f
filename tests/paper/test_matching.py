from __future__ import annotations

import copy
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from paper.experiments import PaperConfig, experiments
from paper.matching import PaperCell, cell_key, paper_cells, record_key
from tinyproto.config import load_config

ROOT = Path(__file__).parents[2]
PAPER = {config.stem: config for config in experiments()}
TABLE1 = {cell.label: cell for cell in paper_cells(PAPER["table1_cifar100"])}


def changed(cell: PaperCell, section: str, key: str, value: Any) -> str:
    config = copy.deepcopy(dict(cell.config))
    config[section][key] = value
    return cell_key(config, cell.entry)


def record(config: str, *overrides: str) -> dict[str, Any]:
    """What a run would write down as its config.yaml, read again."""
    resolved = load_config(ROOT / PAPER[config].path, overrides).resolved()
    written: dict[str, Any] = yaml.safe_load(yaml.safe_dump(resolved))
    return written


def test_a_run_of_one_cell_is_that_cell_whatever_it_is_called_and_wherever_it_ran() -> None:
    config = record(
        "table1_cifar100", "name=mine", "data.root=elsewhere", "train.trainer=stacked", "train.workers=3",
        "train.device=cuda:1", "train.client_memory=2GB", "train.parallel_cells=auto",
        "checkpoint.every_seconds=7", "seeds=[5]", "algorithms=[{name: fedtgp, label: anything}]", "train.rounds=10",
        "keep_models=true",
    )  # fmt: skip
    assert cell_key(config, config["algorithms"][0]) == TABLE1["fedtgp"].key


@pytest.mark.parametrize("config", experiments(), ids=lambda config: config.stem)
def test_every_entry_of_a_whole_run_is_its_own_cell(config: PaperConfig) -> None:
    written = record(config.stem, "data.root=data")
    keys = [cell_key(written, entry) for entry in written["algorithms"]]
    assert keys == [cell.key for cell in paper_cells(config)]
    assert len(set(keys)) == len(keys)


def test_no_two_cells_of_the_paper_are_the_same() -> None:
    counts = Counter(cell.key for config in PAPER.values() for cell in paper_cells(config))
    assert [key for key, count in counts.items() if count > 1] == []


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("data", "name", "cifar10"),
        ("partition", "alpha", 0.5),
        ("partition", "seed", 2),
        ("prototypes", "dim", 100),
        ("prototypes", "counted_samples", "train"),
        ("train", "shuffle", True),
        ("train", "learning_rate", 0.1),
        ("train", "precision", "tf32"),
        ("evaluate", "every", 10),
    ],
)
def test_what_changes_numbers_makes_another_cell(section: str, key: str, value: Any) -> None:
    cell = TABLE1["fedproto"]
    assert cell.config[section][key] != value
    assert changed(cell, section, key, value) != cell.key


def test_what_was_played_on_a_part_of_a_dataset_is_no_cell_of_the_paper() -> None:
    cell = TABLE1["fedproto"]
    assert record_key(cell.config, cell.entry, "cifar100") == cell.key
    assert record_key(cell.config, cell.entry, "cifar100 (50 of 100 classes)") != cell.key


FIRST = "tiny_imagenet, first 100 classes"


@pytest.mark.parametrize("asked", ["data.first_classes=100", "data.first_classes=null"])
def test_first_classes_are_a_cell_of_their_own_whether_they_were_asked_for_or_are_all_there_is(asked: str) -> None:
    config = record("tiny_imagenet_100", asked)
    cells, whole = paper_cells(PAPER["tiny_imagenet_100"]), paper_cells(PAPER["table1_tiny_imagenet"])
    keys = [record_key(config, entry, FIRST) for entry in config["algorithms"]]
    assert keys == [cell.key for cell in cells]
    assert not set(keys) & {cell.key for cell in whole}


def test_all_classes_and_other_100_classes_are_not_the_first_100() -> None:
    config = record("tiny_imagenet_100")
    known = {cell.key for paper in experiments() for cell in paper_cells(paper)}
    others = "tiny_imagenet (100 of 200 classes, 55000 of 110000 images)"
    assert not {record_key(config, entry, others) for entry in config["algorithms"]} & known
    whole = {cell.key for cell in paper_cells(PAPER["table1_tiny_imagenet"])}
    assert {record_key(config, entry, "tiny_imagenet") for entry in config["algorithms"]} == whole


def test_a_record_from_before_there_were_first_classes_is_still_its_cell() -> None:
    config = record("table1_tiny_imagenet")
    del config["data"]["first_classes"]
    cells = paper_cells(PAPER["table1_tiny_imagenet"])
    assert [cell_key(config, entry) for entry in config["algorithms"]] == [cell.key for cell in cells]
    assert [record_key(config, entry, "tiny_imagenet") for entry in config["algorithms"]] == [
        cell.key for cell in cells
    ]


def test_another_hyper_parameter_or_preset_makes_another_cell() -> None:
    cell = TABLE1["tinyproto_ft"]
    assert cell_key(cell.config, {**cell.entry, "global_scale": 0.1}) != cell.key
    sound = {found.label: found for found in paper_cells(PAPER["table1_cifar100"], "sound")}
    assert sound["tinyproto_ft"].key != cell.key
    assert sound["tinyproto_ft"].config["evaluate"]["statistic"] == "last10"


def test_the_shared_section_of_prototypes_counts_only_through_the_entries_that_read_it() -> None:
    plain, compressed = TABLE1["fedproto"], TABLE1["tinyproto_fp"]
    assert changed(plain, "prototypes", "cps_dim", 150) == plain.key
    narrower = record("table1_cifar100", "prototypes.cps_dim=150", "algorithms=[tinyproto_fp]")
    assert cell_key(narrower, narrower["algorithms"][0]) != compressed.key
    appendix = {cell.label: cell for cell in paper_cells(PAPER["appendix_cifar100"])}
    label = "tinyproto_fp(cps_dim=150,scaling=count)"
    assert cell_key(narrower, narrower["algorithms"][0]) == appendix[label].key


def test_a_committed_record_is_recognised() -> None:
    written = yaml.safe_load((ROOT / "results" / "speed_cifar100" / "config.yaml").read_text())
    found = [cell_key(written, entry) for entry in written["algorithms"]]
    assert found == [TABLE1[name].key for name in ("fedproto", "fedtgp", "tinyproto_ft")]


def test_a_record_from_before_there_were_types_and_budgets_is_still_its_cell() -> None:
    config = record("table1_cifar100")
    for entry in config["algorithms"]:
        entry.pop("byte_budget", None)
    config["prototypes"].pop("byte_budget")
    config.pop("wire")
    config.pop("keep_models")
    assert [cell_key(config, entry) for entry in config["algorithms"]] == [cell.key for cell in TABLE1.values()]


def test_types_on_the_wire_tell_cells_apart_wherever_they_are_given() -> None:
    typed = "{up: int8, down: float32, rounding: nearest, download: held}"
    for_all = record("table1_cifar100", f"wire={typed}")
    of_one = record("table1_cifar100", f"algorithms=[{{name: fedtgp, wire: {typed}}}]")
    fedtgp = next(entry for entry in for_all["algorithms"] if entry["name"] == "fedtgp")
    key = cell_key(for_all, fedtgp)
    assert key == cell_key(of_one, of_one["algorithms"][0])
    assert key != TABLE1["fedtgp"].key
