"""s as a number of bytes that a client's round may take."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tinyproto.algorithms.base import FederationSpec
from tinyproto.algorithms.tinyproto_ft import SPEC as FT_SPEC
from tinyproto.algorithms.tinyproto_ft import TinyProtoFTHyper
from tinyproto.algorithms.tinyproto_hyper import UPDATE_METRICS, exchanged_bytes, largest_cps_dim
from tinyproto.core.prototypes import Message, Prototypes
from tinyproto.wire.codec import encode
from tinyproto.wire.frame import DIGEST_BYTES, Header, Kind
from tinyproto.wire.values import VALUE_TYPES, Coding, ValueName, WireSettings

FEDERATION = FederationSpec(num_classes=100, proto_dim=500, learning_rate=0.01)
TYPES = st.sampled_from(list(VALUE_TYPES))
LOSSES = {"cross_entropy": 0.1, "regulariser": 1 / 3}  # which float32 does not hold, so they travel as float64
SCORES = {"test_samples": 650.0, "correct_head": 3.0, "correct_global": 2.0, "correct_local": 1.0}


def frames(federation: FederationSpec, width: int) -> int:
    """Bytes of real frames with rows of all classes, up with all metrics that an upload has."""
    rows = Prototypes(torch.randn(federation.num_classes, width), torch.ones(federation.num_classes, dtype=torch.bool))
    digest = bytes(DIGEST_BYTES)
    up = encode(
        Header(Kind.UPDATE, 1, 0, digest),
        Message(rows, metrics={**LOSSES, **SCORES}),
        Coding(VALUE_TYPES[federation.wire.up]),
    )
    down = encode(Header(Kind.TRAIN, 1, 0, digest), Message(rows), Coding(VALUE_TYPES[federation.wire.down]))
    return len(up) + len(down)


@settings(max_examples=40, deadline=None)
@given(budget=st.integers(700, 60_000), up=TYPES, down=TYPES, classes=st.integers(2, 60))
def test_the_largest_s_whose_frames_fit_is_taken(budget: int, up: ValueName, down: ValueName, classes: int) -> None:
    federation = FederationSpec(classes, 200, 0.01, wire=WireSettings(up, down))
    if frames(federation, 1) > budget:
        with pytest.raises(ValueError, match="is too small: one dimension"):
            largest_cps_dim(federation, f"{budget}B")
        return
    width = largest_cps_dim(federation, f"{budget}B")
    assert frames(federation, width) == exchanged_bytes(federation, width) <= budget
    assert width == 200 or frames(federation, width + 1) > budget


def test_smaller_types_leave_room_for_more_dimensions() -> None:
    widths = {
        name: largest_cps_dim(replace(FEDERATION, wire=WireSettings(name, name)), "10kB")
        for name in ("float32", "float16", "int8", "int4")
    }
    assert widths == {"float32": 12, "float16": 23, "int8": 47, "int4": 94}


def test_a_budget_builds_the_masks_that_its_s_would_and_a_large_one_sends_all() -> None:
    budgeted = FT_SPEC.build(TinyProtoFTHyper(byte_budget="10kB"), FEDERATION)
    given_ = FT_SPEC.build(TinyProtoFTHyper(cps_dim=12), FEDERATION)
    assert budgeted.row_width == 12
    assert budgeted.masks is not None
    assert given_.masks is not None
    assert torch.equal(budgeted.masks, given_.masks)
    whole = FT_SPEC.build(TinyProtoFTHyper(byte_budget="1MB"), FEDERATION)
    assert (whole.row_width, whole.masks) == (500, None)
    assert [one.derived([]) for one in (budgeted, given_, whole)] == [{"cps_dim": 12}, {}, {"cps_dim": 500}]


def test_what_is_no_budget_is_refused() -> None:
    with pytest.raises(ValueError, match="byte_budget: 'little' is no amount of bytes"):
        TinyProtoFTHyper(byte_budget="little")
    with pytest.raises(ValueError, match="both say how much a class sends"):
        TinyProtoFTHyper(byte_budget="2kB", cps_dim=5)
    with pytest.raises(ValueError, match="byte_budget 100B is too small"):
        FT_SPEC.build(TinyProtoFTHyper(byte_budget="100B"), FEDERATION)
    assert UPDATE_METRICS == 40
