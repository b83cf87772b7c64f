"""A million mutated frames: each is refused with a WireError, or decodes to finite values in range.

Frames of every value type, both roundings and every kind are damaged in one to four places. The checksum is then set
right, but for one in a hundred, so that the decoder meets the damage. An accepted frame has to come back byte for byte
when it is encoded again, but for the rows that `wire/values.py` excepts. Time and memory of every frame are bounded.
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import random
import re
import resource
import struct
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import cache
from typing import NamedTuple

import numpy as np
import torch

from benchmarks.soak import Line, Verdict
from tinyproto.core.prototypes import AtMost, Message, Prototypes
from tinyproto.errors import WireError
from tinyproto.wire.codec import METRIC_CODES, Decoded, encode
from tinyproto.wire.frame import HEADER_BYTES, Header, Kind
from tinyproto.wire.validate import LARGEST_METRIC, LONGEST_DOWNLOAD, LONGEST_UPLOAD, Expectation, open_frame
from tinyproto.wire.values import BY_CODE, FLOAT16, INT8, VALUE_TYPES, Coding, ValueType, WireSettings, as_matrix

FRAMES = 1_000_000
AT_ONCE = 2
CHUNK = 12_500
ROOM = 1 << 30  # bytes of address space beyond what a process has at its start
SLOWEST = 5.0  # seconds for one frame
STUCK = 60.0  # seconds for a thousand frames

CLASSES, WIDTH, ROUND, CLIENT = 11, 5, 7, 3
UP, DOWN = (Kind.HELLO, Kind.UPDATE, Kind.EVALUATION), (Kind.HELLO, Kind.TRAIN, Kind.EVALUATE)
DIGEST, CHECKSUM_AT = bytes(range(16)), HEADER_BYTES - 4
EXTREMES = (0, 1, 2, 7, 8, 0x7E, 0x7F, 0x80, 0xFF, 0x7F80, 0x7FC0, 0xFFFF, 0x7F800000, 0x7FFFFFFF, 0xFFFFFFFF)
OF_THE_HEADER = ("version", "length", "kind", "client", "round", "checksum")
OF_VALUES = re.compile(r"training diverged|refused: (norm|NaN|infinity|(loss|metric) \S+ is )")


class Good(NamedTuple):
    """A frame that the encoder wrote, and what its receiver expects."""

    frame: bytes
    expected: Expectation
    round_number: int | None
    kinds: tuple[Kind, ...]


@cache
def good_frames() -> list[Good]:
    """Build frames of all kinds, contents, value types and roundings."""
    names = list(VALUE_TYPES)
    shapes = {
        "bias": (3,),
        "gain": (),
        "low": (4, 6),
        "low.u": (4, AtMost(3)),
        "low.v": (AtMost(3), 6),
        "net": (2, 3, 2),
    }
    draws = torch.Generator().manual_seed(0)
    found = []
    for rounding in ("nearest", "stochastic"):
        for up, down in zip(names, names[1:] + names[:1], strict=True):
            wire = WireSettings(up, down, "stochastic" if rounding == "stochastic" else "nearest")
            parts = {"low": ("low.u", "low.v")}
            expected = Expectation(DIGEST, CLASSES, WIDTH, shapes, parts, wire)
            for kind in Kind:
                for way in (UP, DOWN):
                    for message in _messages(kind, draws) if kind in way else ():
                        header = Header(kind, ROUND, CLIENT, expected.digest, evaluate=kind is Kind.TRAIN)
                        frame = encode(header, message, expected.coding(kind, lambda: draws))
                        good = Good(frame, expected, ROUND if way is UP else None, way)
                        open_frame(frame, expected, CLIENT, good.round_number, way)
                        found.append(good)
    return found


def _messages(kind: Kind, draws: torch.Generator) -> Iterator[Message]:
    sizes = {"train_samples": 40.0, "counted_samples": 2.0**25 + 1, "counted_classes": 7.0}
    if kind is Kind.HELLO:
        yield Message(metrics=sizes)
        return
    for magnitude in (1.0, 1e6, 2.0**-128):
        values = torch.randn(CLASSES, WIDTH, generator=draws) * magnitude
        present = torch.rand(CLASSES, generator=draws) < 0.7
        present[0] = True
        values[0] = 0.0
        rows = Prototypes(torch.where(present.unsqueeze(1), values, torch.zeros(())), present)
        common = {"bias": (3,), "gain": (), "net": (2, 3, 2)}
        for low in ({"low": (4, 6)}, {"low.u": (4, 2), "low.v": (2, 6)}):
            several = {**common, **low}
            tensors = {name: torch.randn(shape, generator=draws) * magnitude for name, shape in several.items()}
            metrics = {**dict.fromkeys(METRIC_CODES, 0.1), "mine": 0.5, "zweite": 1e-9} if kind in UP else {}
            yield Message(rows, tensors, metrics)
        yield Message(rows, {}, {"cross_entropy": 0.25} if kind in UP else {})
        yield Message(None, tensors, {})


def _flip(body: bytearray, draws: random.Random) -> None:
    body[draws.randrange(len(body))] ^= 1 << draws.randrange(8)


def _set(body: bytearray, draws: random.Random) -> None:
    body[draws.randrange(len(body))] = draws.randrange(256)


def _number(body: bytearray, draws: random.Random) -> None:
    """Put an extreme number where a count, a length, a scale or a value may be."""
    layout = draws.choice(("<B", "<H", "<I", "<f", "<d"))
    size, at = struct.calcsize(layout), draws.randrange(len(body))
    if layout in ("<f", "<d"):
        data = struct.pack(layout, draws.choice((0.0, -0.0, 1e-40, 9e7, 2e8, 2e9, 1e38, float("inf"), float("nan"))))
    else:
        data = struct.pack(layout, draws.choice(EXTREMES) & (1 << 8 * size) - 1)
    body[at : at + size] = data[: len(body) - at]


def _step(body: bytearray, draws: random.Random) -> None:
    """Change a byte by one, as a count that is off by one."""
    at = draws.randrange(len(body))
    body[at] = (body[at] + draws.choice((-1, 1))) & 0xFF


def _cut(body: bytearray, draws: random.Random) -> None:
    del body[draws.randrange(len(body)) :]


def _remove(body: bytearray, draws: random.Random) -> None:
    at = draws.randrange(len(body))
    del body[at : at + draws.randint(1, 8)]


def _repeat(body: bytearray, draws: random.Random) -> None:
    at = draws.randrange(len(body))
    body[at:at] = body[at : at + draws.randint(1, 16)]


def _splice(body: bytearray, draws: random.Random) -> None:
    """Replace a piece by one of another frame."""
    other = draws.choice(good_frames()).frame
    at, start, size = draws.randrange(len(body)), draws.randrange(HEADER_BYTES, len(other)), draws.randint(1, 40)
    body[at : at + draws.choice((0, size))] = other[start : start + size]


MUTATIONS: tuple[Callable[[bytearray, random.Random], None], ...] = (
    _flip, _flip, _flip, _set, _set, _number, _number, _step, _step, _cut, _remove, _repeat, _splice,
)  # fmt: skip


def mutated(frame: bytes, draws: random.Random) -> bytes:
    """Damage a frame's body, or once in ten its header, and mostly set its checksum right."""
    head, body = bytearray(frame[:HEADER_BYTES]), bytearray(frame[HEADER_BYTES:])
    for _ in range(draws.choice((1, 1, 1, 2, 2, 3, 4))):
        if draws.random() < 0.1:
            head[draws.randrange(CHECKSUM_AT)] ^= 1 << draws.randrange(8)
        elif body:
            draws.choice(MUTATIONS)(body, draws)
    if draws.random() > 0.01:
        checksum = zlib.crc32(body, zlib.crc32(DIGEST + head[:CHECKSUM_AT]))
        struct.pack_into("<I", head, CHECKSUM_AT, checksum)
    return bytes(head + body)


def outcome(frame: bytes, good: Good) -> str:
    """Open a frame; return how that ended, in the words of the table, or raise AssertionError."""
    try:
        decoded = open_frame(frame, good.expected, CLIENT, good.round_number, good.kinds)
    except WireError as error:
        words = str(error)
        field = words.partition("refused: ")[2].partition(":")[0]
        return f"refused: {'values' if OF_VALUES.search(words) else 'header' if field in OF_THE_HEADER else 'body'}"
    return _accepted(frame, decoded, good.expected)


def _accepted(frame: bytes, decoded: Decoded, expected: Expectation) -> str:
    header, message = decoded.header, decoded.message
    limit = LONGEST_UPLOAD if header.kind in UP else LONGEST_DOWNLOAD
    matrices = [] if message.rows is None else [message.rows.values]
    for tensor in message.tensors.values():
        matrices.append(tensor.reshape(1, -1))
    for matrix in matrices:
        norms = torch.linalg.vector_norm(matrix.double(), dim=1)
        assert bool((norms <= limit * (1 + 1e-6)).all()), f"a norm above {limit:g}, or no number"
    assert all(abs(value) <= LARGEST_METRIC for value in message.metrics.values()), "a metric out of range"
    again = encode(header, message, Coding(expected.agreed[header.kind]))
    if again == frame:
        return "accepted: encodes to the same bytes"
    assert len(again) == len(frame), "encoded again it has another length"
    excepted, allowed = set(range(0)), 0
    for kind, start, rows, width in _matrices(frame):
        for number in _excepted_rows(kind, frame, start, rows, width):
            allowed += 1
            excepted |= _places(kind, start, rows, width, number)
    differing = {at for at in range(HEADER_BYTES, len(frame)) if again[at] != frame[at]}
    assert allowed, "encoded again it has other bytes"
    assert differing <= excepted, f"encoded again it differs at {sorted(differing - excepted)[:5]}"
    return "accepted: has rows whose bytes follow from what was sent"


def _matrices(frame: bytes) -> Iterator[tuple[ValueType, int, int, int]]:
    """Walk over an accepted frame; yield type, place, rows and width of every matrix of values."""
    at = HEADER_BYTES
    if frame[at : at + 1] == b"\1":
        _, code, classes, width = struct.unpack_from("<BBHI", frame, at)
        bitmap = frame[at + 8 : at + 8 + (classes + 7) // 8]
        rows = int.from_bytes(bitmap, "little").bit_count()
        yield BY_CODE[code], at + 8 + len(bitmap), rows, width
        at += 8 + len(bitmap) + BY_CODE[code].payload(rows, width)
    if frame[at : at + 1] == b"\2":
        (count,) = struct.unpack_from("<H", frame, at + 1)
        at += 3
        for _ in range(count):
            at += 1 + frame[at]
            code, axes = frame[at], frame[at + 1]
            rows, width = as_matrix(struct.unpack_from(f"<{axes}I", frame, at + 2))
            at += 2 + 4 * axes
            yield BY_CODE[code], at, rows, width
            at += BY_CODE[code].payload(rows, width)


def _excepted_rows(kind: ValueType, frame: bytes, start: int, rows: int, width: int) -> list[int]:
    """Return the rows whose largest magnitude is one from which the encoder's scale does not follow."""
    if not kind.scaled or not rows:
        return []
    body = np.frombuffer(frame, np.uint8, kind.payload(rows, width) - 2 * rows, start + 2 * rows)
    if kind is FLOAT16:
        magnitudes = np.abs(body.view("<f2").astype(np.float32))
        return list(np.flatnonzero(magnitudes.reshape(rows, width).max(1) == 2.0**15))
    if kind is INT8:
        integers = np.abs(body.view(np.int8).astype(np.int16))
    else:
        halves = np.stack((body & 15, body >> 4), 1).reshape(-1)[: rows * width].astype(np.int16)
        integers = np.abs(halves - 16 * (halves > 7))
    return list(np.flatnonzero(integers.reshape(rows, width).max(1) < (127 if kind is INT8 else 7)))


def _places(kind: ValueType, start: int, rows: int, width: int, number: int) -> set[int]:
    """Return where a row's scale and values lie."""
    values = start + 2 * rows
    first, last = number * width * kind.bits // 8, ((number + 1) * width * kind.bits + 7) // 8
    return {start + 2 * number, start + 2 * number + 1, *range(values + first, values + last)}


def check_chunk(seed: str, count: int) -> tuple[Counter[str], list[str], float, int]:
    """Mutate and open so many frames; return outcomes, failures, the slowest one's seconds and the growth in bytes."""
    torch.set_num_threads(1)
    goods, draws = good_frames(), random.Random(seed)
    _limit_memory()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    outcomes, failures, slowest = Counter[str](), list[str](), 0.0
    for number in range(count):
        if number % 1000 == 0:
            faulthandler.dump_traceback_later(STUCK, exit=True)
        good = draws.choice(goods)
        while (frame := mutated(good.frame, draws)) == good.frame:
            pass
        start = time.perf_counter()
        try:
            outcomes[outcome(frame, good)] += 1
        except Exception as error:  # any but a WireError is what this looks for
            outcomes["failed"] += 1
            if len(failures) < 3:
                failures.append(f"seed {seed!r}, frame {number}: {type(error).__name__}: {error}; {frame.hex()}")
        slowest = max(slowest, time.perf_counter() - start)
    faulthandler.cancel_dump_traceback_later()
    return outcomes, failures, slowest, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024


@cache
def _limit_memory() -> None:
    """Let a huge allocation fail: no more address space than there is now, and some."""
    with open("/proc/self/statm") as file:  # noqa: PTH123
        now = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + ROOM, resource.RLIM_INFINITY))


def soak(seed: int, frames: int = FRAMES) -> Verdict:
    """Run the part with two processes."""
    line, verdict = Line("frames"), Verdict()
    outcomes, slowest, grown = Counter[str](), 0.0, 0
    sizes = [min(CHUNK, frames - start) for start in range(0, frames, CHUNK)]
    with ProcessPoolExecutor(AT_ONCE, multiprocessing.get_context("spawn")) as pool:
        waiting = [pool.submit(check_chunk, f"{seed}/{number}", size) for number, size in enumerate(sizes)]
        for done in as_completed(waiting):
            found, failures, seconds, growth = done.result()
            outcomes += found
            slowest, grown = max(slowest, seconds), max(grown, growth)
            verdict.failures += failures
            line.show(f"{outcomes.total():,} of {frames:,}")
    line.end()
    if slowest > SLOWEST:
        verdict.failures.append(f"one frame took {slowest:.1f} s")
    verdict.figures = {
        "frames": outcomes.total(), **dict(sorted(outcomes.items())),
        "good frames mutated": len(good_frames()), "slowest frame, ms": round(slowest * 1000, 1),
        "memory growth, MB": round(grown / 1e6, 1),
    }  # fmt: skip
    return verdict
