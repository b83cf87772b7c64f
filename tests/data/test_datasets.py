"""Datasets of other libraries: torch's, plain sequences, and Hugging Face splits made in memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from tinyproto.data import from_dataset
from tinyproto.errors import DataError

INPUTS, LABELS = torch.randn(6, 2, 5), torch.tensor([0, 1, 2, 0, 1, 2])


class Pictures(Dataset[tuple[Any, int]]):
    classes = ("ant", "bee")

    def __len__(self) -> int:
        return 4

    def __getitem__(self, place: int) -> tuple[Any, int]:
        return Image.fromarray(np.full((6, 8, 3), place, dtype=np.uint8)), place % 2


class Endless(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter(())


def test_a_torch_dataset_gives_its_items() -> None:
    images = from_dataset(TensorDataset(INPUTS, LABELS), name="mine")
    assert torch.equal(images.inputs, INPUTS)
    assert (images.labels.tolist(), images.name) == (LABELS.tolist(), "mine")


def test_images_and_class_names_of_a_torch_dataset_survive() -> None:
    images = from_dataset(Pictures())
    assert (images.dtype, images.input_shape, images.class_names) == ("uint8", (3, 6, 8), ("ant", "bee"))
    assert images.inputs[:, 0, 0, 0].tolist() == [0, 1, 2, 3]
    assert images.name == "pictures"


def test_a_list_of_pairs_is_enough() -> None:
    images = from_dataset([([3, 1, 0], "yes"), ([2, 2, 2], "no")], vocabulary=5)
    assert (images.vocabulary, images.class_names, images.labels.tolist()) == (5, ("no", "yes"), [1, 0])


@pytest.mark.parametrize(
    ("dataset", "says"),
    [
        (Endless(), r"no length or no items; pass list\(dataset\)"),
        ([], "at least one sample"),
        ([1, 2], r"items have to be \(input, label\)"),
        ([([1.0], 0), ([1.0, 2.0], 1)], "differ in shape"),
    ],
)
def test_what_is_no_dataset_is_refused(dataset: Any, says: str) -> None:
    with pytest.raises(DataError, match=says):
        from_dataset(dataset)


def split(columns: dict[str, Any], features: Any = None) -> Any:
    datasets = pytest.importorskip("datasets", reason="the extra `hf` is not installed")
    return datasets.Dataset.from_dict(columns, features=features(datasets) if features else None)


def test_token_ids_and_class_names_of_a_split_are_read() -> None:
    made = split(
        {"input_ids": [[1, 2, 0], [3, 4, 5]], "label": [1, 0]},
        lambda hf: hf.Features(
            {"input_ids": hf.Sequence(hf.Value("int32")), "label": hf.ClassLabel(names=["no", "yes"])}
        ),
    )
    images = from_dataset(made, vocabulary=9)
    assert (images.dtype, images.vocabulary, images.class_names) == ("int64", 9, ("no", "yes"))
    assert (images.inputs.tolist(), images.labels.tolist()) == ([[1, 2, 0], [3, 4, 5]], [1, 0])


def test_columns_of_numbers_become_a_table() -> None:
    images = from_dataset(split({"a": [1, 2], "b": [0.5, 1.5], "kind": ["x", "y"]}), label="kind")
    assert (images.columns, images.class_names) == (("a", "b"), ("x", "y"))
    assert images.inputs.tolist() == [[1.0, 0.5], [2.0, 1.5]]


def test_images_of_a_split_become_pixels() -> None:
    pictures = [Image.fromarray(np.full((4, 4), shade, np.uint8)) for shade in (7, 9)]
    made = split(
        {"image": pictures, "label": [0, 1]},
        lambda hf: hf.Features({"image": hf.Image(), "label": hf.Value("int64")}),
    )
    images = from_dataset(made, name="shades")
    assert (images.dtype, images.input_shape, images.inputs[:, 0, 0, 0].tolist()) == ("uint8", (1, 4, 4), [7, 9])


def test_columns_of_text_are_refused_by_name() -> None:
    made = split({"text": ["good", "bad"], "label": [1, 0]})
    with pytest.raises(DataError, match="column 'text' is not one number per sample"):
        from_dataset(made)
    with pytest.raises(DataError, match="no column 'target'; the split has 'text', 'label'"):
        from_dataset(made, label="target")
