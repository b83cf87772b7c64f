"""Clients of a federation whose samples are tables, floats or token ids: what the terms say, and what they refuse."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from support_members import TOKEN, small_values, write_join
from tinyproto.cli.main import app
from tinyproto.config import parse_config
from tinyproto.data.dataset import FederatedData
from tinyproto.errors import ConfigError
from tinyproto.experiment import Experiment
from tinyproto.federation.client_data import ClientDataSection, client_data
from tinyproto.federation.member import Member
from tinyproto.federation.refusals import Refusal
from tinyproto.federation.terms import Terms, offered_terms

ROWS = [(age, 100.0 * age, ("cat", "dog")[age % 2]) for age in range(12)]


def table_values(**data: Any) -> dict[str, Any]:
    values = small_values(classes=["cat", "cow", "dog"])
    values["federation"] = {"classes": ["cat", "cow", "dog"]}
    data = {"name": "table", "label": "kind", "columns": ["age", "height"], **data}
    return {**values, "data": data, "models": ["small_mlp_a"]}


def terms_of(values: dict[str, Any]) -> Terms:
    return offered_terms(parse_config(values), TOKEN)


def write(folder: Path, header: str = "age,height,kind", text: str | None = None) -> Path:
    rows = [",".join(map(str, row)) for row in ROWS]
    (folder / "pets.csv").write_text("\n".join([header, *rows]) if text is None else text)
    return folder / "pets.csv"


def read(path: Path, terms: Terms, client: int = 0) -> FederatedData:
    return client_data(ClientDataSection(path=str(path)), client, terms)


def test_the_terms_name_type_shape_columns_and_normalisation() -> None:
    terms = terms_of(table_values(normalise={"mean": [5.0, 500.0], "std": 2.0}))
    assert terms.input_shape == [2]
    assert json.loads(terms.text())["inputs"] == {
        "dtype": "float32", "label": "kind", "columns": ["age", "height"], "vocabulary": None,
        "normalise": {"mean": [5.0, 500.0], "std": 2.0},
    }  # fmt: skip
    of_wine = offered_terms(parse_config({**table_values(), "data": {"name": "wine"}, "federation": {}}), TOKEN)
    assert (of_wine.num_classes, of_wine.input_shape, of_wine.inputs.dtype) == (3, [13], "float32")
    assert of_wine.inputs.columns is not None
    assert of_wine.inputs.columns[0] == "alcohol"


def test_a_clients_table_is_read_by_the_terms_names(tmp_path: Path) -> None:
    text = "kind,x,height,age,split\n" + "".join(
        f"{kind},text,{height},{age},{'test' if age > 8 else 'train'}\n" for age, height, kind in ROWS
    )
    data = read(write(tmp_path, text=text), terms_of(table_values()))
    assert data.images.inputs[:, 0].tolist() == [row[0] for row in ROWS]
    assert data.images.class_names == ("cat", "cow", "dog")
    assert data.train_counts.tolist() == [[5, 0, 4]]
    assert len(data.test(0)) == 3


def test_each_client_normalises_by_its_own_training_samples_unless_constants_are_agreed(tmp_path: Path) -> None:
    path = write(tmp_path)
    own = read(path, terms_of(table_values()))
    torch.testing.assert_close(own.train(0).batch(slice(None)).inputs.mean(0), torch.zeros(2), atol=1e-5, rtol=0)
    agreed = read(path, terms_of(table_values(normalise={"mean": [1.0, 100.0], "std": [1.0, 100.0]})))
    assert (agreed.images.scale, agreed.images.shift) == ((1.0, 0.01), (-1.0, -1.0))
    again = read(path, terms_of(table_values()))
    assert np.array_equal(own.shares[0].test, again.shares[0].test)  # the same quarter, whichever process asks
    assert len(own.shares[0].test) == 3


@pytest.mark.parametrize(
    ("header", "data", "code", "says"),
    [
        ("age,size,kind", {}, "data", "there is no column 'height'"),
        ("age,height,class", {}, "data", "there is no column 'kind'"),
        ("kind,height,age", {}, "data", "unknown class '0'"),
        ("age,height,kind", {"normalise": {"mean": [1.0], "std": 1.0}}, "data", "mean has 1 numbers"),
        ("age,height,kind", {"label": "age", "columns": ["height"]}, "data", "unknown class '0'"),
        ("age,height,kind", {"columns": ["kind", "height"], "label": "age"}, "data", "unknown class '0'"),
        ("age,height,kind,cow", {"columns": ["cow", "age"]}, "data", "line 2: 3 cells, the header has 4"),
    ],
)
def test_a_table_that_does_not_fit_is_refused(
    tmp_path: Path, header: str, data: dict[str, Any], code: str, says: str
) -> None:
    with pytest.raises(Refusal, match=says) as refusal:
        read(write(tmp_path, header), terms_of(table_values(**data)))
    assert refusal.value.code == code


@pytest.mark.parametrize("kinds", ["-1 0 1", "0 1", "1"])
def test_classes_that_are_numbers_are_matched_by_name_whichever_a_client_has(tmp_path: Path, kinds: str) -> None:
    values = {**table_values(), "federation": {"classes": ["-1", "0", "1"]}}
    drawn = (kinds.split() * 12)[:12]
    path = write(tmp_path, text="\n".join(["age,height,kind", *(f"1,2,{kind}" for kind in drawn)]))
    data = read(path, terms_of(values))
    assert [("-1", "0", "1")[label] for label in data.images.labels.tolist()] == drawn


def test_a_share_is_labelled_in_the_order_of_the_terms_and_needs_their_columns(tmp_path: Path) -> None:
    asked = {"share": {"data": {"name": "wine"}, "partition": {"num_clients": 2, "kind": "iid"}}}
    backwards = ["class_2", "class_1", "class_0"]
    values = {**table_values(), "data": {"name": "wine"}, "federation": {"classes": backwards, "clients": 2}}
    told = client_data(ClientDataSection.model_validate(asked), 0, terms_of(values)).images
    plain = client_data(ClientDataSection.model_validate(asked), 0, terms_of({**values, "federation": {"clients": 2}}))
    assert told.class_names == tuple(backwards)
    assert torch.equal(told.labels, 2 - plain.images.labels)
    path = write(tmp_path)
    swapped = {"data": {"name": "table", "root": str(path), "label": "kind", "columns": ["height", "age"]}}
    section = ClientDataSection.model_validate({"share": {**swapped, "partition": {"num_clients": 2, "kind": "iid"}}})
    with pytest.raises(Refusal, match=r"columns are \['age', 'height'\], those of client 0 are \['height', 'age'\]"):
        client_data(section, 0, terms_of(table_values()))


def test_integer_labels_of_an_npz_need_no_names_in_the_terms(tmp_path: Path) -> None:
    images, labels = np.zeros((8, 1, 6, 6), np.uint8), np.arange(8) % 2 + 1
    np.savez(tmp_path / "a.npz", x_train=images, y_train=labels, class_names=["a", "b", "c"])
    assert read(tmp_path / "a.npz", terms_of(small_values())).images.labels.tolist() == labels.tolist()


def test_a_table_needs_columns_in_the_terms(tmp_path: Path) -> None:
    with pytest.raises(Refusal, match=r"the federation's terms name no columns"):
        read(write(tmp_path), terms_of(small_values()))
    with pytest.raises(ConfigError, match=r"data\.columns is missing"):
        terms_of(table_values(columns=None))


def test_floats_and_token_ids_have_to_be_what_the_terms_say(tmp_path: Path) -> None:
    floats, ids = np.ones((6, 5), np.float32), np.arange(30).reshape(6, 5)
    for name, inputs in (("floats", floats), ("ids", ids)):
        np.savez(tmp_path / f"{name}.npz", x_train=inputs, y_train=np.arange(6) % 3)
    values: dict[str, Any] = {**small_values(), "models": ["small_text_a"]}
    text: dict[str, Any] = {
        **values,
        "data": {"name": "npz", "vocabulary": 40},
        "federation": {"num_classes": 3, "input_shape": [5]},
    }
    assert read(tmp_path / "ids.npz", terms_of(text)).images.vocabulary == 40
    with pytest.raises(Refusal, match="inputs are int64, those of client 0 are float32; convert them"):
        read(tmp_path / "floats.npz", terms_of(text))
    few = {**text, "data": {"name": "npz", "vocabulary": 9}}
    with pytest.raises(Refusal, match=r"token ids 0 … 8, client 0 has ids up to 29"):
        read(tmp_path / "ids.npz", terms_of(few))
    of_images = {**text, "data": {"name": "npz"}, "models": ["small_mlp_a"]}
    with pytest.raises(Refusal, match=r"inputs are uint8, .* the coordinator can set federation\.dtype"):
        read(tmp_path / "floats.npz", terms_of(of_images))
    of_floats = {**of_images, "federation": {"num_classes": 3, "input_shape": [5], "dtype": "float32"}}
    assert read(tmp_path / "floats.npz", terms_of(of_floats)).images.input_shape == (5,)
    with pytest.raises(ConfigError, match=r"federation\.dtype int64 .* and data\.vocabulary .* go together"):
        terms_of({**of_images, "federation": {"num_classes": 3, "input_shape": [5], "dtype": "int64"}})


def test_a_share_is_normalised_as_the_simulation_does() -> None:
    values = {
        **small_values(), "data": {"name": "wine"}, "models": ["small_mlp_a"], "federation": {},
        "partition": {"num_clients": 3, "alpha": 10.0},
    }  # fmt: skip
    share = {"share": {"data": values["data"], "partition": values["partition"]}}
    data = client_data(ClientDataSection.model_validate(share), 1, terms_of(values))
    simulated = Experiment(parse_config(values)).data
    assert torch.equal(data.train(0).batch(slice(None)).inputs, simulated.train(1).batch(slice(None)).inputs)


def test_a_member_answers_with_a_table(tmp_path: Path) -> None:
    member = Member(write_join(tmp_path / "client", "small_mlp_a", {"path": str(write(tmp_path))}), 0)
    assert member.hello(terms_of(table_values()).text()) == TOKEN


def test_a_device_trains_alone_on_its_table(tmp_path: Path) -> None:
    config = tmp_path / "pets.yaml"
    config.write_text(json.dumps({**table_values(), "algorithms": ["anchors"]}))
    words = ["join", "--client-id", "0", "--model", "small_mlp_a", "--folder", str(tmp_path / "client"), "--json"]
    done = CliRunner().invoke(app, [*words, "--offline", str(config), "--data", str(write(tmp_path))])
    assert done.exit_code == 0, done.output
    assert json.loads(done.output[done.output.index("{") :])["accuracy"]["global"] is not None
    missing = CliRunner().invoke(app, [*words, "--offline", str(config), "--data", str(write(tmp_path, text="1,2\n"))])
    assert "the first line has to name the columns" in str(missing.exception)
