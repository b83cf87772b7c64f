from __future__ import annotations

import time

import pytest
import torch
from torch import Tensor

from tinyproto.core.cps import compress, owned_dimensions, reconstruct, sparsify
from tinyproto.core.masks import MaskKind, build_masks, mask_digest
from tinyproto.core.prototypes import Prototypes


def largest_overlap(masks: Tensor) -> int:
    overlaps = masks.long() @ masks.long().T
    return int(overlaps.fill_diagonal_(0).max())


@pytest.fixture
def prototypes() -> Prototypes:
    return Prototypes(torch.tensor([[1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0]]), torch.tensor([True, True]))


@pytest.fixture
def masks() -> Tensor:
    return torch.tensor([[1, 0, 0, 1], [0, 1, 1, 0]], dtype=torch.bool)


def test_sparsify_zeroes_what_the_class_does_not_own(prototypes: Prototypes, masks: Tensor) -> None:
    assert sparsify(prototypes, masks).values.tolist() == [[1, 0, 0, 4], [0, 6, 7, 0]]


def test_compress_keeps_the_owned_entries_in_order(prototypes: Prototypes, masks: Tensor) -> None:
    assert compress(prototypes, masks).values.tolist() == [[1, 4], [6, 7]]


def test_reconstruct_puts_entries_back_where_they_came_from(masks: Tensor) -> None:
    compressed = Prototypes(torch.tensor([[1.0, 4.0], [6.0, 7.0]]), torch.tensor([True, False]))
    rebuilt = reconstruct(compressed, masks)
    assert rebuilt.values.tolist() == [[1, 0, 0, 4], [0, 6, 7, 0]]
    assert rebuilt.present.tolist() == [True, False]


def test_the_paper_s_five_class_example_has_one_dimension_per_class() -> None:
    masks = build_masks("balanced", 5, 5, 1, seed=0)
    assert sorted(owned_dimensions(masks).squeeze(1).tolist()) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(("num_classes", "dim", "cps_dim"), [(10, 500, 50), (10, 100, 10), (4, 9, 2), (1, 7, 7)])
def test_masks_are_disjoint_where_they_can_be(num_classes: int, dim: int, cps_dim: int) -> None:
    assert int(build_masks("balanced", num_classes, dim, cps_dim, seed=3).sum(0).max()) == 1


def test_the_paper_s_setting_keeps_classes_far_apart_within_five_seconds() -> None:
    start = time.perf_counter()
    masks = build_masks("balanced", 100, 500, 50, seed=12345)
    assert time.perf_counter() - start < 5
    assert 2 * (50 - largest_overlap(masks)) >= 86
    assert set(masks.sum(0).tolist()) == {10}
    assert set(masks.sum(1).tolist()) == {50}


@pytest.mark.parametrize(
    ("arguments", "digest"),
    [
        ((10, 100, 10, 0), "9455557cbb26a85afaa023d4435e1554"),
        ((10, 100, 10, 7), "fcabd45a036eec7068441b080c1d7182"),
        ((100, 500, 50, 0), "3a52a0d1a8fc2eefc29832bbfefae7b5"),
        ((100, 500, 450, 0), "572e599a648ddd10350d6f61e46b41da"),
        ((7, 20, 9, 0), "1cafcd8b38c70f8e456180a618bfea15"),
    ],
)
def test_masks_are_the_same_on_every_machine_and_release(arguments: tuple[int, int, int, int], digest: str) -> None:
    assert mask_digest(build_masks("balanced", *arguments)) == digest


def test_block_masks_own_whole_blocks_of_neighbours() -> None:
    masks = build_masks("blocks", 10, 40, 8, seed=0)
    blocks = masks.view(10, 10, 4)
    assert bool((blocks.all(2) == blocks.any(2)).all())
    assert set(masks.sum(1).tolist()) == {8}
    assert masks[0].tolist() == [False] * 32 + [True] * 8
    assert len({mask_digest(row) for row in masks}) == 10


def test_published_block_masks_get_closer_than_balanced_ones() -> None:
    blocks, balanced = build_masks("blocks", 100, 500, 50, seed=0), build_masks("balanced", 100, 500, 50, seed=0)
    assert largest_overlap(blocks) > largest_overlap(balanced)


def test_random_masks_are_balanced_too_and_get_closer() -> None:
    masks = build_masks("random", 100, 500, 50, seed=0)
    assert set(masks.sum(1).tolist()) == {50}
    assert set(masks.sum(0).tolist()) == {10}
    assert largest_overlap(masks) > largest_overlap(build_masks("balanced", 100, 500, 50, seed=0))
    assert not build_masks("random", 4, 8, 2, seed=0)[:3].sum(0).gt(1).any()  # disjoint where that can be


def test_random_masks_refuse_what_no_masks_can_be() -> None:
    with pytest.raises(ValueError, match="cps_dim must be between 1 and dim"):
        build_masks("random", 4, 8, 9, seed=0)


def test_block_masks_are_golden_too() -> None:
    assert mask_digest(build_masks("blocks", 100, 500, 50, seed=0)) == "9009c1592b017405e29ff786aebf8e94"


def test_block_masks_refuse_a_dimension_that_is_no_multiple_of_the_block_length() -> None:
    with pytest.raises(ValueError, match="blocks of 4"):
        build_masks("blocks", 10, 40, 6, seed=0)


@pytest.mark.parametrize(("num_classes", "cps_dim"), [(0, 3), (3, 0), (3, 11)])
def test_impossible_sizes_are_refused(num_classes: int, cps_dim: int) -> None:
    with pytest.raises(ValueError, match="must be"):
        build_masks("balanced", num_classes, 10, cps_dim, seed=0)


def test_a_config_s_kind_of_masks_is_built() -> None:
    kinds: tuple[MaskKind, ...] = ("balanced", "random", "blocks")
    assert len({mask_digest(build_masks(kind, 10, 40, 8, 0)) for kind in kinds}) == 3
