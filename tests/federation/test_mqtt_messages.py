"""Messages over MQTT: their codes, counts, topics and JSON, and how little a device's listener imports."""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinyproto.errors import WireError
from tinyproto.federation.mqtt.messages import (
    MAC_BYTES,
    Allowance,
    Seal,
    Topics,
    Way,
    from_json,
    is_json,
    split_counts,
    to_json,
    with_counts,
)

KEY = bytes(range(32))
SEAL = Seal(KEY, 3)
CONTEXT = b"digest of sixteen"
contents = st.binary(max_size=80)
ways = st.sampled_from(("u", "d"))


@given(content=contents, context=contents, way=ways)
def test_a_sealed_message_is_opened_in_its_context(content: bytes, context: bytes, way: Way) -> None:
    sealed = SEAL.close(way, content, context)
    assert len(sealed) == len(content) + MAC_BYTES
    assert SEAL.open(way, sealed, b"another", context) == content


@given(content=contents, bit=st.integers(min_value=0), way=ways)
def test_a_message_with_any_flipped_bit_is_refused(content: bytes, bit: int, way: Way) -> None:
    sealed = bytearray(SEAL.close(way, content, CONTEXT))
    bit %= 8 * len(sealed)
    sealed[bit // 8] ^= 1 << bit % 8
    with pytest.raises(WireError, match="authentication code"):
        SEAL.open(way, bytes(sealed), CONTEXT)


@given(content=contents, length=st.integers(min_value=0))
def test_a_message_that_is_cut_short_or_continued_is_refused(content: bytes, length: int) -> None:
    sealed = SEAL.close("u", content, CONTEXT)
    for other in (sealed[: length % len(sealed)], sealed + b"\0", b"\0" + sealed):
        with pytest.raises(WireError, match="authentication code"):
            SEAL.open("u", other, CONTEXT)


@given(content=contents, context=contents, other=contents)
def test_a_message_of_another_direction_client_key_or_context_is_refused(
    content: bytes, context: bytes, other: bytes
) -> None:
    sealed = SEAL.close("u", content, context)
    attempts: list[tuple[Seal, Way]] = [(SEAL, "d"), (Seal(KEY, 4), "u"), (Seal(KEY[::-1], 3), "u")]
    for seal, way in attempts:
        with pytest.raises(WireError):
            seal.open(way, sealed, context)
    if other != context:
        with pytest.raises(WireError):
            SEAL.open("u", sealed, other)
    with pytest.raises(WireError):
        SEAL.open("u", sealed)


@given(context=st.binary(min_size=1, max_size=20), content=contents, cut=st.integers(min_value=0))
def test_no_byte_can_move_between_context_and_content(context: bytes, content: bytes, cut: int) -> None:
    cut %= len(context)
    sealed = SEAL.close("d", content, context)
    with pytest.raises(WireError):
        SEAL.open("d", context[cut:] + sealed, context[:cut])


@given(frame=contents, up=st.integers(0, 2**32 - 2), down=st.integers(0, 2**32 - 2))
def test_counts_follow_a_frame(frame: bytes, up: int, down: int) -> None:
    content = with_counts(frame, {"up": up, "down": down})
    assert split_counts(content) == (frame, {"socket-up": up, "socket-down": down})


@given(frame=contents, up=st.integers(0, 2**70))
def test_counts_start_again_instead_of_becoming_too_long(frame: bytes, up: int) -> None:
    _, counts = split_counts(with_counts(frame, {"up": up, "down": up}))
    assert counts["socket-up"] == counts["socket-down"] == up % (2**32 - 1)


def test_a_system_that_does_not_count_says_so() -> None:
    assert split_counts(with_counts(b"frame", None)) == (b"frame", {})


@given(st.binary(max_size=7))
def test_a_frame_without_its_counts_is_refused(content: bytes) -> None:
    with pytest.raises(WireError, match="no frame with counts"):
        split_counts(content)


def test_topics_have_one_letter_after_the_prefix() -> None:
    topics = Topics("site/")
    assert (topics.up(7), topics.down(7), topics.everyone) == ("site/u7", "site/d7", "site/a")


@given(st.binary(max_size=60))
def test_bytes_are_a_json_object_or_refused(junk: bytes) -> None:
    for content in (junk, b"{" + junk):
        with suppress(WireError):
            assert isinstance(from_json(content), dict)


@pytest.mark.parametrize(
    "content",
    [b'{"here":' + 1500 * b"[" + 1500 * b"]" + b"}", b'{"n":' + 5000 * b"9" + b"}", b"{\xff", b'{"a":1}x', b"[1]", b""],
    ids=["nested", "huge number", "not UTF-8", "more", "list", "empty"],
)
def test_json_that_python_cannot_read_is_refused(content: bytes) -> None:
    with pytest.raises(WireError):
        from_json(content)


def test_json_starts_with_a_brace_and_frames_do_not() -> None:
    assert is_json(to_json(here="x"))
    assert not is_json(b"\x02rest")
    assert not is_json(b"")


def test_an_allowance_is_renewed_after_its_time() -> None:
    allowance = Allowance(most=2, seconds=10.0)
    assert [allowance.take(now) for now in (5.0, 6.0, 7.0, 14.9, 15.0, 15.0, 15.0)] == [
        True, True, False, False, True, True, False
    ]  # fmt: skip


LIGHT = (
    "tinyproto.cli.join_mqtt", "tinyproto.cli.client_events", "tinyproto.subprocesses", "tinyproto.wire.frame",
    "tinyproto.federation.mqtt.listener", "tinyproto.federation.mqtt.messages", "tinyproto.federation.journal",
    "tinyproto.federation.refusals", "tinyproto.federation.device_keys",
)  # fmt: skip
HEAVY = ("torch", "numpy", "pydantic", "cryptography")


def test_a_listener_imports_nothing_heavy() -> None:
    """paho is replaced, so that this also holds where it is not installed."""
    code = f"""
import sys
from unittest.mock import MagicMock
for name in ("paho", "paho.mqtt", "paho.mqtt.client", "paho.mqtt.packettypes", "paho.mqtt.properties"):
    sys.modules[name] = MagicMock()
for name in {LIGHT}:
    __import__(name)
print(*sorted(set({HEAVY}) & set(sys.modules)))
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert found.stdout.split() == []
