"""What has to hold for any input, found by hypothesis."""

from __future__ import annotations

import math
from contextlib import suppress

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from torch import Tensor

from support_data import dirichlet_shares
from tinyproto.algorithms.streaming import HolderSums
from tinyproto.core.cps import compress, count_scaled_sum, reconstruct, sparsify
from tinyproto.core.masks import MaskKind, build_masks
from tinyproto.core.prototypes import (
    AtMost,
    Message,
    Prototypes,
    class_means,
    nearest,
    simple_mean,
    sum_over_holders,
)
from tinyproto.errors import WireError
from tinyproto.wire.codec import METRIC_CODES, decode, decode_body, encode
from tinyproto.wire.frame import Header, Kind, pack, unpack
from tinyproto.wire.validate import Expectation, open_frame
from tinyproto.wire.values import FLOAT32, VALUE_TYPES, Coding, ValueType, as_matrix

FLOATS = st.floats(-1e6, 1e6, width=32)
settings.register_profile("quick", deadline=None, max_examples=60)
settings.load_profile("quick")


@st.composite
def sizes(draw: st.DrawFn) -> tuple[int, int, int]:
    """K, d, s with 1 ≤ s ≤ d."""
    dim = draw(st.integers(1, 24))
    return draw(st.integers(1, 12)), dim, draw(st.integers(1, dim))


@st.composite
def prototypes(draw: st.DrawFn, num_classes: int, width: int) -> Prototypes:
    values = torch.from_numpy(draw(arrays(np.float32, (num_classes, width), elements=FLOATS)))
    present = torch.from_numpy(draw(arrays(np.bool_, num_classes)))
    return Prototypes(values * present.unsqueeze(1), present)


@st.composite
def masked(draw: st.DrawFn) -> tuple[Prototypes, Prototypes, Tensor]:
    """Two sets of prototypes and masks for them."""
    num_classes, dim, cps_dim = draw(sizes())
    masks = build_masks("balanced", num_classes, dim, cps_dim, draw(st.integers(0, 3)))
    return draw(prototypes(num_classes, dim)), draw(prototypes(num_classes, dim)), masks


@given(sizes(), st.integers(0, 2**64 - 1))
def test_masks_have_exact_rows_and_balanced_columns_and_are_disjoint_where_possible(
    size: tuple[int, int, int], seed: int
) -> None:
    num_classes, dim, cps_dim = size
    masks = build_masks("balanced", num_classes, dim, cps_dim, seed)
    columns = masks.sum(0)
    assert masks.shape == (num_classes, dim)
    assert set(masks.sum(1).tolist()) == {cps_dim}
    assert int(columns.max() - columns.min()) <= 1
    if num_classes * cps_dim <= dim:
        assert int(columns.max()) <= 1


@given(masked())
def test_reconstruct_after_compress_is_masking(case: tuple[Prototypes, Prototypes, Tensor]) -> None:
    first, _, masks = case
    assert torch.equal(reconstruct(compress(first, masks), masks).values, sparsify(first, masks).values)


@given(masked(), st.floats(-4, 4, width=32))
def test_sparsify_is_linear_idempotent_and_non_expansive(
    case: tuple[Prototypes, Prototypes, Tensor], factor: float
) -> None:
    first, second, masks = case
    combined = Prototypes(first.values + factor * second.values, first.present)
    apart = sparsify(first, masks).values + factor * sparsify(second, masks).values
    torch.testing.assert_close(sparsify(combined, masks).values, apart)
    once = sparsify(first, masks)
    assert torch.equal(sparsify(once, masks).values, once.values)
    shorter = (sparsify(first, masks).values - sparsify(second, masks).values).double().norm(dim=1)
    longer = (first.values - second.values).double().norm(dim=1)
    assert bool((shorter <= longer).all())


@given(masked(), st.sampled_from(["balanced", "random", "blocks"]), st.integers(0, 3))
def test_what_cps_sends_meets_the_assumption_of_the_convergence_proof(
    case: tuple[Prototypes, Prototypes, Tensor], kind: MaskKind, seed: int
) -> None:
    # The support of every class lies in a set fixed by K, d, s and the seed, whatever the prototypes; what arrives
    # stays as it is when it is sent again; no norm and no distance grows.
    first, second, balanced = case
    num_classes, dim = balanced.shape
    cps_dim = int(balanced[0].sum())
    try:
        masks, again = (build_masks(kind, num_classes, dim, cps_dim, seed) for _ in range(2))
    except ValueError:
        assume(False)  # blocks of the published code do not fit every size
    assert torch.equal(masks, again)

    def sent(values: Prototypes) -> Prototypes:
        return reconstruct(compress(values, masks), masks)

    one, other = sent(first), sent(second)
    for values, kept in ((first, one), (second, other)):
        assert not bool(kept.values[~masks].any())
        assert torch.equal(kept.values[masks], values.values[masks])
        assert torch.equal(sent(kept).values, kept.values)
        assert bool((kept.values.double().norm(dim=1) <= values.values.double().norm(dim=1)).all())
    shorter = (one.values.double() - other.values.double()).norm(dim=1)
    assert bool((shorter <= (first.values.double() - second.values.double()).norm(dim=1)).all())


@st.composite
def uploads(draw: st.DrawFn) -> tuple[list[Prototypes], list[int]]:
    num_classes, width = draw(st.integers(1, 5)), draw(st.integers(1, 4))
    sent = draw(st.lists(prototypes(num_classes, width), min_size=1, max_size=6))
    return sent, draw(st.permutations(range(len(sent))))


@given(uploads())
def test_aggregation_does_not_depend_on_the_order_of_clients_but_for_rounding(
    case: tuple[list[Prototypes], list[int]],
) -> None:
    sent, order = case
    for rule in (simple_mean, count_scaled_sum):
        straight, shuffled = (rule(sum_over_holders(some)) for some in (sent, [sent[index] for index in order]))
        torch.testing.assert_close(straight.values, shuffled.values, rtol=1e-6, atol=1e-6)
        assert torch.equal(straight.present, shuffled.present)


@given(uploads())
def test_aggregation_in_a_tree_is_aggregation_in_a_row(case: tuple[list[Prototypes], list[int]]) -> None:
    sent, _ = case
    halves = []
    for part in (sent[::2], sent[1::2]):
        half = HolderSums(sent[0].num_classes, sent[0].width)
        for upload in part:
            half.add(upload)
        halves.append(half)
    halves[0].merge(halves[1])
    torch.testing.assert_close(
        simple_mean(halves[0].totals).values, simple_mean(sum_over_holders(sent)).values, rtol=1e-6, atol=1e-6
    )


@given(uploads(), st.data())
def test_a_client_without_a_class_contributes_exactly_nothing_to_it(
    case: tuple[list[Prototypes], list[int]], data: st.DataObject
) -> None:
    sent, _ = case
    num_classes, width = sent[0].num_classes, sent[0].width
    junk = torch.from_numpy(data.draw(arrays(np.float32, (num_classes, width), elements=FLOATS)))
    bystander = Prototypes(junk, torch.zeros(num_classes, dtype=torch.bool))
    for rule in (simple_mean, count_scaled_sum):
        assert torch.equal(rule(sum_over_holders([*sent, bystander])).values, rule(sum_over_holders(sent)).values)


@given(st.integers(1, 6), st.integers(1, 4), st.data())
def test_class_means_equal_the_loop_over_samples(num_classes: int, width: int, data: st.DataObject) -> None:
    labels = data.draw(st.lists(st.integers(0, num_classes - 1), max_size=20))
    rows = torch.from_numpy(
        data.draw(arrays(np.float32, (len(labels), width), elements=st.floats(-100, 100, width=32)))
    )
    means = class_means(rows, torch.tensor(labels, dtype=torch.int64), num_classes)
    for label in range(num_classes):
        mine = [row for row, owner in zip(rows, labels, strict=True) if owner == label]
        assert bool(means.present[label]) == bool(mine)
        expected = torch.stack(mine).mean(0) if mine else torch.zeros(width)
        torch.testing.assert_close(means.values[label], expected, rtol=1e-4, atol=1e-4)


@given(st.integers(1, 6), st.integers(1, 4), st.data())
def test_the_nearest_class_is_present_and_no_other_is_nearer(num_classes: int, width: int, data: st.DataObject) -> None:
    candidates = data.draw(prototypes(num_classes, width))
    assume(bool(candidates.present.any()))
    scaled = Prototypes(candidates.values / 1e4, candidates.present)
    features = torch.from_numpy(data.draw(arrays(np.float32, (5, width), elements=st.floats(-100, 100, width=32))))
    chosen = nearest(features, scaled)
    assert bool(scaled.present[chosen].all())
    distances = (features.double().unsqueeze(1) - scaled.values.double()).norm(dim=2)
    best = distances.masked_fill(~scaled.present, torch.inf).min(1).values
    torch.testing.assert_close(distances.gather(1, chosen.unsqueeze(1)).squeeze(1), best, rtol=1e-3, atol=1e-2)


NAMES = st.text(min_size=1, max_size=20).filter(
    lambda name: len(name.encode("utf-8", "ignore")) == len(name.encode("utf-8", "replace"))
)
METRICS = st.dictionaries(
    st.one_of(st.sampled_from(sorted(METRIC_CODES)), NAMES), st.floats(allow_nan=False), max_size=8
)


@st.composite
def messages(draw: st.DrawFn) -> Message:
    rows = draw(st.none() | st.builds(lambda k, w: (k, w), st.integers(1, 20), st.integers(1, 8)))
    finite = st.floats(width=32, allow_nan=False)
    shape = array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)
    tensors = draw(st.dictionaries(NAMES, arrays(np.float32, shape, elements=finite), max_size=3))
    return Message(
        rows=None if rows is None else draw(prototypes(*rows)),
        tensors={name: torch.from_numpy(np.asarray(value)) for name, value in tensors.items()},
        metrics=draw(METRICS),
    )


HEADERS = st.builds(
    Header,
    kind=st.sampled_from(Kind),
    round_number=st.integers(0, 2**32 - 1),
    client=st.integers(0, 2**32 - 1),
    digest=st.binary(min_size=16, max_size=16),
    evaluate=st.booleans(),
)


def same(left: Message, right: Message) -> bool:
    if (left.rows is None) != (right.rows is None):
        return False
    if left.rows is not None and right.rows is not None and not all(map(torch.equal, left.rows, right.rows)):
        return False
    tensors = left.tensors.keys() == right.tensors.keys() and all(
        left.tensors[name].shape == right.tensors[name].shape and torch.equal(left.tensors[name], right.tensors[name])
        for name in left.tensors
    )
    return tensors and left.metrics == right.metrics


@given(HEADERS, messages())
def test_decode_undoes_encode(header: Header, message: Message) -> None:
    frame = encode(header, message)
    decoded = decode(frame, header.digest)
    assert decoded.header == header
    assert same(decoded.message, message)
    assert decoded.wire_bytes == len(frame)
    assert encode(decoded.header, decoded.message) == frame


def there_and_back(kind: ValueType, values: Tensor, rounding: torch.Generator | None) -> Tensor:
    matrix = values.reshape(as_matrix(tuple(values.shape)))
    data = np.frombuffer(kind.encode(matrix.numpy(), rounding), np.uint8)
    return torch.from_numpy(kind.decode(data, *matrix.shape).copy()).view(values.shape)


@pytest.mark.parametrize("kind", list(VALUE_TYPES.values()), ids=lambda kind: kind.name)
@given(HEADERS, messages(), st.none() | st.integers(0, 3))
def test_every_frame_that_is_written_is_taken_whatever_its_type_and_rounding(
    kind: ValueType, header: Header, message: Message, seed: int | None
) -> None:
    coding, draws = (
        (Coding(kind), None)
        if seed is None
        else (Coding(kind, torch.Generator().manual_seed(seed)), torch.Generator().manual_seed(seed))
    )
    found = decode(encode(header, message, coding), header.digest).message
    assert found.metrics == message.metrics
    assert (found.rows is None) == (message.rows is None)
    if found.rows is not None and message.rows is not None:
        present = message.rows.present
        assert torch.equal(found.rows.present, present)
        assert torch.equal(found.rows.values[present], there_and_back(kind, message.rows.values[present], draws))
    assert list(found.tensors) == sorted(message.tensors)
    for name, tensor in found.tensors.items():
        torch.testing.assert_close(
            tensor, there_and_back(kind, message.tensors[name], draws), rtol=0, atol=0, equal_nan=True
        )


@settings(max_examples=200)
@given(HEADERS, messages(), st.data())
def test_a_float32_frame_with_a_byte_changed_is_refused_or_says_something_else(
    header: Header, message: Message, data: st.DataObject
) -> None:
    body = bytearray(unpack(encode(header, message), header.digest)[1])
    assume(body)
    body[data.draw(st.integers(0, len(body) - 1))] ^= data.draw(st.integers(1, 255))
    frame = pack(header, bytes(body))
    with suppress(WireError):
        sections = decode_body(unpack(frame, header.digest)[1], agreed=FLOAT32)
        if not any(map(math.isnan, sections.metrics.values())):  # whose bits are not kept
            assert encode(header, sections.message()) == frame


@settings(max_examples=200)
@given(HEADERS, messages(), st.data())
def test_any_corrupted_frame_is_refused(header: Header, message: Message, data: st.DataObject) -> None:
    frame = bytearray(encode(header, message))
    position = data.draw(st.integers(0, len(frame) - 1))
    frame[position] ^= data.draw(st.integers(1, 255))
    with pytest.raises(WireError):
        decode(bytes(frame), header.digest)


@given(HEADERS, messages(), st.data())
def test_any_truncated_or_extended_frame_is_refused(header: Header, message: Message, data: st.DataObject) -> None:
    frame = encode(header, message)
    cut = data.draw(st.integers(0, len(frame) - 1))
    for wrong in (frame[:cut], frame + data.draw(st.binary(min_size=1, max_size=9))):
        with pytest.raises(WireError):
            decode(wrong, header.digest)


@settings(max_examples=200)
@given(st.binary(max_size=200))
def test_a_body_of_garbage_ends_in_a_wire_error_or_a_message_never_in_another_exception(body: bytes) -> None:
    digest = bytes(16)
    frame = pack(Header(Kind.UPDATE, 1, 1, digest), body)
    expected = Expectation(digest, num_classes=4, row_width=2, tensor_shapes={"a": (AtMost(9), AtMost(9))})
    with suppress(WireError):
        assert decode(frame, digest).wire_bytes == len(frame)
    with suppress(WireError):
        assert open_frame(frame, expected, 1, 1, (Kind.UPDATE,)).wire_bytes == len(frame)


@settings(max_examples=40)
@given(
    clients=st.integers(2, 8),
    alpha=st.floats(0.01, 10),
    seed=st.integers(0, 100),
    fraction=st.floats(0.1, 0.9),
    least=st.integers(1, 5),
    classes=st.integers(1, 5),
)
def test_a_partition_places_every_sample_exactly_once(
    clients: int, alpha: float, seed: int, fraction: float, least: int, classes: int
) -> None:
    labels = np.arange(60) % classes
    shares = dirichlet_shares(labels, clients, alpha, seed, fraction, least)
    placed = np.concatenate([np.concatenate([share.train, share.test]) for share in shares])
    assert sorted(placed.tolist()) == list(range(60))
    assert min(len(share.train) + len(share.test) for share in shares) >= least
    assert all(len(share.train) >= 1 for share in shares)
