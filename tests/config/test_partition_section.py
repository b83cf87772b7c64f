"""The `partition:` section: every kind reads its own keys and no others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tinyproto.config import Config, load_config, parse_config
from tinyproto.errors import ConfigError


def parsed(**partition: Any) -> Config:
    return parse_config({"models": ["small_cnn_a"], "algorithms": ["local"], "partition": partition})


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, ("dirichlet", 20, 0.1, None, None)),
        ({"kind": "quantity", "alpha": 2}, ("quantity", 20, 2.0, None, None)),
        ({"kind": "iid", "num_clients": 3}, ("iid", 3, None, None, None)),
        ({"kind": "pathological", "classes_per_client": 2}, ("pathological", 20, None, 2, None)),
        ({"kind": "file", "file": "a.json"}, ("file", None, None, None, "a.json")),
    ],
)
def test_a_kind_has_its_own_keys_and_defaults_and_resolves_to_itself(
    given: dict[str, Any], expected: tuple[Any, ...]
) -> None:
    config = parsed(**given)
    found = config.model.partition
    assert (found.kind, found.num_clients, found.alpha, found.classes_per_client, found.file) == expected
    assert parse_config(config.resolved()).resolved() == config.resolved()


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"kind": "iid", "alpha": 0.1}, "partition: alpha is read by kind dirichlet and quantity, not by iid"),
        ({"classes_per_client": 2}, "classes_per_client is read by kind pathological, not by dirichlet"),
        ({"kind": "quantity", "file": "a"}, "file is read by kind file, not by quantity"),
        ({"kind": "pathological"}, "kind pathological needs partition.classes_per_client"),
        ({"kind": "file"}, "kind file needs partition.file"),
        ({"kind": "pathological", "classes_per_client": 0}, "partition.classes_per_client"),
        ({"kind": "dirichet"}, "partition.kind"),
        ({"kind": ["iid"]}, "partition.kind"),
        ({"seed": 2**32}, "partition.seed"),
    ],
)
def test_a_key_of_another_kind_or_a_missing_one_is_refused(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as error:
        parsed(**given)
    assert says in str(error.value)


def write_config(path: Path, partition: str) -> Path:
    path.write_text(f"models: [small_cnn_a]\nalgorithms: [local]\npartition: {partition}\n")
    return path


def test_an_override_of_the_kind_leaves_the_file_s_keys_for_another_kind_behind(tmp_path: Path) -> None:
    file = write_config(tmp_path / "a.yaml", "{kind: dirichlet, alpha: 0.3, num_clients: 7, seed: 4}")
    iid = load_config(file, ["partition.kind=iid"]).model.partition
    assert (iid.alpha, iid.num_clients, iid.seed) == (None, 7, 4)
    quantity = load_config(file, ["partition.kind=quantity"]).model.partition
    assert (quantity.alpha, quantity.num_clients) == (0.3, 7)
    fixed = load_config(file, ["partition.kind=file", "partition.file=a.json"]).model.partition
    assert (fixed.alpha, fixed.num_clients) == (None, None)


def test_a_key_of_another_kind_beside_the_override_is_refused_all_the_same(tmp_path: Path) -> None:
    file = write_config(tmp_path / "a.yaml", "{kind: dirichlet}")
    with pytest.raises(ConfigError, match="alpha is read by"):
        load_config(file, ["partition.kind=iid", "partition.alpha=1"])
