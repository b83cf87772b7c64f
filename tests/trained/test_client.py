"""A loaded client classifies whatever form its inputs come in, and says what it cannot do."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import safetensors.torch
import torch
from PIL import Image

import tinyproto as tp
from support import make_patterns
from support_grid import make_experiment
from tinyproto import grid
from tinyproto.errors import ConfigError, DataError, RunFolderError
from tinyproto.storage.network_files import read_network, write_network
from tinyproto.trained.inputs import InputFormat

CONFIG = """\
name: trial
data: {name: npz, root: DATA}
partition: {num_clients: 2, alpha: 5.0}
models: [small_cnn_b]
prototypes: {dim: 12, cps_dim: 3}
train: {rounds: 1, batch_size: 8}
algorithms: [local, fedproto]
keep_models: true
"""
SHAPE = (3, 10, 8)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    images = make_patterns(60, 4, SHAPE)
    np.savez(folder / "data.npz", images=images.inputs.numpy(), labels=images.labels.numpy())
    return grid.run(make_experiment(folder, CONFIG.replace("DATA", str(folder / "data.npz"))), folder / "runs")


@pytest.fixture
def client(run: Path) -> tp.TrainedClient:
    return tp.load_client(run, 1, label="fedproto")


def pixels() -> np.ndarray[Any, np.dtype[np.uint8]]:
    return make_patterns(5, 4, SHAPE, seed=3).inputs.numpy()


@pytest.mark.parametrize("rule", ["head", "global", "local"])
def test_an_image_has_one_class_in_whatever_form_it_comes(tmp_path: Path, client: tp.TrainedClient, rule: str) -> None:
    many = pixels()
    pictures = [Image.fromarray(one.transpose(1, 2, 0)) for one in many]
    paths = [tmp_path / f"{index}.png" for index in range(len(many))]
    for path, picture in zip(paths, pictures, strict=True):
        picture.save(path)
    wanted = client.predict(many, rule)
    assert wanted.scores.shape == (5, 4)
    assert wanted.classes == [client.classes[label] for label in wanted.labels]
    for given in (torch.from_numpy(many), many.transpose(0, 2, 3, 1), pictures, paths, list(map(str, paths))):
        assert torch.equal(client.predict(given, rule).scores, wanted.scores)
    for one in (many[0], many[0].transpose(1, 2, 0), pictures[0], paths[0], str(paths[0])):
        torch.testing.assert_close(client.predict(one, rule).scores, wanted.scores[:1], rtol=1e-5, atol=1e-5)


def test_a_picture_of_another_size_and_mode_is_converted(tmp_path: Path, client: tp.TrainedClient) -> None:
    Image.new("L", (40, 31), 200).save(tmp_path / "grey.png")
    plain = np.full((1, *SHAPE), 200, dtype=np.uint8)
    assert torch.equal(client.predict(tmp_path / "grey.png").scores, client.predict(plain).scores)


def test_a_picture_for_the_digits_is_scaled_to_their_sixteen_shades(tmp_path: Path) -> None:
    config = CONFIG.replace("{name: npz, root: DATA}", "{name: digits}").replace("local, fedproto", "local")
    client = tp.load_client(grid.run(make_experiment(tmp_path, config), tmp_path / "runs"), 0)
    digit = tp.data.load("digits").inputs[:1].numpy()
    picture = Image.fromarray(np.rint(digit[0, 0] * (255 / 16)).astype(np.uint8))
    assert torch.equal(client.predict(picture, "head").scores, client.predict(digit, "head").scores)
    assert torch.equal(client.predict(digit[0, 0], "head").scores, client.predict(digit, "head").scores)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (pixels().astype(np.float32) / 255, "takes 3 × 10 × 8 uint8 as stored, before any scaling; these are float32"),
        (pixels()[:, :2], "of shape 3 × 10 × 8, alone or in a batch, not 5 × 2 × 10 × 8"),
        ("none.png", "none.png does not exist"),
        (__file__, "cannot be decoded as an image: UnidentifiedImageError"),
        (None, "cannot classify a NoneType; give files, PIL images or an array"),
        (Image.new("I;16", (8, 10)), "the image has more than 8 bits per channel"),
    ],
)
def test_what_does_not_fit_is_refused_in_words(client: tp.TrainedClient, given: Any, words: str) -> None:
    with pytest.raises(DataError, match=words):
        client.predict(given)


def test_a_client_without_a_rule_says_which_it_has(run: Path, client: tp.TrainedClient) -> None:
    alone = tp.load_client(run, 1, label="local")
    assert alone.rules == ("head", "local")
    with pytest.raises(ConfigError, match=r"received no global prototypes \(its method is local\); .* head or local"):
        alone.predict(pixels())
    with pytest.raises(ConfigError, match="unknown rule 'hed', did you mean 'head'"):
        client.predict(pixels(), "hed")


def rewritten(file: Path, target: Path, **facts: Any) -> Path:
    """Write a kept file again with other facts, and without prototypes."""
    with safetensors.safe_open(file, framework="pt") as opened:
        known = json.loads(opened.metadata()["tinyproto"])
        tensors = {name: opened.get_tensor(name) for name in opened.keys() if "/" not in name}  # noqa: SIM118
    tag = {name: value for name, value in (known | facts).items() if value is not ...}
    safetensors.torch.save_file(tensors, target, {"tinyproto": json.dumps(tag)})
    return target


def test_values_that_no_network_has_seen_are_refused(tmp_path: Path, client: tp.TrainedClient) -> None:
    target = tmp_path / "client-1.safetensors"
    floats = tp.load_client(rewritten(client.path, target, dtype="float32"))
    strange = pixels().astype(np.float64)
    strange[1, 0, 0, 0] = np.nan
    with pytest.raises(DataError, match="sample 1 has the value nan"):
        floats.predict(strange, "head")
    ids = InputFormat.of({**client.facts, "dtype": "int64", "vocabulary": 9})
    assert ids.batch(np.full(SHAPE, 8)).max() == 8
    for value, says in ((9, "token ids are 0 … 8, but one is 9"), (-1, "token ids are 0 or more")):
        with pytest.raises(DataError, match=says):
            ids.batch(np.full(SHAPE, value))


class Frame(dict[str, Any]):
    """As much of a pandas data frame as is needed: columns by name."""

    @property
    def columns(self) -> list[str]:
        return list(self)

    def __getitem__(self, names: Any) -> Any:
        return Frame({name: self.get(name) for name in names})

    def to_numpy(self) -> np.ndarray[Any, Any]:
        return np.stack(list(self.values()), 1)


def test_the_columns_of_a_data_frame_are_matched_by_name(client: tp.TrainedClient) -> None:
    facts = {**client.facts, "dtype": "float32", "input_shape": [2], "columns": ["age", "height"], "vocabulary": None}
    table = InputFormat.of(facts)
    frame = Frame(height=np.array([1.0, 2.0]), name=np.array(["a", "b"]), age=np.array([3.0, 4.0]))
    assert table.batch(frame).tolist() == [[3.0, 1.0], [4.0, 2.0]]
    with pytest.raises(DataError, match="the table has no column 'age'; the network takes age, height"):
        table.batch(Frame(height=np.array([1.0])))


def test_the_white_of_an_earlier_release_s_digits_follows_from_their_normalisation(
    tmp_path: Path, client: tp.TrainedClient
) -> None:
    old = rewritten(client.path, tmp_path / "client-1.safetensors", white=..., scale=0.125, shift=-1.0)
    assert tp.load_client(old).inputs.white == 16


def test_a_file_of_an_earlier_release_classifies_by_its_head(tmp_path: Path, client: tp.TrainedClient) -> None:
    gone: dict[str, Any] = dict.fromkeys(("dataset", "class_names", "dtype", "white", "columns"), ...)
    old = tp.load_client(rewritten(client.path, tmp_path / "client-1.safetensors", schema_version=1, **gone))
    assert old.rules == ("head",)
    assert torch.equal(old.predict(pixels(), "head").scores, client.predict(pixels(), "head").scores)
    with pytest.raises(ConfigError, match="no global prototypes, because its network was kept by an earlier release"):
        old.predict(pixels())


def test_classes_have_their_names_where_the_file_has_them(tmp_path: Path, client: tp.TrainedClient) -> None:
    assert client.classes == ("0", "1", "2", "3")
    file = rewritten(client.path, tmp_path / "client-1.safetensors", class_names=["ant", "bee", "cat", "dog"])
    named = tp.load_client(file)
    assert named.predict(pixels(), "head").classes == [
        named.classes[label] for label in client.predict(pixels(), "head").labels
    ]
    assert named.classes == ("ant", "bee", "cat", "dog")


def test_a_normalisation_by_channel_is_applied_along_the_first_axis(tmp_path: Path, client: tp.TrainedClient) -> None:
    file = rewritten(client.path, tmp_path / "client-1.safetensors", scale=[0.1, 0.2, 0.3], shift=[1.0, 2.0, 3.0])
    scale, shift = torch.tensor([0.1, 0.2, 0.3]), torch.tensor([1.0, 2.0, 3.0])
    inputs = torch.from_numpy(pixels()) * scale[:, None, None] + shift[:, None, None]
    with torch.no_grad():
        wanted = client.model(inputs).logits.softmax(1).double()
    torch.testing.assert_close(tp.load_client(file).predict(pixels(), "head").scores, wanted, rtol=1e-4, atol=1e-6)


def test_arguments_that_contradict_the_file_are_refused(run: Path, client: tp.TrainedClient) -> None:
    with pytest.raises(RunFolderError, match="is of client 1, not 0"):
        tp.load_client(client.path, 0)
    with pytest.raises(RunFolderError, match="is of label 'fedproto', not 'local'"):
        tp.load_client(client.path, label="local")
    with pytest.raises(ConfigError, match="client is the number of a client, not 'fedproto'"):
        tp.load_client(run, "fedproto")  # type: ignore[arg-type]


def test_of_several_seeds_one_has_to_be_chosen(tmp_path: Path, run: Path) -> None:
    copied = tmp_path / "run"
    for place in ("local-0", "local-1"):
        (copied / "models" / place).mkdir(parents=True)
        source = run / "models" / "local-0" / "client-0.safetensors"
        rewritten(source, copied / "models" / place / "client-0.safetensors", seed=int(place[-1]))
    os.link(run / "config.yaml", copied / "config.yaml")
    with pytest.raises(RunFolderError, match=r"several seeds; choose one with --seed \(seed= in Python\): 0, 1"):
        tp.load_client(copied, 0)
    assert tp.load_client(copied, 0, seed=1).facts["seed"] == 1


def test_names_of_layers_may_have_slashes(tmp_path: Path) -> None:
    parts = {
        "model": {"extractor.a/b.weight": torch.ones(2), "head.weight": torch.zeros(1)},
        "local": {"values": torch.rand(2, 2), "present": torch.ones(2, dtype=torch.bool)},
        "received": {},
    }
    write_network(tmp_path / "kept", {"label": "fedproto"}, parts)
    _, found = read_network(tmp_path / "kept")
    assert {part: sorted(tensors) for part, tensors in found.items()} == {
        part: sorted(tensors) for part, tensors in parts.items()
    }
