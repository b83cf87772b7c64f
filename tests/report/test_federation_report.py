"""The report of a real federation claims only what its coordinator knows."""

from __future__ import annotations

import json
from html import unescape
from pathlib import Path
from typing import Any

import pytest
import yaml

from support_members import TOKEN, play_in_memory, small_values
from tinyproto.config import load_config, parse_config
from tinyproto.errors import ConfigError
from tinyproto.federation.terms import offered_terms
from tinyproto.report.page import make_report
from tinyproto.report.runs import read_run
from tinyproto.tracking.run_folder import RunFolder


def own_images(**federation: Any) -> dict[str, Any]:
    """A config as the tutorial for own data has it: no dataset, no partition, no networks."""
    values = small_values(clients=3, **federation)
    del values["data"], values["partition"], values["models"]
    values["federation"] |= {"clients": 3, "num_classes": None, "classes": ["ant", "bee", "cat", "dog"]}
    return values


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return play_in_memory(tmp_path_factory.mktemp("own"), own_images())[0]


def test_it_names_classes_shape_and_clients_and_what_is_unknown(own: Path) -> None:
    page = unescape(make_report([read_run(own)]).html)
    assert "real federation, 3 clients, 4 classes (ant, bee, cat, dog), inputs of shape 1 × 6 × 6, 2 rounds" in page
    assert "Not known to the coordinator: the clients' samples and their networks." in page
    assert "tinyproto serve config.yaml" in page
    for claim in ("digits", "networks small_cnn", "tinyproto run config.yaml", "num_clients: 20", "add `local`"):
        assert claim not in page


def test_its_config_claims_no_data_and_starts_it_again(own: Path) -> None:
    written = yaml.safe_load((own / "config.yaml").read_text())
    assert not {"data", "partition", "models"} & written.keys()
    served = json.loads((own / "serve.json").read_text())["config"]
    assert load_config(own / "config.yaml").resolved() == served


def test_its_summary_says_so_too(own: Path) -> None:
    (result,) = RunFolder(own).read_results()
    assert result["dataset"] == "the clients' own data"
    assert result["federation"] == {
        "joined": 3, "num_classes": 4, "classes": ["ant", "bee", "cat", "dog"], "input_shape": [1, 6, 6],
        "own_data": True,
    }  # fmt: skip


def test_its_verdict_advises_only_what_a_client_can_do(own: Path) -> None:
    (study,) = make_report([read_run(own)]).studies
    advice = [sentence for sentence in study.settings[0].verdict() if "unknown" in sentence]
    assert len(advice) == 1
    assert "`tinyproto join --offline`" in advice[0]
    assert "<code>tinyproto join --offline</code>" in make_report([read_run(own)]).html


def test_a_dataset_that_gives_the_shape_is_called_the_config_s(tmp_path: Path) -> None:
    folder, _ = play_in_memory(tmp_path, small_values())
    summary = json.loads((folder / "summary.json").read_text())
    summary["results"][0] |= {"dataset": "digits"}
    summary["results"][0]["federation"]["own_data"] = False
    (folder / "summary.json").write_text(json.dumps(summary))
    page = unescape(make_report([read_run(folder)]).html)
    assert "Its config names digits; a client may hold other samples of that shape." in page
    assert "this simulates it: tinyproto run config.yaml robust.defence=guard" in page


@pytest.mark.parametrize("name", ["fedavg", "lg_fedavg", "fedgh", "fml"])
def test_a_method_that_exchanges_networks_asks_a_coordinator_for_them(name: str) -> None:
    values = own_images() | {"algorithms": [name]}
    with pytest.raises(ConfigError, match=f"algorithm {name}.*list them in `models`"):
        offered_terms(parse_config(values), TOKEN)
