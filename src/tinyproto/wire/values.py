"""Encode a matrix of float32 values (n rows, w values each) in one of five types, and decode it.

| type | bytes of n rows of w | error, rounding to nearest | error, stochastic |
|---|---|---|---|
| float32 | 4·n·w | none | none |
| float16 | 2·n·w + 2·n | 2⁻¹¹·abs(x) + 2⁻³⁹·max | 2⁻¹⁰·abs(x) + 2⁻³⁹·max |
| bfloat16 | 2·n·w | 2⁻⁸·abs(x) | 2⁻⁷·abs(x) |
| int8 | n·w + 2·n | scale / 2 | scale |
| int4 | ⌈n·w / 2⌉ + 2·n | scale / 2 | scale |

`max` is the largest magnitude of x's row. Types with a scale have one per row, a bfloat16 written before the values. A
decoded value is the encoded value times the scale, which is exact.

- float16: the scale is a power of two that brings `max` to 2¹⁴ … 2¹⁵, since rows scaled by count may exceed float16.
- int8, int4: the scale is max / 127 or max / 7, rounded up by a factor of at most (1 + 2⁻⁷) so that nothing is clipped.
  Integers are in −127 … 127 and in −7 … 7. Two int4 values share a byte, the first in the low bits; if the matrix has
  an odd number of values, the last four bits are 0.
- A row that is encoded as zeros has scale 0, also an integer row with `max` below 2⁻¹²⁶ that rounds to zeros. Other
  scales are at least 2⁻¹²⁶.
- The bounds of the integers hold up to float32's rounding, 2⁻¹⁶ of a step, and all bounds for magnitudes up to 2¹²⁶,
  far above the limits of `wire/validate.py`. Integers have no step below 2⁻¹²⁶ and bfloat16 none below 2⁻¹³³.

Stochastic rounding goes up or down at random so that the mean over draws is x: to 2⁻¹⁷ of a step for the integers and
exactly for the others, except that float16 values below 2⁻²⁸ of `max` are rounded to nearest.

A NaN or infinite value makes its row so (in bfloat16 only itself) and is never decoded as a finite number. Such a row
is encoded as ones with scale NaN or infinity. Decoding accepts it, and `wire/validate.py` refuses it as diverged
training.

Decoding refuses scaled rows that no rounding of a float32 row gives. For the integers, rounding the scale up to
a bfloat16 adds less than 2⁻⁷ of it. So `max` is more than 127 / (1 + 2⁻⁷) > 126 or 7 / (1 + 2⁻⁷) > 6 steps. Stochastic
rounding removes less than one step. So some integer of the row has magnitude 126 or 127 (6 or 7), and some value of
float16 2¹⁴ … 2¹⁵. Only the smallest scale, 2⁻¹²⁶, may have smaller values, and only scale 0 has zeros alone. Refused
are:

- rows too small for their scale, −128 and −8, padding other than 0;
- scales that are negative, subnormal, larger than a float32 row needs or, for float16, not a power of two;
- values of float16 that 2⁻¹²⁶ brings between two float32 numbers.

Encoding decoded values again, to nearest, gives the same bytes for float32, for bfloat16 except NaN, and for scaled
rows whose largest magnitude is 127, 7 or below 2¹⁵. An int8 row at 126 would get a smaller scale and a float16 row at
2¹⁵ a larger one. Signs of zeros (floats) and the bits of a NaN (float32, bfloat16) are kept.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from tinyproto.errors import WireError

ValueName = Literal["float32", "float16", "bfloat16", "int8", "int4"]
Rounding = Literal["nearest", "stochastic"]
Download = Literal["all", "held"]
Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]

SCALE_BYTES = 2
BLOCK = 1 << 15
"""Number of values encoded at a time: 128 kB of float32 and their encoding fit into a core's cache."""

_SMALLEST_SCALE = np.float32(2.0**-126)  # the smallest normal number, which no machine flushes to 0
_MAGNITUDE, _EXPONENT = np.uint32(0x7FFFFFFF), np.uint32(0x7F800000)
_INFINITY = 0x7F800000
_QUIET_NAN = np.uint16(0x7FC0)
_SMALLEST_BITS = np.uint16(0x0080)  # of the smallest scale, as a bfloat16
_POWER_AFTER = np.uint16(0x0100)  # the next power of two
_FRACTION = np.uint16(0x007F)  # of a bfloat16
_HALF_MAGNITUDE = np.uint16(0x7FFF)  # of a float16
_HALF_LIMIT = np.uint16(0x0800)  # 2⁻¹³, as a float16


@dataclass(frozen=True)
class ValueType:
    """A way to encode values; `code` is its number in a frame."""

    name: ValueName
    code: int
    bits: int
    scaled: bool

    def payload(self, rows: int, width: int) -> int:
        """Return the bytes of values and scales."""
        values = (rows * width * self.bits + 7) // 8
        return values + SCALE_BYTES * rows if self.scaled and width else values

    def stretch(self, width: int) -> float:
        """Return a bound of the factor by which rounding can increase the L2 norm of a row with so many values."""
        return 1.0 + _OF_EACH.get(self.name, 0.0) + _OF_LARGEST.get(self.name, 0.0) * math.sqrt(width)

    def encode(self, values: Floats, rounding: torch.Generator | None = None) -> bytes | memoryview:
        """Encode values (n, w), float32 as a view; round to nearest, half to even, or stochastically by a generator."""
        if self is FLOAT32:
            return np.ascontiguousarray(values, "<f4").reshape(-1).view(np.uint8).data
        rows, width = values.shape
        out = np.empty(self.payload(rows, width), np.uint8)
        if out.size == 0:
            return b""
        values = np.ascontiguousarray(values, np.float32)
        scales, body = self._split(out, rows)
        step = max(BLOCK // width, 1)
        step += step % 2  # even, so that no byte of int4 belongs to two blocks
        scratch = np.empty((min(step, rows), width), np.float32)
        with np.errstate(invalid="ignore"):  # a NaN, which the validator refuses
            for start in range(0, rows, step):
                block = values[start : start + step]
                draws = None if rounding is None else _draws(block.shape, rounding)
                end = start + len(block)
                place = body[start * width * self.bits // 8 : (end * width * self.bits + 7) // 8]
                if self.scaled:
                    self._write_scaled(block, scales[start:end], place, scratch[: len(block)], draws)
                else:
                    _write_bfloat16(block, place, scratch[: len(block)], draws)
        return out.tobytes()

    def decode(self, data: Bytes, rows: int, width: int) -> Floats:
        """Decode `payload(n, w)` bytes to values (n, w); float32 as a view. Raise WireError if they are invalid."""
        if self is FLOAT32:
            return data.view("<f4").reshape(rows, width)
        if self is BFLOAT16:
            return _from_bfloat16(data.view("<u2")).reshape(rows, width)
        if data.size == 0:
            return np.empty((rows, width), np.float32)
        scales, body = self._split(data, rows)
        if self is FLOAT16:
            halves = body.copy().view(np.float16)
            bits = halves.view(np.uint16)
            _check_rows(self, scales, bits, bits & _HALF_MAGNITUDE)
            values = torch.from_numpy(halves).float().numpy()  # numpy would convert one number at a time
        else:
            integers = body.view(np.int8) if self is INT8 else _unpack_int4(body, rows * width)
            _check_rows(self, scales, integers, np.abs(integers).view(np.uint8))
            values = integers.astype(np.float32)
        return _times(values.reshape(rows, width), _from_bfloat16(scales))

    def _split(self, data: Bytes, rows: int) -> tuple[NDArray[np.uint16], Bytes]:
        """Return the scales, one per row or none, and the values."""
        size = SCALE_BYTES * rows if self.scaled else 0
        return data[:size].view("<u2"), data[size:]

    def _write_scaled(
        self, block: Floats, scales: NDArray[np.uint16], place: Bytes, scratch: Floats, draws: NDArray[Any] | None
    ) -> None:
        magnitudes = np.bitwise_and(block.view(np.uint32), _MAGNITUDE, out=scratch.view(np.uint32)).max(1)  # (n,) bits
        unbounded = magnitudes >= _INFINITY
        scale = _power_of_two(magnitudes) if self is FLOAT16 else _step(magnitudes, _LARGEST[self.name])
        scales[:] = scale.view(np.uint32) >> 16
        divisor = np.where(unbounded | (magnitudes == 0), np.float32(1), scale)
        np.divide(block, divisor[:, None], out=scratch)
        if unbounded.any():  # an infinite or NaN scale, times 1
            scales[unbounded] = np.where(magnitudes[unbounded] == _INFINITY, _INFINITY >> 16, _QUIET_NAN)
            scratch[unbounded] = 1
        if self is FLOAT16:
            _write_float16(scratch, place, draws)
        else:
            _round(scratch, _LARGEST[self.name], draws)
            tiny = scales == _SMALLEST_BITS
            if tiny.any():  # a row that rounds to zeros has scale 0
                scales[tiny & ~scratch.any(1)] = 0
            integers = scratch.astype(np.int8).reshape(-1)
            place[:] = integers.view(np.uint8) if self is INT8 else _pack_int4(integers)


FLOAT32 = ValueType("float32", 1, 32, scaled=False)
FLOAT16 = ValueType("float16", 2, 16, scaled=True)
BFLOAT16 = ValueType("bfloat16", 3, 16, scaled=False)
INT8 = ValueType("int8", 4, 8, scaled=True)
INT4 = ValueType("int4", 5, 4, scaled=True)
VALUE_TYPES: Mapping[ValueName, ValueType] = {known.name: known for known in (FLOAT32, FLOAT16, BFLOAT16, INT8, INT4)}
BY_CODE: Mapping[int, ValueType] = {known.code: known for known in VALUE_TYPES.values()}

_LARGEST = {"int8": 127, "int4": 7}
_OF_EACH = {"float16": 2.0**-10, "bfloat16": 2.0**-7}
"""Errors of stochastic rounding in the table, which are the larger ones: fractions of a value's magnitude …"""
_OF_LARGEST = {"float16": 2.0**-39, **{name: (1 + 2.0**-6) / largest for name, largest in _LARGEST.items()}}
"""… and of the largest in its row."""


@dataclass(frozen=True)
class Coding:
    """The encoding of one message's values."""

    values: ValueType = FLOAT32
    rounding: torch.Generator | None = None  # to draw from; None rounds to nearest


@dataclass(frozen=True)
class WireSettings:
    """The value types of a federation, their rounding, and the rows that a client is sent for training."""

    up: ValueName = "float32"
    down: ValueName = "float32"
    rounding: Rounding = "nearest"
    download: Download = "all"  # rows sent for training: all classes, or those of the client's last upload


EXACT = WireSettings()


def as_matrix(shape: tuple[int, ...]) -> tuple[int, int]:
    """Return rows and width of a tensor on the wire: its first axis and all others; a vector or a scalar is one row."""
    if len(shape) < 2:
        return 1, shape[0] if shape else 1
    width = 1
    for size in shape[1:]:
        width *= size
    return shape[0], width


def _power_of_two(magnitudes: NDArray[np.uint32]) -> Floats:
    """Return the scales that bring the largest magnitudes, given as bits, to 2¹⁴ … 2¹⁵."""
    floor = np.bitwise_and(magnitudes, _EXPONENT).view(np.float32)  # the power of two below; 0 below all normal ones
    scale: Floats = np.maximum(floor * np.float32(2.0**-14), _SMALLEST_SCALE)
    scale[magnitudes == 0] = 0
    return scale


def _step(magnitudes: NDArray[np.uint32], largest: int) -> Floats:
    """Return the largest magnitudes divided by the largest integer, rounded up to a bfloat16."""
    exact = np.maximum(magnitudes.view(np.float32) / np.float32(largest), _SMALLEST_SCALE)
    scale: Floats = ((exact.view(np.uint32) + np.uint32(0xFFFF)) & np.uint32(0xFFFF0000)).view(np.float32)
    scale[magnitudes == 0] = 0
    return scale


def _draws(shape: tuple[int, ...], generator: torch.Generator) -> NDArray[np.uint16]:
    """Draw a uniform number in 0 … 65 535 for each value."""
    count = shape[0] * shape[1]
    words = torch.empty((count + 3) // 4, dtype=torch.int64).random_(-(2**63), None, generator=generator)
    return words.numpy().view(np.uint16)[:count].reshape(shape)


def _round(values: Floats, largest: int, draws: NDArray[np.uint16] | None) -> None:
    """Round to integers, in place."""
    if draws is None:
        np.rint(values, out=values)
        return
    chance = draws.astype(np.float32)
    chance += np.float32(0.5)
    chance *= np.float32(2.0**-16)  # 2⁻¹⁷ … 1 − 2⁻¹⁷: no more bits than a sum with ±127 keeps
    values += chance
    np.floor(values, out=values)
    np.minimum(values, np.float32(largest), out=values)  # a quotient may be wrong in its last bit


def _pack_int4(integers: NDArray[np.int8]) -> Bytes:
    """Pack two integers per byte, the first in the low bits."""
    if len(integers) % 2:
        integers = np.append(integers, np.int8(0))
    pairs = integers.view("<u2")
    return ((pairs & 0x0F) | ((pairs >> 4) & 0xF0)).astype(np.uint8)


def _unpack_int4(data: Bytes, count: int) -> NDArray[np.int8]:
    """Unpack so many integers."""
    pairs = data.astype("<u2")
    pairs |= pairs << 4
    pairs &= 0x0F0F
    pairs ^= 0x0808  # less 8, below: of four bits, 8 … 15 are −8 … −1
    integers = pairs.view(np.int8)
    integers -= 8
    if count % 2 and integers[-1]:
        raise WireError("padding: the unused half of the last byte is not 0")
    return integers[:count]


def _times(values: Floats, scales: Floats) -> Floats:
    """Multiply rows (n, w) by their scales, in place."""
    if values.size < BLOCK // 2:  # torch takes longer to start but half the time per row
        with np.errstate(over="ignore"):  # exceeds float32, which the validator refuses
            values *= scales[:, None]
    else:
        torch.from_numpy(values).mul_(torch.from_numpy(scales).unsqueeze(1))
    return values


class _Limits(NamedTuple):
    """The limits of a scaled row, as bits of scales and of magnitudes."""

    smallest: np.uint16  # smallest scale whose product with every value is a float32
    scale: int  # the largest
    least: int  # least value of the row's largest magnitude, unless the scale is the smallest
    most: int
    one: int


def _limits(largest: int) -> _Limits:
    scale = _step(np.array([_INFINITY - 1], np.uint32), largest)
    return _Limits(_SMALLEST_BITS, int(scale.view(np.uint32)[0]) >> 16, largest - 1, largest, 1)


_LIMITS = {
    "float16": _Limits(_POWER_AFTER, scale=127 + 113 << 7, least=0x7400, most=0x7800, one=0x3C00),  # 2¹¹³, 2¹⁴, 2¹⁵, 1
    "int8": _limits(127),
    "int4": _limits(7),
}


def _check_rows(kind: ValueType, scales: NDArray[np.uint16], written: NDArray[Any], magnitudes: NDArray[Any]) -> None:
    """Raise WireError for rows that `encode` cannot have written; `written` and `magnitudes` are flat."""
    limits, width = _LIMITS[kind.name], len(written) // len(scales)
    largest = np.maximum.reduceat(magnitudes, np.arange(0, len(magnitudes), width))  # (n,)
    if (
        np.maximum.reduce(largest - limits.least) <= limits.most - limits.least  # smaller ones wrap around
        and np.maximum.reduce(scales - limits.smallest) <= limits.scale - limits.smallest
        and (kind is not FLOAT16 or not np.bitwise_or.reduce(scales) & _FRACTION)
    ):
        return
    known = (scales >= _SMALLEST_BITS) & (scales <= limits.scale) & (largest >= limits.least)
    known |= (scales == _SMALLEST_BITS) & (largest > 0)
    known &= largest <= limits.most
    if kind is FLOAT16:  # odd multiples of 2⁻²⁴ below 2⁻¹³ are those that 2⁻¹²⁶ brings between two float32 numbers
        between = (magnitudes < _HALF_LIMIT) & (magnitudes & 1 == 1)
        known &= scales & _FRACTION == 0
        known &= (scales != _SMALLEST_BITS) | ~between.reshape(-1, width).any(1)
    known |= (scales == 0) & (largest == 0)
    diverged = ((scales == _INFINITY >> 16) | (scales == _QUIET_NAN)).nonzero()[0]
    known[diverged] = (written.reshape(-1, width)[diverged] == limits.one).all(1)
    for row in (~known).nonzero()[0][:1].tolist():
        scale = float(_from_bfloat16(scales[row : row + 1])[0])
        raise WireError(f"row {row} with scale {scale:g}: {kind.name} never encodes a row like this")


def _write_float16(values: Floats, place: Bytes, draws: NDArray[np.uint16] | None) -> None:
    if draws is not None:  # add a draw in the 13 bits that float16 lacks, then clear them
        bits = values.view(np.uint32)
        bits += draws >> 3
        bits &= np.uint32(0xFFFFE000)
    halves = torch.from_numpy(place.view(np.float16))
    halves.copy_(torch.from_numpy(values).view(-1))  # numpy would convert one number at a time


def _write_bfloat16(block: Floats, place: Bytes, scratch: Floats, draws: NDArray[np.uint16] | None) -> None:
    bits, rounded = block.view(np.uint32), scratch.view(np.uint32)
    if draws is None:  # add half of the removed bits, slightly less if the last kept bit is even
        np.right_shift(bits, 16, out=rounded)
        np.bitwise_and(rounded, 1, out=rounded)
        rounded += np.uint32(0x7FFF)
        rounded += bits
    else:
        np.add(bits, draws, out=rounded)
    np.right_shift(rounded, 16, out=rounded)
    place.view("<u2").reshape(block.shape)[:] = rounded
    if not np.isfinite(np.vdot(block, block)):  # a carry may have turned a NaN into a number
        place.view("<u2").reshape(block.shape)[np.isnan(block)] = _QUIET_NAN


def _from_bfloat16(bits: NDArray[np.uint16]) -> Floats:
    wide = bits.astype(np.uint32)
    wide <<= 16
    return wide.view(np.float32)
