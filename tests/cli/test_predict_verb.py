"""`tinyproto predict` and `tinyproto export`: files, folders and patterns in, a table or JSON out."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import tinyproto as tp
from support_cli import called, environment
from support_grid import make_experiment
from tinyproto import grid

CONFIG = """\
name: kept
partition: {num_clients: 2, alpha: 5.0}
models: [small_cnn_c]
prototypes: {dim: 12, cps_dim: 3}
train: {rounds: 1, batch_size: 64}
algorithms: [local, fedproto]
keep_models: true
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run that kept its networks, and photos of digits."""
    made = tmp_path_factory.mktemp("predict")
    grid.run(make_experiment(made, CONFIG), made / "runs")
    (made / "photos" / "more").mkdir(parents=True)
    for name, digit in zip(("a", "b", "more/c"), tp.data.load("digits").inputs.numpy(), strict=False):
        Image.fromarray(np.rint(digit[0] * (255 / 16)).astype(np.uint8)).save(made / "photos" / f"{name}.png")
    (made / "photos" / "notes.txt").write_text("no image")
    return made


def test_json_has_class_label_and_score_by_each_rule(folder: Path) -> None:
    words = ["predict", "runs/kept", "--client", "1", "--algorithm", "fedproto", "photos/a.png", "--json"]
    done = called(*words, cwd=folder)
    values = json.loads(done.stdout)
    assert {name: values[name] for name in ("client", "label", "seed", "network", "dataset", "missing")} == {
        "client": 1, "label": "fedproto", "seed": 0, "network": "small_cnn_c", "dataset": "digits", "missing": {},
    }  # fmt: skip
    (found,) = values["predictions"]
    client = tp.load_client(folder / "runs" / "kept", 1, label="fedproto")
    for rule in ("head", "global", "local"):
        ours = client.predict(folder / "photos" / "a.png", rule)
        label = int(ours.labels[0])
        assert found[rule] == {"class": str(label), "label": label, "score": float(ours.scores[0, label])}


@pytest.mark.parametrize(
    ("given", "names"),
    [
        (["photos/a.png"], ["a"]),
        (["photos"], ["a", "b", "more/c"]),
        (["photos/*.png"], ["a", "b"]),
        (["photos/**/*.png"], ["a", "b", "more/c"]),
        (["photos/b.png", "photos/more"], ["b", "more/c"]),
    ],
)
def test_files_folders_and_patterns_name_images(folder: Path, given: list[str], names: list[str]) -> None:
    done = called("predict", "runs/kept", *given, "--client", "0", "--label", "local", "--json", cwd=folder)
    images = [found["input"] for found in json.loads(done.stdout)["predictions"]]
    assert images == [f"photos/{name}.png" for name in names]


def test_the_table_has_a_row_for_each_image_and_tells_which_client_and_what_it_lacks(folder: Path) -> None:
    done = called("predict", "runs/kept", "photos", "--client", "0", "--label", "local", cwd=folder)
    title, *table, lacking = [line.strip() for line in done.stdout.splitlines() if line.strip()]
    assert title == "client 0, small_cnn_c, local, seed 0: runs/kept/models/local-0/client-0.safetensors"
    assert table[0].split() == ["input", "head", "score", "local", "score"]
    assert [line.split()[0] for line in table[2:]] == ["photos/a.png", "photos/b.png", "photos/more/c.png"]
    assert lacking == "client 0 received no global prototypes (its method is local)"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            "predict runs/kept photos",
            "several algorithms; choose one with --algorithm (label= in Python): fedproto, local; and a client with",
        ),
        ("predict runs/kept photos --label local", "clients 0 … 1; choose one with --client"),
        ("predict runs/none photos --client 0", "runs/none does not exist; give a run folder"),
        ("predict runs/kept --client 0 --label local none.png", "none.png does not exist"),
        ("predict runs/kept --client 0 --label local *.gif", "no file matches *.gif"),
        ("predict runs/kept --client 0 --label local photos/notes.txt", "notes.txt cannot be decoded as an image"),
        ("predict runs/kept --client 0 --label local runs/kept/models", "runs/kept/models has no images (.bmp,"),
        ("export runs/kept --client 0 --label local --format torch", "it can classify by head or local"),
        ("export runs/kept --client 0 --label local --format tflite", "unknown format 'tflite'; known: onnx, torch"),
    ],
)
def test_a_mistake_is_one_sentence_that_says_what_to_do(folder: Path, words: str, told: str) -> None:
    done = called(*words.split(), cwd=folder)
    assert done.returncode == 2
    assert told in done.stderr
    assert "Traceback" not in done.stderr


def test_export_writes_one_file_and_says_how_large_it_is(folder: Path, tmp_path: Path) -> None:
    words = ["--client", "1", "--algorithm", "fedproto", "--format", "torch", "-o", str(tmp_path / "c.pt2"), "--json"]
    values = json.loads(called("export", "runs/kept", *words, cwd=folder).stdout)
    assert values["bytes"] == (tmp_path / "c.pt2").stat().st_size
    assert (values["rule"], values["classes"]) == ("global", list("0123456789"))


def test_predicting_imports_neither_configs_nor_federations(folder: Path) -> None:
    """Torch takes most of the seconds of one prediction; these would add half of one."""
    code = (
        "import sys; from tinyproto.cli.main import app; app(sys.argv[1:], standalone_mode=False); "
        "print(sorted({'yaml', 'sklearn', 'tinyproto.config', 'tinyproto.federation'} & set(sys.modules)))"
    )
    words = ["predict", "runs/kept", "photos/a.png", "--client", "0", "--label", "local"]
    done = subprocess.run(
        [sys.executable, "-c", code, *words], cwd=folder, env=environment(), capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip
    assert done.stdout.splitlines()[-1] == "[]", done.stdout + done.stderr
