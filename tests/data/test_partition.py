"""The Dirichlet partition against the published one (SPEC.md 1.1), whose ground truth needs labels only."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.model_selection import train_test_split

from support_data import dirichlet_shares
from tinyproto.data import Share, partition
from tinyproto.errors import DataError

Labels = NDArray[np.int64]

CIFAR10: Labels = np.repeat(np.arange(10), 6000)
CIFAR100: Labels = np.repeat(np.arange(100), 600)
CIFAR10_SIZES = [
    1621, 1814, 1211, 2080, 5128, 4264, 1440, 2622, 2974, 3236, 1164, 1964, 5994, 1527, 3100, 4325, 4252, 3175, 5449,
    2660,
]  # fmt: skip
CIFAR10_CLASSES_HELD = [7, 6, 4, 6, 2, 2, 5, 7, 6, 3, 4, 8, 6, 6, 4, 6, 5, 1, 4, 10]


@pytest.fixture(scope="module")
def cifar10() -> list[Share]:
    return dirichlet_shares(CIFAR10, 20, 0.1, seed=1)


@pytest.fixture(scope="module")
def cifar100() -> list[Share]:
    return dirichlet_shares(CIFAR100, 20, 0.1, seed=1)


def held(share: Share) -> Labels:
    return np.concatenate([share.train, share.test])


def sizes(shares: Sequence[Share]) -> list[int]:
    return [len(held(share)) for share in shares]


def count_matrix(labels: Labels, shares: Sequence[Share]) -> Labels:
    num_classes = int(labels.max()) + 1
    return np.stack([np.bincount(labels[held(share)], minlength=num_classes) for share in shares])


def count_digest(labels: Labels, shares: Sequence[Share]) -> str:
    return hashlib.md5(count_matrix(labels, shares).astype("<i8").tobytes()).hexdigest()


def seen_in_full_batches(labels: Labels, shares: Sequence[Share], batch_size: int) -> int:
    """Σ K_i over the training samples that make up full batches in stored order."""
    full = [share.train[: len(share.train) // batch_size * batch_size] for share in shares]
    return sum(len(np.unique(labels[part])) for part in full)


def assert_every_sample_has_one_place(labels: Labels, shares: Sequence[Share]) -> None:
    everything = np.concatenate([held(share) for share in shares])
    assert sorted(everything.tolist()) == list(range(len(labels)))


def hand_made_draw(monkeypatch: pytest.MonkeyPatch, *parts: Sequence[int]) -> None:
    """Let every Dirichlet draw come out as these parts."""
    monkeypatch.setattr(partition, "_draw", lambda *_: [np.array(part, dtype=np.int64) for part in parts])


class CountedDraws:
    """Stands in for the draw and counts how often it is asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls = 0
        self.draw = partition._draw
        monkeypatch.setattr(partition, "_draw", self)

    def __call__(
        self, labels: Labels, num_clients: int, alpha: float, random: np.random.RandomState
    ) -> list[partition.Indices]:
        self.calls += 1
        return self.draw(labels, num_clients, alpha, random)


def published_partition(labels: Labels, num_clients: int, alpha: float, seed: int) -> list[tuple[Labels, Labels]]:
    """SPEC.md 1.1 steps 2 and 3, written down as it stands there: global generators and scikit-learn's split."""
    np.random.seed(seed)
    smallest = 0
    while smallest < 1:
        parts: list[list[int]] = [[] for _ in range(num_clients)]
        for label in range(int(labels.max()) + 1):
            members = np.where(labels == label)[0]
            np.random.shuffle(members)
            shares = np.random.dirichlet(np.repeat(alpha, num_clients))
            full = np.array([len(part) >= len(labels) / num_clients for part in parts])
            shares[full] = 0.0
            shares = shares / shares.sum()
            cuts = (np.cumsum(shares) * len(members)).astype(int)[:-1]
            for part, piece in zip(parts, np.split(members, cuts), strict=True):
                part.extend(piece.tolist())
        smallest = min(len(part) for part in parts)
    splits = [train_test_split(np.array(part), train_size=0.75, shuffle=True) for part in parts]
    return [(train, test) for train, test in splits]


def test_seed_1_gives_the_published_class_counts_of_cifar10(cifar10: list[Share]) -> None:
    assert count_digest(CIFAR10, cifar10) == "a86e29383efd0f0dbebebd2180e92e79"


def test_seed_1_gives_the_published_class_counts_of_cifar100(cifar100: list[Share]) -> None:
    assert count_digest(CIFAR100, cifar100) == "e0bb9e3cf0fed1349290d0724da70618"


def test_cifar10_clients_have_the_published_sizes_and_classes(cifar10: list[Share]) -> None:
    counts = count_matrix(CIFAR10, cifar10)
    assert sizes(cifar10) == CIFAR10_SIZES
    assert (counts > 0).sum(1).tolist() == CIFAR10_CLASSES_HELD
    assert int((counts == 1).sum()) == 15
    assert float(np.median(counts[counts > 0])) == 68.0


def test_cifar100_clients_have_the_published_sizes_and_classes(cifar100: list[Share]) -> None:
    counts = count_matrix(CIFAR100, cifar100)
    by_size = sorted(sizes(cifar100))
    assert (by_size[0], by_size[-1]) == (2607, 3359)
    assert int(np.median(by_size)) == 3032
    assert int((counts > 0).sum()) == 921
    assert int((counts == 1).sum()) == 183
    assert float(np.median(counts[counts > 0])) == 14.0


def test_the_split_gives_the_published_totals_and_batches(cifar10: list[Share], cifar100: list[Share]) -> None:
    for shares, train, test, batches in ((cifar10, 44995, 15005, 1395), (cifar100, 44992, 15008, 1396)):
        assert sum(len(share.train) for share in shares) == train
        assert sum(len(share.test) for share in shares) == test
        assert sum(len(share.train) // 32 for share in shares) == batches


def test_the_split_leaves_the_published_classes_in_full_batches(cifar10: list[Share], cifar100: list[Share]) -> None:
    # Only the published order of training samples gives these sums.
    assert seen_in_full_batches(CIFAR10, cifar10, 32) == 101
    assert seen_in_full_batches(CIFAR100, cifar100, 32) == 868


@pytest.mark.parametrize(
    ("num_clients", "alpha", "seed", "labels"),
    [
        (8, 0.1, 1, np.repeat(np.arange(10), 60)),
        (50, 0.5, 1, np.repeat(np.arange(20), 100)),
        (5, 1.0, 7, np.random.RandomState(3).randint(0, 4, size=333)),
        (1, 0.1, 0, np.repeat(np.arange(3), 11)),
    ],
)
def test_any_setting_equals_the_published_routine_sample_by_sample(
    num_clients: int, alpha: float, seed: int, labels: Labels
) -> None:
    state = np.random.get_state()
    try:
        expected = published_partition(labels, num_clients, alpha, seed)
    finally:
        np.random.set_state(state)
    shares = dirichlet_shares(labels, num_clients, alpha, seed)
    assert [share.train.tolist() for share in shares] == [train.tolist() for train, _ in expected]
    assert [share.test.tolist() for share in shares] == [test.tolist() for _, test in expected]


@settings(max_examples=40, deadline=None)
@given(
    labels=st.lists(st.integers(0, 5), min_size=12, max_size=60),
    num_clients=st.integers(1, 12),
    alpha=st.sampled_from([1e-9, 0.01, 0.1, 1.0, 100.0]),
    seed=st.integers(0, 2**32 - 1),
    train_fraction=st.sampled_from([0.01, 0.5, 0.75, 0.99]),
)
def test_every_sample_belongs_to_exactly_one_place(
    labels: list[int], num_clients: int, alpha: float, seed: int, train_fraction: float
) -> None:
    array = np.array(labels)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(partition, "MOST_DRAWS", 5)
        shares = dirichlet_shares(array, num_clients, alpha, seed, train_fraction)
    assert len(shares) == num_clients
    assert_every_sample_has_one_place(array, shares)
    assert all(len(share.train) >= 1 for share in shares)


def test_every_client_has_at_least_the_minimum() -> None:
    labels = np.repeat(np.arange(10), 180)
    few = dirichlet_shares(labels, 20, 0.1, seed=1, min_samples=1)
    enough = dirichlet_shares(labels, 20, 0.1, seed=1, min_samples=30)
    assert min(sizes(few)) < 30 <= min(sizes(enough))
    assert_every_sample_has_one_place(labels, enough)


def test_the_first_draw_that_meets_the_minimum_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    draws = CountedDraws(monkeypatch)
    dirichlet_shares(np.repeat(np.arange(10), 180), 5, 100.0, seed=1, min_samples=100)
    assert draws.calls == 1


def test_after_1000_draws_the_last_is_repaired(monkeypatch: pytest.MonkeyPatch) -> None:
    draws = CountedDraws(monkeypatch)
    labels = np.zeros(20, dtype=np.int64)
    shares = dirichlet_shares(labels, 4, 0.01, seed=1, min_samples=5)  # 20 = 4 · 5: four equal shares, never drawn
    assert draws.calls == 1000
    assert sizes(shares) == [5, 5, 5, 5]
    assert_every_sample_has_one_place(labels, shares)


def test_the_repair_moves_the_largest_clients_last_samples_to_the_smallest(monkeypatch: pytest.MonkeyPatch) -> None:
    hand_made_draw(monkeypatch, [0, 1, 2, 3, 4], [5], [6, 7])
    shares = dirichlet_shares(np.zeros(8, dtype=np.int64), 3, 0.1, seed=1, min_samples=2)
    assert [set(held(share).tolist()) for share in shares] == [{0, 1, 2, 3}, {5, 4}, {6, 7}]


def test_the_repair_takes_from_several_clients_and_leaves_each_its_minimum(monkeypatch: pytest.MonkeyPatch) -> None:
    # Client 2 lacks 3: the largest can give 2 before it reaches the minimum, the next gives the third.
    hand_made_draw(monkeypatch, [0, 1, 2, 3, 4], [5, 6, 7, 8], [])
    shares = dirichlet_shares(np.zeros(9, dtype=np.int64), 3, 0.1, seed=1, min_samples=3)
    assert [set(held(share).tolist()) for share in shares] == [{0, 1, 2}, {5, 6, 7}, {3, 4, 8}]


def test_train_is_the_fraction_rounded_down_and_test_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    hand_made_draw(monkeypatch, range(10), range(10, 17), range(17, 19))
    shares = dirichlet_shares(np.zeros(19, dtype=np.int64), 3, 0.1, seed=1, train_fraction=0.75)
    assert [(len(share.train), len(share.test)) for share in shares] == [(7, 3), (5, 2), (1, 1)]


def test_a_client_with_a_single_sample_keeps_it_for_training() -> None:
    shares = dirichlet_shares(np.array([0, 0, 1, 1]), 4, 0.1, seed=1)
    assert [(len(share.train), len(share.test)) for share in shares] == [(1, 0)] * 4


def test_a_tiny_alpha_gives_each_class_to_one_client() -> None:
    labels = np.repeat(np.arange(6), 20)
    shares = dirichlet_shares(labels, 3, 1e-12, seed=4)
    counts = count_matrix(labels, shares)
    assert sorted(counts[counts > 0].tolist()) == [20] * 6


def test_a_class_without_samples_leaves_no_gap() -> None:
    labels = np.array([0, 0, 0, 2, 2, 2])
    shares = dirichlet_shares(labels, 2, 1.0, seed=1)
    assert_every_sample_has_one_place(labels, shares)


def test_the_seed_decides_the_partition_and_no_global_generator_is_touched() -> None:
    labels = np.repeat(np.arange(5), 40)
    before = repr(np.random.get_state())
    first, again, other = (dirichlet_shares(labels, 6, 0.3, seed) for seed in (1, 1, 2))
    assert repr(np.random.get_state()) == before
    assert [share.train.tolist() for share in first] == [share.train.tolist() for share in again]
    assert count_matrix(labels, first).tolist() != count_matrix(labels, other).tolist()


@pytest.mark.parametrize(("num_clients", "min_samples"), [(13, 1), (4, 4)])
def test_more_clients_than_samples_is_an_error_with_the_numbers(num_clients: int, min_samples: int) -> None:
    with pytest.raises(DataError, match=rf"{num_clients} clients .* the dataset has 12; lower partition\.num_clients"):
        dirichlet_shares(np.zeros(12, dtype=np.int64), num_clients, 0.1, seed=1, min_samples=min_samples)


@pytest.mark.parametrize(("classes", "min_samples"), [(100, 1), (10, 8)])
def test_two_thousand_clients_of_thirty_samples_each_have_enough(
    monkeypatch: pytest.MonkeyPatch, classes: int, min_samples: int
) -> None:
    monkeypatch.setattr(partition, "MOST_DRAWS", 20)  # with 10 classes no draw gives every client 8, so one is repaired
    labels = np.arange(60_000) % classes
    shares = dirichlet_shares(labels, 2000, 0.1, seed=1, min_samples=min_samples)
    held = [np.concatenate([share.train, share.test]) for share in shares]
    assert min(map(len, held)) >= min_samples
    assert np.array_equal(np.sort(np.concatenate(held)), np.arange(60_000))
    assert all(len(share.train) for share in shares)
    assert np.mean([len(np.unique(labels[part])) for part in held]) < (20 if classes == 100 else 5)
