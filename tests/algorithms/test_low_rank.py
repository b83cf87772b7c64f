from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tinyproto.algorithms.base import Round
from tinyproto.algorithms.fedkd import (
    Factors,
    FedKDHyper,
    LowRank,
    MatrixView,
    as_matrices,
    energy_threshold,
    factorise,
    kept_rank,
    largest_rank,
    multiply,
    too_flat,
)
from tinyproto.core.task import State


def compress_tensors(tensors: State, energy: float, view: MatrixView) -> State:
    hyper = FedKDHyper(energy_start=energy, energy_end=energy, matrices=view)
    return LowRank({}, hyper).encode(tensors, Round(1, 1))


def restore_tensors(compressed: State, shapes: dict[str, tuple[int, ...]]) -> State:
    return LowRank(shapes, FedKDHyper()).decode(compressed)


def spectrum(*values: float) -> Tensor:
    return torch.tensor([values])


def of_rank(rank: int, rows: int, columns: int) -> Tensor:
    """Singular values all 1: an identity that ends early."""
    matrix = torch.zeros(rows, columns)
    matrix[range(rank), range(rank)] = 1.0
    return matrix


def values_in(factors: Factors | None) -> int:
    assert factors is not None
    return sum(part.numel() for part in factors)


@pytest.mark.parametrize(
    ("energy", "rank"),
    [(0.63, 1), (0.64, 2), (0.79, 2), (0.8, 3), (0.95, 3), (0.96, 4), (1.0, 5)],
)
def test_the_first_components_that_hold_more_than_the_threshold_are_kept(energy: float, rank: int) -> None:
    # Energies 16, 4, 4, 1 and 0 of 25: shares 0.64, 0.8, 0.96, 1, 1. Exactly the threshold is not more than it.
    assert kept_rank(spectrum(4.0, 2.0, 2.0, 1.0, 0.0), energy) == rank


def test_several_matrices_keep_one_common_rank_by_their_energies_together() -> None:
    # The first component holds 16 + 1 of 16 + 0 + 1 + 1, though only half of the second matrix.
    values = torch.tensor([[4.0, 0.0], [1.0, 1.0]])
    assert kept_rank(values, 0.9) == 1
    assert kept_rank(values, 0.95) == 2


@pytest.mark.parametrize("energy", [0.95, 0.98, 1.0])
def test_a_flat_spectrum_is_kept_in_full_and_the_tensor_arrives_untouched(energy: float) -> None:
    assert kept_rank(torch.ones(1, 10), energy) == 10  # nine of ten hold 0.9 only
    head = torch.eye(10, 50) * 0.3
    assert factorise(head, energy, "filters") is None
    restored = restore_tensors(compress_tensors({"head": head}, energy, "filters"), {"head": (10, 50)})
    assert torch.equal(restored["head"], head)


@pytest.mark.parametrize("view", ["filters", "kernels"])
@pytest.mark.parametrize("shape", [(), (7,), (6, 8), (5, 4, 3, 3), (1, 40), (4, 3, 1, 1)])
def test_zeros_of_any_shape_arrive_as_zeros(shape: tuple[int, ...], view: MatrixView) -> None:
    restored = restore_tensors(compress_tensors({"zeros": torch.zeros(shape)}, 0.95, view), {"zeros": shape})
    assert restored["zeros"].shape == shape
    assert float(restored["zeros"].abs().sum()) == 0.0


def test_vectors_and_single_rows_travel_whole() -> None:
    for tensor in (torch.ones(50), torch.tensor(3.0), torch.ones(1, 50), torch.ones(1, 4, 9, 9)):
        for view in ("filters", "kernels"):
            assert factorise(tensor, 0.5, view) is None


def test_a_1_x_1_convolution_is_factorised_by_its_filters_and_whole_by_its_kernels() -> None:
    weight = torch.outer(torch.arange(1.0, 9.0), torch.arange(1.0, 7.0)).reshape(8, 6, 1, 1)
    factors = factorise(weight, 0.95, "filters")
    assert factors is not None
    assert (factors.left.shape, factors.right.shape) == ((8, 1), (1, 6))
    torch.testing.assert_close(multiply(factors, weight.shape), weight)
    assert factorise(weight, 0.95, "kernels") is None  # a 1 × 1 matrix has nothing to save


def test_kernels_are_factorised_one_by_one_and_filters_as_one_matrix() -> None:
    columns, rows = torch.rand(4, 3, 5, 1) + 0.5, torch.rand(4, 3, 1, 5) + 0.5
    weight = columns @ rows  # every kernel has rank one, all filters together rank four
    assert as_matrices(weight, "filters").shape == (4, 75)
    assert as_matrices(weight, "kernels").shape == (4, 3, 5, 5)
    factors = factorise(weight, 0.9999, "kernels")
    assert factors is not None
    assert (factors.left.shape, factors.right.shape) == ((4, 3, 5, 1), (4, 3, 1, 5))
    torch.testing.assert_close(multiply(factors, weight.shape), weight)
    assert factorise(weight, 0.9999, "filters") is None


def test_the_smaller_form_travels_and_of_two_equal_ones_the_tensor() -> None:
    # Rank 2: factors of 4 × 4 have 16 values, as many as the matrix; of 4 × 5 they have 18, two fewer.
    assert factorise(of_rank(2, 4, 4), 0.95, "filters") is None
    assert values_in(factorise(of_rank(2, 4, 5), 0.95, "filters")) == 18
    assert factorise(of_rank(3, 4, 5), 0.95, "filters") is None
    assert values_in(factorise(of_rank(1, 4, 4), 0.95, "filters")) == 8
    compressed = compress_tensors({"equal": of_rank(2, 4, 4), "smaller": of_rank(2, 4, 5)}, 0.95, "filters")
    assert list(compressed) == ["equal", "smaller.left", "smaller.right"]


@given(st.integers(1, 60), st.integers(1, 60), st.integers(1, 60))
def test_the_largest_rank_is_the_last_whose_factors_are_smaller(rows: int, columns: int, rank: int) -> None:
    smaller = rank * (rows + columns) < rows * columns
    assert (rank <= largest_rank((rows, columns))) == smaller


def test_a_diverged_tensor_has_no_factors_and_stays_as_it_is() -> None:
    for value in (math.nan, math.inf):
        assert factorise(torch.full((9, 9), value), 0.95, "filters") is None


@settings(deadline=None, max_examples=60)
@given(
    shape=st.sampled_from([(12, 9), (30, 4), (6, 3, 3, 3), (5, 4, 5, 5), (8, 2, 1, 1), (3, 40), (2, 2), (11,)]),
    view=st.sampled_from(["filters", "kernels"]),
    energy=st.floats(0.05, 0.999),
    decay=st.floats(0.05, 1.0),
    seed=st.integers(0, 1000),
)
def test_what_comes_back_lacks_no_more_energy_than_allowed_and_never_costs_more(
    shape: tuple[int, ...], view: MatrixView, energy: float, decay: float, seed: int
) -> None:
    tensor = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    if len(shape) > 1:
        tensor = tensor * decay ** torch.arange(shape[-1])  # from a flat spectrum to a steep one
    compressed = compress_tensors({"w": tensor}, energy, view)
    assert sum(value.numel() for value in compressed.values()) <= tensor.numel()
    restored = restore_tensors(compressed, {"w": shape})["w"]
    assert restored.shape == shape
    lost = float((restored.double() - tensor.double()).square().sum())
    assert lost <= (1 - energy + 1e-5) * float(tensor.double().square().sum())
    assert float(restored.abs().sum()) > 0  # never zeroed


def test_the_threshold_starts_at_its_start_and_would_reach_its_end_after_the_last_round() -> None:
    assert energy_threshold(1, 300, 0.95, 0.98) == 0.95
    assert energy_threshold(151, 300, 0.95, 0.98) == pytest.approx(0.965)
    assert energy_threshold(300, 300, 0.95, 0.98) == pytest.approx(0.95 + 299 / 300 * 0.03)
    assert energy_threshold(301, 300, 0.95, 0.98) == pytest.approx(0.98)
    assert energy_threshold(1, 1, 0.5, 0.9) == 0.5


@settings(max_examples=60, deadline=None)
@given(
    shape=st.sampled_from([(6, 40), (40, 6), (12, 12), (5, 4, 3, 3), (8, 2, 7, 7), (3, 2, 5, 9)]),
    decay=st.floats(0.2, 1.5),
    energy=st.floats(0.3, 0.999),
    seed=st.integers(0, 1_000),
)
def test_factors_are_the_truncated_singular_value_decomposition(
    shape: tuple[int, ...], decay: float, energy: float, seed: int
) -> None:
    draw = torch.Generator().manual_seed(seed)
    tensor = torch.randn(shape, generator=draw)
    left, values, right = torch.linalg.svd(tensor.double(), full_matrices=False)
    falling = values * decay ** torch.arange(values.shape[-1]).double()
    tensor = ((left * falling[..., None, :]) @ right).float()
    left, values, right = torch.linalg.svd(tensor.double(), full_matrices=False)
    many = values.reshape(-1, values.shape[-1])
    rank, most = kept_rank(many, energy), largest_rank(tensor.shape)
    shares = many.square().sum(0).cumsum(0) / many.square().sum()
    if float((shares - energy).abs().min()) < 1e-9:
        return  # too close to call in floating point
    found = factorise(tensor, energy, "kernels")
    assert (found is None) == (rank > most)
    smaller = min(tensor.shape[-2:])
    gram = tensor.double() @ tensor.double().mT if tensor.shape[-2] == smaller else tensor.double().mT @ tensor.double()
    assert not (too_flat(gram, energy, most) and rank <= most)
    if found is not None:
        assert found.left.shape[-1] == rank
        kept = (left[..., :rank] * values[..., None, :rank]) @ right[..., :rank, :]
        assert torch.allclose(multiply(found, tensor.shape), kept.float(), atol=1e-5)
