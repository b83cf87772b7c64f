"""Uploads folded in as they arrive: the same verdicts and the same sums as the plain way, and the bound on order."""

from __future__ import annotations

import math
import struct
import warnings
import zlib
from collections.abc import Callable, Sequence
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from benchmarks.aggregate import Intake
from tinyproto.algorithms.base import ClientInfo
from tinyproto.algorithms.streaming import UNIT_ROUNDOFF, Gathered, HolderSums
from tinyproto.core.prototypes import Message, PackedRows, Prototypes
from tinyproto.errors import WireError
from tinyproto.wire.codec import METRIC_CODES, encode
from tinyproto.wire.frame import HEADER_BYTES, Header, Kind
from tinyproto.wire.validate import LONGEST_UPLOAD, Expectation, row_by_row, surely_good

K, W, DIGEST, ROUND, CLIENT = 11, 3, bytes(range(16)), 5, 4
EXPECTED = Expectation(DIGEST, K, W)
INFO = ClientInfo(CLIENT, 10, 10, 2)  # so no more than two rows
FLOATS = st.floats(-1e6, 1e6, width=32)
ANY_FLOATS = st.floats(width=32)
settings.register_profile("quick", deadline=None, max_examples=60)
settings.load_profile("quick")


@st.composite
def uploads(draw: st.DrawFn, elements: st.SearchStrategy[float] = FLOATS) -> Prototypes:
    present = torch.from_numpy(draw(arrays(np.bool_, K)))
    values = torch.from_numpy(draw(arrays(np.float32, (K, W), elements=elements)))
    return Prototypes(torch.where(present.unsqueeze(1), values, torch.zeros(())), present)


def packed(upload: Prototypes) -> PackedRows:
    classes = upload.present.numpy().nonzero()[0]
    return PackedRows(upload.num_classes, classes, upload.values.numpy()[classes])


def folded(sent: Sequence[Prototypes]) -> HolderSums:
    sums = HolderSums(sent[0].num_classes, sent[0].width)
    for upload in sent:
        sums.fold(packed(upload))
    return sums


@given(st.lists(uploads(), min_size=1, max_size=6))
def test_folding_packed_rows_is_adding_whole_uploads_to_the_bit(sent: list[Prototypes]) -> None:
    plain = HolderSums(K, W)
    for upload in sent:
        plain.add(upload)
    quick = folded(sent)
    assert quick.sums.numpy().tobytes() == plain.sums.numpy().tobytes()
    assert torch.equal(quick.holders, plain.holders)


def test_holders_are_counted_however_many_uploads_there_were() -> None:
    rows = packed(Prototypes(torch.ones(K, W), torch.arange(K) % 2 == 0))
    sums = HolderSums(K, W)
    for number in range(1, 601):
        sums.fold(rows)
        if number in (1, 255, 256, 257, 600):
            assert sums.holders.tolist() == [number if label % 2 == 0 else 0 for label in range(K)]


@given(uploads(), uploads())
def test_rows_unpack_to_what_was_packed(upload: Prototypes, other: Prototypes) -> None:
    unpacked = packed(upload).unpacked()
    assert torch.equal(unpacked.values, upload.values)
    assert torch.equal(unpacked.present, upload.present)
    assert packed(other).parameters == int(other.present.sum()) * W


def plain_reading(frame: bytes) -> tuple[dict[int, list[float]], dict[str, float]] | None:
    """A frame read number by number, straight from the layout that docs and docstrings give; None if it is refused."""
    if len(frame) < HEADER_BYTES or len(frame) > EXPECTED.largest_frame:
        return None
    version, code, round_number, client, checksum = struct.unpack_from("<BBIII", frame)
    body = frame[HEADER_BYTES:]
    whole = zlib.crc32(DIGEST + frame[: HEADER_BYTES - 4] + body)
    if (version, code & 0x7F, round_number, client, checksum) != (2, 3, ROUND, CLIENT, whole):
        return None
    rows: dict[int, list[float]] = {}
    metrics: dict[str, float] = {}
    at, last = 0, 0
    try:
        while at < len(body):
            if body[at] <= last or body[at] > 3:
                return None
            last = body[at]
            at = READERS[last](body, at, rows, metrics)
    except (struct.error, IndexError, ValueError, UnicodeDecodeError):
        return None
    for values in rows.values():
        if not all(map(math.isfinite, values)) or math.hypot(*values) > LONGEST_UPLOAD:
            return None
    if len(rows) > INFO.counted_classes or not all(map(math.isfinite, metrics.values())):
        return None
    tested = metrics.get("test_samples", 0.0)
    correct = [metrics.get(f"correct_{rule}", 0.0) for rule in ("head", "global", "local")]
    if tested >= 2**31 or any(not 0 <= right <= tested or right % 1 or tested % 1 for right in correct):
        return None
    return rows, metrics


def read_rows(body: bytes, at: int, rows: dict[int, list[float]], _: dict[str, float]) -> int:
    _, kind, num_classes, width = struct.unpack_from("<BBHI", body, at)
    if (kind, num_classes, width) != (1, K, W):
        raise ValueError
    bitmap = body[at + 8 : at + 8 + (K + 7) // 8]
    if len(bitmap) < (K + 7) // 8:
        raise ValueError
    held = [bit for bit in range(8 * len(bitmap)) if bitmap[bit // 8] >> bit % 8 & 1]
    if any(label >= K for label in held):
        raise ValueError
    at += 8 + len(bitmap)
    for label in held:
        rows[label] = list(struct.unpack_from(f"<{W}f", body, at))
        at += 4 * W
    return at


def read_tensors(*_: object) -> int:
    raise ValueError  # this federation exchanges no tensors, and a section without any is left out


def read_metrics(body: bytes, at: int, rows: dict[int, list[float]], metrics: dict[str, float]) -> int:
    names = {code: name for name, code in METRIC_CODES.items()}
    count = struct.unpack_from("<BB", body, at)[1]
    if not count:
        raise ValueError
    order = [8, 9, 0, 1, 2, 3, 4, 5, 6, 7]
    last = (-1, "")
    at += 2
    for _ in range(count):
        tag = body[at]
        at += 1
        if tag & 0x7F:
            name = names.get(tag & 0x7F, "")
        else:
            size = body[at]
            if at + 1 + size > len(body):
                raise ValueError
            name = body[at + 1 : at + 1 + size].decode()
            at += 1 + size
            if name in METRIC_CODES:
                raise ValueError
        if name in metrics or (not name and tag & 0x7F):
            raise ValueError
        place = (order.index(tag & 0x7F), name)
        if place <= last:
            raise ValueError
        last = place
        layout = "<d" if tag & 0x80 else "<f"
        (value,) = struct.unpack_from(layout, body, at)
        exact = abs(value) < 3e38 and struct.unpack("<f", struct.pack("<f", value)) == (value,)
        if exact != (layout == "<f"):
            raise ValueError
        metrics[name] = value
        at += struct.calcsize(layout)
    return at


READERS: dict[int, Callable[[bytes, int, dict[int, list[float]], dict[str, float]], int]] = {
    1: read_rows,
    2: read_tensors,
    3: read_metrics,
}
METRICS = st.dictionaries(
    st.sampled_from(["test_samples", "correct_head", "cross_entropy", "of its own"]),
    st.sampled_from([0.0, 1.0, 2.5, 3.0, 1e-300, -1.0]),
    max_size=4,
)


def repaired(frame: bytes) -> bytes:
    """The frame with its checksum made right, so that what else is wrong with it comes to light."""
    if len(frame) < HEADER_BYTES:
        return frame
    head, body = frame[: HEADER_BYTES - 4], frame[HEADER_BYTES:]
    return head + struct.pack("<I", zlib.crc32(DIGEST + head + body)) + body


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """A good frame, or one with bytes changed, cut off or added, mostly with a checksum that is right again."""
    elements = draw(st.sampled_from([FLOATS, ANY_FLOATS]))
    message = Message(draw(st.none() | uploads(elements)), metrics=draw(METRICS))
    frame = bytearray(encode(Header(Kind.UPDATE, ROUND, CLIENT, DIGEST), message))
    for _ in range(draw(st.integers(0, 2))):
        position = draw(st.integers(0, min(len(frame), HEADER_BYTES + 12) - 1) | st.integers(0, len(frame) - 1))
        frame[position] = draw(st.integers(0, 255))
    cut = draw(st.just(0) | st.integers(0, len(frame)))
    sent = bytes(frame[: len(frame) - cut]) + draw(st.just(b"") | st.binary(max_size=6))
    return repaired(sent) if draw(st.sampled_from([True, True, True, False])) else sent


@settings(max_examples=400)
@given(mutated(), uploads())
def test_a_frame_is_taken_or_refused_as_a_plain_reading_says_and_refused_before_it_changed_anything(
    frame: bytes, earlier: Prototypes
) -> None:
    intake = Intake(EXPECTED, ROUND, Gathered(K, W))
    intake.gathered.add(INFO, packed(earlier))
    before = intake.gathered.sums.sums.clone()
    due = plain_reading(frame)
    if due is None:
        with pytest.raises(WireError):
            intake.take(INFO, frame)
        assert torch.equal(intake.gathered.sums.sums, before)
        assert intake.gathered.sums.holders.tolist() == earlier.present.long().tolist()
        assert intake.gathered.uploads == 1
        return
    rows, metrics = due
    assert intake.take(INFO, frame) == metrics
    for label, values in rows.items():
        before[label] += torch.tensor(values, dtype=torch.float64)
    assert torch.equal(intake.gathered.sums.sums, before)
    held = torch.zeros(K, dtype=torch.int64)
    held[list(rows)] = 1
    assert torch.equal(intake.gathered.sums.holders, earlier.present.long() + held)


def test_the_mutations_reach_both_verdicts() -> None:
    good = encode(Header(Kind.UPDATE, ROUND, CLIENT, DIGEST), Message(Prototypes.absent(K, W), metrics={"loss": 1.0}))
    assert plain_reading(good) == ({}, {"loss": 1.0})
    assert plain_reading(repaired(good[:-1])) is None
    assert plain_reading(repaired(good)) is not None
    tested = {"test_samples": 2.0**31 - 128, "correct_head": 1.0}
    header = Header(Kind.UPDATE, ROUND, CLIENT, DIGEST)
    assert plain_reading(encode(header, Message(metrics=tested))) is not None
    assert plain_reading(encode(header, Message(metrics={**tested, "test_samples": 2.0**31}))) is None


def float32s(*values: float) -> st.SearchStrategy[float]:
    """Draw one of these, rounded to float32: with numpy 1, hypothesis takes no other for an array of them."""
    return st.sampled_from([float(np.float32(value)) for value in values])


LONG = float32s(0.0, 1.0, 4e7, 5e7, 7e7, 1e8, 1.1e8, 3e38, math.inf, math.nan)


@settings(max_examples=300)
@given(arrays(np.float32, st.tuples(st.integers(0, 4), st.integers(1, 3)), elements=LONG | ANY_FLOATS))
def test_one_dot_product_lets_nothing_pass_that_is_refused_row_by_row_and_never_warns(
    values: np.ndarray[tuple[int, int], np.dtype[np.float32]],
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        good = surely_good(values, LONGEST_UPLOAD)
    if good:
        assert row_by_row(values, np.arange(len(values)), LONGEST_UPLOAD) is None


def test_what_one_dot_product_cannot_show_is_looked_at_row_by_row() -> None:
    signalling = np.array([[0x7FA00000]], np.uint32).view(np.float32)
    assert not surely_good(signalling, 1e9)
    just_good = np.array([[1e9]], np.float32)
    assert not surely_good(just_good, 1e9)
    assert row_by_row(just_good, np.zeros(1, np.intp), 1e9) is None
    assert surely_good(np.full((2, 1000), 1e6, np.float32), 1e9)
    many = np.zeros((1, (1 << 20) + 1), np.float32)  # too many for float32 to add up well enough
    assert not surely_good(many, 1e9)
    assert row_by_row(many, np.zeros(1, np.intp), 1e9) is None


Tree = int | tuple["Tree", "Tree"]


@st.composite
def trees(draw: st.DrawFn, leaves: int) -> Tree:
    """Any order of so many uploads, in any tree."""
    nodes: list[Tree] = list(draw(st.permutations(range(leaves))))
    while len(nodes) > 1:
        first = draw(st.integers(0, len(nodes) - 2))
        nodes[first : first + 2] = [(nodes[first], nodes[first + 1])]
    return nodes[0]


def in_tree(tree: Tree, sent: Sequence[Prototypes]) -> Gathered:
    if isinstance(tree, int):
        leaf = Gathered(sent[tree].num_classes, sent[tree].width)
        leaf.add(ClientInfo(tree, 1, 1, 1), packed(sent[tree]))
        return leaf
    left, right = (in_tree(part, sent) for part in tree)
    left.merge(right)
    return left


CANCELLING = float32s(1.0, -1.0, 1e9, -1e9, 1e-30, 2.0**-149, 3.0000002, 2.0**29 + 64, 0.1) | st.floats(
    -1e9, 1e9, width=32
)


def assert_within_bound(found: HolderSums, sent: Sequence[Prototypes]) -> None:
    columns = torch.stack([upload.values for upload in sent]).double()  # (m, K, w)
    magnitudes = columns.abs().sum(0)
    bounds = found.bound(magnitudes)
    for label in range(found.sums.shape[0]):
        for place in range(found.sums.shape[1]):
            values = columns[:, label, place].tolist()
            exact, sizes = sum(map(Fraction, values), Fraction()), sum(map(abs, map(Fraction, values)), Fraction())
            assert float(exact) == math.fsum(values)
            bound = max(int(found.holders[label]) - 1, 0) * Fraction(UNIT_ROUNDOFF) * sizes
            assert abs(Fraction(float(found.sums[label, place])) - exact) <= bound
            assert float(bound) == pytest.approx(float(bounds[label, place]), rel=1e-12)


@settings(max_examples=150)
@given(st.data())
def test_any_order_in_any_tree_is_within_the_stated_bound_of_the_exact_sum(data: st.DataObject) -> None:
    element = arrays(np.float32, (2, 1), elements=CANCELLING)
    count = data.draw(st.integers(1, 9))
    present = torch.ones(2, dtype=torch.bool)
    sent = [Prototypes(torch.from_numpy(data.draw(element)), present) for _ in range(count)]
    for order in (range(count), data.draw(st.permutations(range(count)))):
        assert_within_bound(folded([sent[place] for place in order]), sent)
    grown = in_tree(data.draw(trees(count)), sent)
    assert (grown.uploads, grown.counted_samples, grown.counted_classes) == (count, count, count)
    assert_within_bound(grown.sums, sent)


def test_the_worst_orders_known_stay_within_the_bound_and_some_order_does_matter() -> None:
    """One large value, then many that it swallows one by one: in the other order none is lost."""
    values = [2.0**29] + [2.0**-25] * 2000 + [-(2.0**29)]
    sent = [Prototypes(torch.tensor([[value]]), torch.tensor([True])) for value in values]
    orders = {
        "large first": sent,
        "small first": sorted(sent, key=lambda upload: abs(float(upload.values))),
        "large last": sent[1:] + sent[:1],
    }
    results = {name: folded(order) for name, order in orders.items()}
    for found in results.values():
        assert_within_bound(found, sent)
    assert float(results["large first"].sums) != float(results["small first"].sums)
    halves = [Gathered(1, 1), Gathered(1, 1)]
    for number, upload in enumerate(sent):
        halves[number % 2].add(INFO, packed(upload))
    halves[0].merge(halves[1])
    assert_within_bound(halves[0].sums, sent)
