"""docs/reference/configuration.md says what the schema says."""

from __future__ import annotations

import importlib
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel

from tinyproto.algorithms import ALGORITHMS
from tinyproto.config import parse_config
from tinyproto.config.algorithms import FROM_PROTOTYPES
from tinyproto.config.presets import PRESETS
from tinyproto.config.schema import neutral_keys, schema_fields
from tinyproto.data.sources import SOURCES
from tinyproto.models import NETWORKS

page: Any = importlib.import_module("docs.configuration")  # a script: mypy knows it by another name
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "configuration.md"


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split(" | ")]


def rows(heading: str) -> dict[str, dict[str, str]]:
    """The table under a heading, by its first column without backticks."""
    text = str(page.reference()).split(f"\n{heading}\n", 1)[1].split("\n#", 1)[0]
    head, _, *body = [cells(line) for line in text.splitlines() if line.startswith("|")]
    return {row[0].strip("`"): dict(zip(head, row, strict=True)) for row in body}


def test_the_page_is_what_the_schema_says_now() -> None:
    assert PAGE.read_text(encoding="utf-8") == page.reference(), "stale: run `make docs`"


def test_every_key_of_the_schema_has_a_row_with_a_meaning() -> None:
    for key, field in schema_fields():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            continue
        section, _, _ = key.rpartition(".")
        row = rows(f"## `{section}:`" if section else "## Top level")[key]
        assert row["meaning"], f"{key} has no description in the schema"


def test_every_hyper_parameter_has_a_row_with_a_meaning() -> None:
    for spec in ALGORITHMS.values():
        for key in (field.name for field in fields(spec.hyper)):
            assert page.meaning(spec, key), f'{spec.name}.{key} has no meaning: annotate it, Annotated[float, "…"]'
            assert rows(f"### `{spec.name}`")[key]["meaning"] == page.meaning(spec, key)


def test_types_bounds_defaults_and_presets_are_told() -> None:
    assert rows("## `train:`")["train.participation"] == {
        "key": "`train.participation`",
        "type": "number > 0, ≤ 1",
        "default": "`1.0`",
        "set by presets": "",
        "meaning": "fraction of the clients that participate in a round",
    }
    shuffled = rows("## `train:`")["train.shuffle"]["set by presets"]
    assert shuffled == "`true` (sound), `false` (reference, paper, published)"
    assert rows("## `prototypes:`")["prototypes.cps_dim"]["type"] == "integer ≥ 1 or `null`"
    assert rows("## Top level")["seeds"]["type"] == "list of integer ≥ 0, 1 or more"
    assert rows("## Top level")["algorithms"]["default"] == "required"


def test_result_neutral_keys_are_marked() -> None:
    lines = [line for line in page.reference().splitlines() if line.startswith("| `") and "*neutral" in line]
    assert {cells(line)[0].strip("`") for line in lines} == set(neutral_keys())
    on_resume = {cells(line)[0].strip("`") for line in lines if "*neutral, also on resume*" in line}
    assert on_resume == set(neutral_keys(on_resume=True))


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_hyper_parameters_are_those_that_a_config_gets(name: str, preset: str) -> None:
    known = {field.name for field in fields(ALGORITHMS[name].hyper)}
    asked = "global_scale" in known and preset != "sound"  # where it has no default on these data
    given: dict[str, object] = {"name": name} | ({"global_scale": 1.0} if asked else {})
    config = parse_config({"preset": preset, "models": ["small_cnn_a"], "algorithms": [given]})
    told = rows(f"### `{name}`") if known else {}
    for key, value in asdict(config.algorithms[0].hyper).items():
        if key in FROM_PROTOTYPES:
            assert told[key][preset] == f"`prototypes.{key}`"
        elif key != "global_scale":
            assert yaml.safe_load(told[key][preset].strip("`")) == value


def test_a_published_scale_is_told_by_dataset() -> None:
    row = rows("### `tinyproto_ft`")["global_scale"]
    assert row["sound"] == "`auto`"
    assert row["reference"] == ("`0.001` on cifar10, `0.01` on cifar100, `0.01` on tiny_imagenet, required elsewhere")


def test_every_network_and_dataset_is_listed() -> None:
    assert set(rows("## Networks")) == set(NETWORKS)
    for name in SOURCES:
        assert f"`{name}`" in page.reference().split("## Datasets", 1)[1].split("##", 1)[0]


def test_every_network_has_words_of_its_own() -> None:
    words = {name: row["network"] for name, row in rows("## Networks").items()}
    assert list(words) == list(NETWORKS)
    assert not [name for name, said in words.items() if not said or "partial(" in said]
    assert len(set(words.values())) == len(words)
    for name, said in words.items():
        assert ("small images" in said) == name.endswith("_small_images")
