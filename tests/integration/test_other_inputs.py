"""Whole runs on tables, signals and texts: every algorithm trains, and what is trained is worth it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tinyproto as tp
from support_cli import in_process
from tinyproto.algorithms import ALGORITHMS
from tinyproto.errors import ConfigError

CONFIGS = Path(__file__).parents[2] / "configs"
RANDOM = np.random.default_rng(0)


def texts(samples: int = 240, length: int = 12) -> tp.data.Dataset:
    """Token ids of four classes, each with words of its own among common ones; short texts are padded."""
    labels = np.arange(samples) % 4
    ids = RANDOM.integers(1, 20, (samples, length))
    own = RANDOM.random((samples, length)) < 0.4
    ids[own] = (20 + 5 * labels[:, None] + RANDOM.integers(0, 5, (samples, length)))[own]
    ids[np.arange(length) >= RANDOM.integers(5, length + 1, (samples, 1))] = 0
    return tp.data.from_arrays(ids, labels, name="texts", class_names=["a", "b", "c", "d"], vocabulary=40)


def small(data: tp.data.Dataset | str, algorithm: str, rounds: int, **train: Any) -> tp.api.Result:
    models = "small_mlp_a" if algorithm == "fedavg" and data == "wine" else None
    if algorithm == "fedavg" and data != "wine":
        models = "small_text_a"
    return tp.simulate(
        data=data, algorithm=algorithm, models=models, num_clients=4, alpha=10.0, rounds=rounds, proto_dim=20,
        cps_dim=5, settings={"train": {"batch_size": 16, "learning_rate": 0.05, **train}},
    )  # fmt: skip


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_algorithm_trains_on_a_table_and_on_texts(algorithm: str) -> None:
    found = small("wine", algorithm, 2)
    assert found.summary["class_names"] == ["class_0", "class_1", "class_2"]
    assert found.accuracy["last"]["head"] is not None
    if algorithm == "input_means":
        with pytest.raises(ConfigError, match="token ids have no mean"):
            small(texts(), algorithm, 1)
    else:
        assert small(texts(), algorithm, 1).summary["dataset"] == "texts"


def test_a_text_network_learns_which_words_are_whose() -> None:
    accuracy = small(texts(400), "tinyproto_ft", 20, learning_rate=0.1).accuracy["last"]
    assert accuracy["local"] is not None
    assert accuracy["local"] > 0.8


@pytest.mark.parametrize(("name", "least", "classes"), [("wine", 0.75, 3), ("signals", 0.4, 6)])
def test_the_configs_run_keep_the_names_of_classes_and_predict_from_a_file(
    name: str, least: float, classes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    words = ["run", str(CONFIGS / f"{name}.yaml"), "train.rounds=4", "seeds=[0]", "algorithms=[local, tinyproto_ft]"]
    assert in_process(monkeypatch, tmp_path, *words, "train.learning_rate=0.05", "keep_models=true", "--json") == 0
    results = json.loads((tmp_path / "runs" / name / "summary.json").read_text())["results"]
    for result in results:
        assert (result["dataset"], len(result["class_names"])) == (name, classes)
        assert result["accuracy"]["best"]["local"] >= least
    client = tp.load_client(tmp_path / "runs" / name, 1, label="tinyproto_ft")
    data = tp.data.load(name)
    found = client.predict(data.inputs.numpy().astype("float64"), "local")
    assert found.scores.shape == (len(data), classes)
    assert client.classes == data.class_names
    assert float((found.labels == data.labels).float().mean()) >= least - 0.2
    if data.columns is None:
        np.save(tmp_path / "new.npy", data.inputs[:2].numpy())
    else:  # columns in another order, one more, and no labels
        columns = list(reversed(data.columns))
        rows = [[*map(str, reversed(row)), "blue"] for row in data.inputs[:2].tolist()]
        (tmp_path / "new.csv").write_text("\n".join(map(",".join, [[*columns, "glass"], *rows])))
    file = "new.npy" if data.columns is None else "new.csv"
    capsys.readouterr()
    asked = ("predict", f"runs/{name}", "--client=1", "--label=tinyproto_ft", file, "--json")
    assert in_process(monkeypatch, tmp_path, *asked) == 0
    told = json.loads(capsys.readouterr().out)["predictions"]
    assert [each["input"] for each in told] == [f"{file}, row 1", f"{file}, row 2"]
    assert [each["local"]["class"] for each in told] == found.classes[:2]


def test_worker_processes_map_floats_and_give_the_same_rounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["run", str(CONFIGS / "wine.yaml"), "train.rounds=2", "seeds=[0]", "algorithms=[tinyproto_ft]", "--quiet"]
    for count in (1, 2):
        assert in_process(monkeypatch, tmp_path, *words, f"name=of_{count}", f"train.workers={count}") == 0
    one, two = ((tmp_path / "runs" / f"of_{count}" / "rounds.jsonl").read_bytes() for count in (1, 2))
    assert one == two
