"""The partitions besides Dirichlet, and what they have in common."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support_data import dirichlet_shares
from tinyproto.data import Partition, Share, partition
from tinyproto.data.partition import Indices, count_matrix
from tinyproto.errors import DataError

TEN_CLASSES: Indices = np.repeat(np.arange(10), 60)
CIFAR100: Indices = np.repeat(np.arange(100), 600)


def counts(labels: Indices, shares: Sequence[Share]) -> Indices:
    return count_matrix(labels, shares, int(labels.max()) + 1)


def places(shares: Sequence[Share]) -> list[int]:
    return sorted(np.concatenate([part for share in shares for part in (share.train, share.test)]).tolist())


# Dirichlet, for other settings of the paper


@pytest.mark.parametrize(
    ("num_clients", "alpha", "mean"), [(20, 0.1, 65.1), (50, 0.1, 31.2), (20, 0.01, 241.0), (20, 0.5, 35.3)]
)
def test_the_published_settings_give_the_published_samples_per_client_and_class(
    num_clients: int, alpha: float, mean: float
) -> None:
    held = counts(CIFAR100, dirichlet_shares(CIFAR100, num_clients, alpha, seed=1))
    digits = 0 if mean > 100 else 1
    assert round(60000 / int((held > 0).sum()), digits) == mean


def test_tiny_imagenet_s_110000_images_give_the_published_prototypes_per_round() -> None:
    labels = np.concatenate([np.repeat(np.arange(200), 500), np.repeat(np.arange(200), 50)])
    held = counts(labels, dirichlet_shares(labels, 20, 0.1, seed=1))
    classes_held = int((held > 0).sum())
    assert (classes_held + 20 * 200) * 500 == 2_926_500  # SPEC.md section 5: 2.9265 M
    assert int((held[19] > 0).sum()) == 177


# iid, pathological, quantity

Make = Callable[[Indices, int, int], list[Share]]
KINDS: dict[str, Make] = {
    "iid": lambda labels, clients, seed: Partition("iid", clients, seed=seed).shares(labels),
    "pathological": lambda labels, clients, seed: Partition(
        "pathological", clients, classes_per_client=5, seed=seed
    ).shares(labels),
    "quantity": lambda labels, clients, seed: Partition("quantity", clients, alpha=1.0, seed=seed).shares(labels),
    "dirichlet": lambda labels, clients, seed: Partition("dirichlet", clients, alpha=1.0, seed=seed).shares(labels),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_gives_every_sample_one_place_and_splits_each_client(kind: str) -> None:
    shares = KINDS[kind](TEN_CLASSES, 7, 3)
    assert len(shares) == 7
    assert places(shares) == list(range(600))
    for share in shares:
        assert len(share.train) == int(0.75 * (len(share.train) + len(share.test)))


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_decided_by_its_seed_and_touches_no_global_generator(kind: str) -> None:
    before = repr(np.random.get_state())
    first, again, other = (KINDS[kind](TEN_CLASSES, 7, seed) for seed in (1, 1, 2))
    assert repr(np.random.get_state()) == before
    assert [share.train.tolist() for share in first] == [share.train.tolist() for share in again]
    assert [share.train.tolist() for share in first] != [share.train.tolist() for share in other]


def test_iid_clients_have_equal_sizes_and_all_classes() -> None:
    held = counts(TEN_CLASSES, Partition("iid", 7).shares(TEN_CLASSES))
    assert set(held.sum(1).tolist()) == {85, 86}
    assert (held > 0).all()


@pytest.mark.parametrize(("num_clients", "per_client"), [(20, 2), (7, 3), (10, 10), (5, 2), (13, 7)])
def test_pathological_clients_hold_exactly_k_classes_and_classes_have_even_holders(
    num_clients: int, per_client: int
) -> None:
    shares = Partition("pathological", num_clients, classes_per_client=per_client).shares(TEN_CLASSES)
    held = counts(TEN_CLASSES, shares)
    assert (held > 0).sum(1).tolist() == [per_client] * num_clients
    holders = (held > 0).sum(0)
    assert holders.max() - holders.min() <= 1
    for column in held.T:
        assert column[column > 0].max() - column[column > 0].min() <= 1
    assert places(shares) == list(range(600))


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 15), st.integers(1, 6), st.integers(0, 2**32 - 1))
def test_pathological_clients_hold_exactly_k_classes_or_are_refused(
    num_clients: int, per_client: int, seed: int
) -> None:
    labels = np.repeat(np.arange(6), 20)
    asked = Partition("pathological", num_clients, classes_per_client=per_client, seed=seed)
    if num_clients * per_client < 6:
        with pytest.raises(DataError, match="cannot cover 6 classes"):
            asked.shares(labels)
        return
    shares = asked.shares(labels)
    assert (counts(labels, shares) > 0).sum(1).tolist() == [per_client] * num_clients
    assert places(shares) == list(range(120))


def test_pathological_passes_over_a_class_without_samples() -> None:
    labels = np.array([0] * 10 + [2] * 10)
    held = counts(labels, Partition("pathological", 4, classes_per_client=1).shares(labels))
    assert held.sum(0).tolist() == [10, 0, 10]


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (Partition("pathological", 5, classes_per_client=11), "classes_per_client is 11, the dataset has 10 classes"),
        (Partition("pathological", 3, classes_per_client=3), "raise partition.classes_per_client to 4 or more"),
        (Partition("pathological", 500, classes_per_client=2), "class 0 has 60 samples for 100 clients"),
        (Partition("pathological", 20, classes_per_client=2, min_samples=31), "gets 30 samples"),
        (Partition("iid", 601), "601 clients"),
        (Partition("quantity", 20, min_samples=31), "20 clients .* 31 samples"),
    ],
)
def test_an_impossible_partition_is_refused_with_the_numbers(asked: Partition, says: str) -> None:
    with pytest.raises(DataError, match=says):
        asked.shares(TEN_CLASSES)


def test_quantity_gives_unequal_sizes_of_all_classes() -> None:
    held = counts(CIFAR100, Partition("quantity", 10, alpha=0.5, min_samples=1000).shares(CIFAR100))
    sizes = held.sum(1)
    assert sizes.max() > 3 * sizes.min()
    assert (held > 0).all()


def test_quantity_is_repaired_where_no_draw_has_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition, "MOST_DRAWS", 3)
    shares = Partition("quantity", 20, alpha=1e-12, min_samples=30).shares(TEN_CLASSES)
    assert [len(share.train) + len(share.test) for share in shares] == [30] * 20
    assert places(shares) == list(range(600))


# A fixed split


def write_json(path: Path, clients: Any) -> Path:
    path.write_text(json.dumps({"clients": clients}))
    return path


GOOD = [{"train": [4, 0], "test": [1]}, {"train": [9]}, {"train": [2, 3], "test": []}]


def test_a_json_file_decides_who_holds_what_in_its_order(tmp_path: Path) -> None:
    file = write_json(tmp_path / "split.json", GOOD)
    shares = Partition("file", file=str(file)).shares(np.arange(10))
    assert [share.train.tolist() for share in shares] == [[4, 0], [9], [2, 3]]
    assert [share.test.tolist() for share in shares] == [[1], [], []]


def test_an_npz_file_does_so_too(tmp_path: Path) -> None:
    none = np.zeros(0)
    np.savez(tmp_path / "split.npz", train_0=[4, 0], test_0=[1], train_1=[9], train_2=[2, 3], test_2=none)
    shares = Partition("file", num_clients=3, file=str(tmp_path / "split.npz")).shares(np.arange(10))
    assert [share.train.tolist() for share in shares] == [[4, 0], [9], [2, 3]]
    assert [share.test.tolist() for share in shares] == [[1], [], []]


@pytest.mark.parametrize(
    ("clients", "says"),
    [
        ([], "has no clients"),
        ([{"train": [0, 10]}], r"client 0: train .* 0 … 10, .* 0 … 9"),
        ([{"train": [-1]}], "train .* -1 … "),
        ([{"train": [0]}, {"train": [1], "test": [0]}], "client 0 and client 1 .* sample 0"),
        ([{"train": [0, 3], "test": [3]}], "client 0 has sample 3 twice"),
        ([{"train": []}], "client 0: train is empty"),
        ([{"test": [1]}], "client 0: train is empty"),
        ([{"train": [0.5]}], "client 0: train .* integers"),
        ([{"train": [[1], [2, 3]]}], "client 0: train .* integers"),
        ([[1, 2]], "clients"),
        ({"train": [0]}, "clients"),
    ],
)
def test_a_fixed_split_that_cannot_be_is_refused_by_client_and_sample(tmp_path: Path, clients: Any, says: str) -> None:
    file = write_json(tmp_path / "split.json", clients)
    with pytest.raises(DataError, match=says) as error:
        Partition("file", file=str(file)).shares(np.arange(10))
    assert str(file) in str(error.value)


def test_a_fixed_split_for_another_number_of_clients_is_refused(tmp_path: Path) -> None:
    file = write_json(tmp_path / "split.json", GOOD)
    with pytest.raises(DataError, match=r"has 3 clients, partition\.num_clients is 20"):
        Partition("file", num_clients=20, file=str(file)).shares(np.arange(10))


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.json", b"{", "cannot be read"),
        ("a.npz", b"PK", "cannot be read"),
        ("a.npz", None, "no such file"),
        ("a.json", b"\xff", "cannot be read"),
    ],
)
def test_a_split_file_that_cannot_be_read_is_named(tmp_path: Path, name: str, content: bytes | None, says: str) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=says):
        Partition("file", file=str(tmp_path / name)).shares(np.arange(10))


def test_an_npz_split_with_a_stray_array_or_objects_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "stray.npz", train_0=np.arange(2), tset_0=np.arange(2))
    with pytest.raises(DataError, match="'tset_0'"):
        Partition("file", file=str(tmp_path / "stray.npz")).shares(np.arange(10))
    np.savez(tmp_path / "objects.npz", train_0=np.array([{}], dtype=object))
    with pytest.raises(DataError, match="cannot be read"):
        Partition("file", file=str(tmp_path / "objects.npz")).shares(np.arange(10))
