"""Signals while something is under way: noted, or ignored as whoever started it wanted."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from tinyproto.cli.interrupt import StopOnInterrupt

ASKED = (signal.SIGTERM, signal.SIGHUP)


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """As they are in a process that a terminal started, and afterwards as they were."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, *ASKED)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in ASKED:
        signal.signal(number, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGINT, *ASKED], ids=lambda number: number.name)
def test_the_first_signal_is_noted_and_the_second_ends_it(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with StopOnInterrupt(*ASKED) as stop:
        os.kill(os.getpid(), number)
        assert stop.wanted
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)
    assert signal.getsignal(number) is before


@pytest.mark.parametrize("number", [signal.SIGINT, *ASKED], ids=lambda number: number.name)
def test_a_signal_that_was_ignored_stays_ignored(number: signal.Signals) -> None:
    signal.signal(number, signal.SIG_IGN)
    with StopOnInterrupt(*ASKED) as stop:
        os.kill(os.getpid(), number)
        assert not stop.wanted
        assert signal.getsignal(number) is signal.SIG_IGN
        os.kill(os.getpid(), signal.SIGTERM if number is not signal.SIGTERM else signal.SIGINT)
        assert stop.wanted
    assert signal.getsignal(number) is signal.SIG_IGN
