"""What values become on the wire: the error bounds that `wire/values.py` states, for each type and rounding."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray

from tinyproto.wire import values as wire_values
from tinyproto.wire.values import BFLOAT16, FLOAT16, FLOAT32, INT4, INT8, VALUE_TYPES, Floats, ValueType

TYPES = pytest.mark.parametrize("kind", list(VALUE_TYPES.values()), ids=lambda kind: kind.name)
TINY = 2.0**-126
SLACK = 2.0**-16  # of a step: float32's own rounding
LARGEST = {INT8: 127, INT4: 7}

SHAPES = st.tuples(st.integers(0, 5), st.integers(0, 9))
MAGNITUDES = st.one_of(
    st.floats(width=32, allow_nan=False, allow_infinity=False, min_value=-(2.0**126), max_value=2.0**126),
    st.floats(-1000, 1000, width=32),
    st.sampled_from([0.0, -0.0, 2.0**-149, -(2.0**-149), 2.0**-133, 2.0**-126, 1.0, 127.0, 126.5, 65504.0, 2.0**126]),
)
MATRICES = SHAPES.flatmap(lambda shape: arrays.arrays(np.float32, shape, elements=MAGNITUDES))


def there_and_back(kind: ValueType, values: Floats, seed: int | None = None) -> NDArray[np.float64]:
    rounding = None if seed is None else torch.Generator().manual_seed(seed)
    data = kind.encode(values, rounding)
    assert len(data) == kind.payload(*values.shape)
    with np.errstate(invalid="ignore"):  # a signalling NaN, widened
        return kind.decode(np.frombuffer(data, np.uint8), *values.shape).astype(np.float64)


def steps(kind: ValueType, values: Floats) -> NDArray[np.float64]:
    """(n, 1): at most (1 + 2⁻⁷) of max / 127, or the smallest scale there is; float32 divides to 2⁻²⁴."""
    most = np.abs(values).max(1, keepdims=True).astype(np.float64)
    scales = np.maximum(most / LARGEST[kind] * (1 + 2.0**-7) * (1 + 2.0**-23), TINY)
    data = np.frombuffer(kind.encode(values), "<u2", count=len(values)).astype(np.uint32) << 16
    found: NDArray[np.float64] = data.view(np.float32).astype(np.float64)[:, None]
    assert (found <= scales).all()
    rounds_to_zeros = (found == 0) & (most > 0)
    assert (most[rounds_to_zeros] <= TINY / 2).all()
    return np.where(rounds_to_zeros, TINY, found)


def bound(kind: ValueType, values: Floats, stochastic: bool) -> NDArray[np.float64]:
    exact = np.abs(values).astype(np.float64)
    twice = 2 if stochastic else 1
    if kind is FLOAT32:
        return np.zeros_like(exact)
    if kind is BFLOAT16:
        return np.maximum(2.0**-8 * exact, np.full_like(exact, 2.0**-134)) * twice
    if kind is FLOAT16:
        largest: NDArray[np.float64] = exact.max(1, keepdims=True)
        return twice * 2.0**-11 * exact + 2.0**-39 * largest
    return steps(kind, values) * (twice / 2 + SLACK)


@TYPES
@pytest.mark.parametrize("seed", [None, 3], ids=["nearest", "stochastic"])
@settings(max_examples=60)
@given(values=MATRICES)
@example(values=np.array([[2.0**-149]], np.float32))
@example(values=np.array([[2.0**-112, -(2.0**-149), 3 * 2.0**-148]], np.float32))
@example(values=np.array([[127.0, -127.0, 0.5, -0.5, 63.5], [0, 0, 0, 0, 0], [7.0, 3.5, 2.5, -7.0, 1.0]], np.float32))
@example(values=np.full((3, 7), 1e6, np.float32) / 3)
def test_the_error_is_within_the_stated_bound(kind: ValueType, seed: int | None, values: Floats) -> None:
    found = there_and_back(kind, values, seed)
    assert found.shape == values.shape
    if values.size:
        assert (np.abs(found - values.astype(np.float64)) <= bound(kind, values, seed is not None)).all()
        assert (found[(values == 0).all(1)] == 0).all()
        assert ((found == 0) | (np.sign(found) == np.sign(values))).all()  # a variance never turns negative


@TYPES
@settings(max_examples=40)
@given(values=MATRICES.filter(lambda matrix: matrix.size > 0), place=st.integers(0, 10**6), bad=st.sampled_from(
    [math.nan, math.inf, -math.inf]
))  # fmt: skip
@pytest.mark.parametrize("seed", [None, 3], ids=["nearest", "stochastic"])
def test_what_is_no_number_never_arrives_as_one(
    kind: ValueType, values: Floats, place: int, bad: float, seed: int | None
) -> None:
    broken = values.copy()
    row, column = divmod(place % values.size, values.shape[1])
    broken[row, column] = bad
    found = there_and_back(kind, broken, seed)
    assert not np.isfinite(found[row, column])
    assert np.isnan(found[row, column]) == np.isnan(bad)
    assert np.isfinite(np.delete(found, row, 0)).all()  # the other rows are as they were


@pytest.mark.parametrize("bits", [0x7F800001, 0x7FFFFFFF, 0xFFFFFFFF, 0xFF8FFFFF])
@TYPES
@pytest.mark.parametrize("seed", [None, 3], ids=["nearest", "stochastic"])
def test_no_pattern_of_a_nan_turns_into_a_number(kind: ValueType, bits: int, seed: int | None) -> None:
    values = np.array([[1, 2, 3], [4, 5, 6]], np.float32)
    values.view(np.uint32)[1, 1] = bits
    assert np.isnan(there_and_back(kind, values, seed)[1, 1])


@TYPES
def test_the_mean_over_draws_is_the_value(kind: ValueType) -> None:
    one = np.array([[0.3, -0.3, 1.0, -0.013, 0.77, 1e-3, 0.0]], np.float32)
    draws = 40_000
    found = there_and_back(kind, np.repeat(one, draws, 0), seed=1)
    steps_apart = np.array([len(np.unique(column)) for column in found.T])
    assert (steps_apart <= 2).all()  # one of the two neighbours, always
    if kind is not FLOAT32:
        assert steps_apart.max() == 2
    spread = found.std(0) / np.sqrt(draws)
    assert (np.abs(found.mean(0) - one[0].astype(np.float64)) <= 5 * spread + 1e-9).all()
    rounded = np.abs(there_and_back(kind, one) - one.astype(np.float64))[0]
    if kind in LARGEST:  # and to nearest there is an error that draws do not have
        assert (rounded > 5 * spread + 1e-9).any()


@pytest.mark.parametrize(("kind", "largest"), LARGEST.items(), ids=lambda value: getattr(value, "name", value))
def test_halves_go_to_the_even_neighbour_and_whole_numbers_stay(kind: ValueType, largest: int) -> None:
    values = np.array([[largest, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 3, -largest]], np.float32)
    assert there_and_back(kind, values).tolist() == [[largest, 0, 2, 2, 0, -2, -2, 3, -largest]]
    whole = np.arange(-largest, largest + 1, dtype=np.float32)[None]
    for seed in (None, *range(20)):
        assert (there_and_back(kind, whole, seed) == whole).all()


def test_bfloat16_and_float16_round_as_torch_does() -> None:
    values = torch.randn(200, 50, generator=torch.Generator().manual_seed(0))
    values[0, :4] = torch.tensor([1 + 2.0**-8, 1 + 3 * 2.0**-8, 1 + 2.0**-11, 1 + 3 * 2.0**-11])  # halves
    expected = values.bfloat16().double().numpy()
    assert (there_and_back(BFLOAT16, values.numpy()) == expected).all()
    assert (there_and_back(FLOAT16, values.numpy()) == values.half().double().numpy()).all()


def test_float16_holds_rows_far_beyond_its_own_range() -> None:
    values = np.array([[5e6, -1.25e6, 3.0]], np.float32)
    assert (np.abs(there_and_back(FLOAT16, values) - values) <= np.abs(values) * 2.0**-11).all()


@TYPES
@pytest.mark.parametrize("width", [1, 7, 50, 501, 40_000])
def test_a_matrix_of_many_blocks_is_its_rows_one_by_one(kind: ValueType, width: int) -> None:
    rows = 2 * wire_values.BLOCK // width + 3
    values = torch.randn(rows, width, generator=torch.Generator().manual_seed(0)).numpy()
    whole = there_and_back(kind, values)
    for row in (0, 1, rows // 2, rows - 1):
        assert (there_and_back(kind, values[row : row + 1])[0] == whole[row]).all()


@TYPES
def test_the_same_generator_gives_the_same_bytes_and_another_one_others(kind: ValueType) -> None:
    values = torch.randn(9, 33, generator=torch.Generator().manual_seed(0)).numpy()
    once, again, other = (kind.encode(values, torch.Generator().manual_seed(seed)) for seed in (5, 5, 6))
    assert once == again
    assert (once == other) == (kind is FLOAT32)


def test_bytes_of_rows() -> None:
    assert [kind.payload(46, 50) for kind in VALUE_TYPES.values()] == [9200, 4692, 4600, 2392, 1242]
    assert [kind.payload(3, 5) for kind in VALUE_TYPES.values()] == [60, 36, 30, 21, 14]
    assert all(kind.payload(3, 0) == kind.payload(0, 3) == 0 for kind in VALUE_TYPES.values())


ROWS_OF_ANY = SHAPES.flatmap(
    lambda shape: arrays.arrays(
        np.float32,
        shape,
        elements=st.floats(width=32) | MAGNITUDES | st.sampled_from([3.4028234663852886e38, 2.0**127]),
    )
)


def parts(kind: ValueType, data: bytes | memoryview, values: Floats) -> tuple[NDArray[np.uint16], NDArray[np.float64]]:
    """Scales (n,), as bits, and the largest magnitude of each row as it travels (n,)."""
    rows, width = values.shape
    scales = np.frombuffer(data, "<u2", count=rows)
    written = np.frombuffer(data, np.uint8, offset=2 * rows)
    if kind is INT4:
        written = np.stack([written & 15, written >> 4], 1).reshape(-1)[: values.size]
        numbers = ((written.astype(np.int64) ^ 8) - 8).astype(np.float64)
    else:
        numbers = written.view("<f2" if kind is FLOAT16 else np.int8).astype(np.float64)
    return scales, np.abs(numbers.reshape(rows, width)).max(1)


@TYPES
@pytest.mark.parametrize("seed", [None, 3], ids=["nearest", "stochastic"])
@settings(max_examples=150)
@given(values=ROWS_OF_ANY)
@example(values=np.array([[2.0**-149, 0], [2.0**-127, 0], [2.0**-126, 2.0**-149], [0, 0]], np.float32))
@example(values=np.array([[3.4028234663852886e38, 1.0], [2.0**127, 0]], np.float32))
@example(values=np.array([[math.nan, 1.0], [math.inf, math.nan], [-math.inf, 0], [1, 2]], np.float32))
@example(values=np.array([[126.2], [-126.2]], np.float32) * (1 + 2.0**-7))
def test_whatever_is_encoded_is_decoded_and_encoded_again_to_the_same_bytes_where_that_is_claimed(
    kind: ValueType, seed: int | None, values: Floats
) -> None:
    data = kind.encode(values, None if seed is None else torch.Generator().manual_seed(seed))
    found = kind.decode(np.frombuffer(data, np.uint8), *values.shape)
    if not values.size:
        return
    if kind.scaled:
        scales, largest = parts(kind, data, values)
        unique = largest == LARGEST[kind] if kind in LARGEST else largest < 2.0**15
        chosen = (unique & np.isfinite(found).all(1)) | (scales == 0) | (scales == 0x80)
    else:
        chosen = np.isfinite(found).all(1)
    for row in chosen.nonzero()[0]:
        alone = found[row : row + 1]
        again = kind.encode(alone)
        if seed is None:
            assert again == kind.encode(values[row : row + 1])
        if kind.scaled:
            assert again[:2] == scales[row].tobytes()
        assert (kind.decode(np.frombuffer(again, np.uint8), *alone.shape) == alone).all()
