"""Tables: columns by name, labels as integers or names, and clear words for what cannot be used."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from tinyproto.data import load
from tinyproto.errors import DataError

ROWS = """\
age,height,species
1,10.5,cat
2,20.5,dog
3,30.5,cat
"""


def write(folder: Path, text: str, name: str = "pets.csv") -> Path:
    (folder / name).write_text(text, encoding="utf-8")
    return folder / name


def test_a_table_names_its_features_its_classes_and_itself(tmp_path: Path) -> None:
    images = load("table", write(tmp_path, ROWS), label="species")
    assert (images.name, images.columns, images.class_names) == ("pets", ("age", "height"), ("cat", "dog"))
    assert images.inputs.tolist() == [[1.0, 10.5], [2.0, 20.5], [3.0, 30.5]]
    assert images.labels.tolist() == [0, 1, 0]


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_columns_are_found_by_name_whatever_their_order_and_number(tmp_path: Path, delimiter: str) -> None:
    other = "name,species,height,age\nTom,cat,10.5,1\n\nRex,dog,20.5,2\n".replace(",", delimiter)
    images = load("table", write(tmp_path, f"\ufeff{other}"), label="species", columns=["age", "height"])
    assert images.inputs.tolist() == [[1.0, 10.5], [2.0, 20.5]]


@pytest.mark.parametrize(
    ("labels", "numbers", "names"),
    [
        ("0 1 2 1", [0, 1, 2, 1], None),
        ("1 3 10 3", [0, 1, 2, 1], ("1", "3", "10")),
        ("1 -1 1 1", [1, 0, 1, 1], ("-1", "1")),
        ("b a b c", [1, 0, 1, 2], ("a", "b", "c")),
    ],
)
def test_labels_are_numbers_or_names(
    tmp_path: Path, labels: str, numbers: list[int], names: tuple[str, ...] | None
) -> None:
    rows = "".join(f"{number},{label}\n" for number, label in enumerate(labels.split()))
    images = load("table", write(tmp_path, f"x,label\n{rows}"))
    assert (images.labels.tolist(), images.class_names) == (numbers, names)


def test_with_a_vocabulary_the_columns_are_token_ids(tmp_path: Path) -> None:
    images = load("table", write(tmp_path, "a,b,label\n3,0,0\n7,2,1\n"), vocabulary=10)
    assert (images.dtype, images.vocabulary, images.inputs.tolist()) == ("int64", 10, [[3, 0], [7, 2]])
    with pytest.raises(DataError, match="not token ids"):
        load("table", write(tmp_path, "a,b,label\n3.5,0,0\n7,2,1\n"), vocabulary=10)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (ROWS.replace("species", "kind"), r"no column 'species'.* has 'age', 'height', 'kind'; set data\.label"),
        (ROWS.replace("20.5", "tall"), r"row 2: 'tall' is not a number; encode text as numbers, or list"),
        (ROWS.replace("20.5", ""), r"column 'height', row 2: missing value; fill it in"),
        (ROWS.replace("20.5", "nan"), r"column 'height', row 2: 'nan' is not a finite float32"),
        (ROWS.replace("20.5", "1e39"), r"row 2: '1e39' is not a finite float32"),
        (ROWS.replace("20.5,dog", "20.5,"), "row 2 has no label"),
        (ROWS.replace("20.5,dog", "20.5"), r"pets\.csv, line 3: 2 cells, the header has 3"),
        (ROWS.replace("age", "height"), "two columns named 'height'"),
        (ROWS.replace("age", ""), r"a column has no name; if it is an index, leave it out"),
        (ROWS.replace("cat", "0.5"), "classes are integers or names"),
        ("1,2,3\n4,5,6\n", "the first line has to name the columns"),
        ("age,species\n", "has no rows"),
        ("", "the first line has to name the columns"),
    ],
)  # fmt: skip
def test_what_a_table_lacks_is_said_with_its_place(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(DataError, match=says) as error:
        load("table", write(tmp_path, text), label="species")
    assert "pets.csv" in str(error.value)


def test_a_file_that_is_no_table_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none\.csv does not exist"):
        load("table", tmp_path / "none.csv")
    with pytest.raises(DataError, match=r"data\.root has to name"):
        load("table")
    (tmp_path / "bytes.csv").write_bytes(b"\xff\xfe\x00,\x81")
    with pytest.raises(DataError, match=r"bytes\.csv cannot be read as a table .* UTF-8"):
        load("table", tmp_path / "bytes.csv")
    with pytest.raises(DataError, match=r"no column 'weight'"):
        load("table", write(tmp_path, ROWS), label="species", columns=["weight"])
    with pytest.raises(DataError, match="without the label"):
        load("table", write(tmp_path, ROWS), label="species", columns=["age", "species"])


def test_the_first_classes_of_a_table_keep_their_names(tmp_path: Path) -> None:
    images = load("table", write(tmp_path, ROWS + "4,40.5,emu\n"), label="species", first_classes=2)
    assert (images.name, images.class_names, len(images)) == ("pets, first 2 classes", ("cat", "dog"), 3)


def test_a_parquet_file_is_read_like_a_csv_file(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="the extra `tables` is not installed")
    parquet = pytest.importorskip("pyarrow.parquet", reason="the extra `tables` is not installed")
    columns = {"age": [1, 2, 3], "height": [10.5, 20.5, 30.5], "species": ["cat", "dog", "cat"]}
    parquet.write_table(pyarrow.table(columns), tmp_path / "pets.parquet")
    ours, same = (load("table", path, label="species") for path in (tmp_path / "pets.parquet", write(tmp_path, ROWS)))
    assert np.array_equal(ours.inputs, same.inputs)
    assert ours.facts() == same.facts()
    parquet.write_table(pyarrow.table({**columns, "age": [1, None, 3]}), tmp_path / "pets.parquet")
    with pytest.raises(DataError, match="column 'age', row 2: missing value"):
        load("table", tmp_path / "pets.parquet", label="species")
    (tmp_path / "pets.parquet").write_bytes(b"PAR1")
    with pytest.raises(DataError, match=r"damaged or not a \.parquet file"):
        load("table", tmp_path / "pets.parquet", label="species")


def test_without_pyarrow_a_parquet_file_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "pets.parquet").write_bytes(b"PAR1")
    with pytest.raises(DataError, match=r'pip install "tinyproto-fl\[tables\]"'):
        load("table", tmp_path / "pets.parquet")
