"""Signals during a run: noted, or ignored if they were ignored before."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from tinyproto.cli.interrupt import StopOnInterrupt

ASKED = (signal.SIGTERM, signal.SIGHUP)


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """Set the handlers of a process started in a terminal; restore the previous ones afterwards."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, *ASKED)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in ASKED:
        signal.signal(number, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


class Clock:
    """A clock that stands still until it is set."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize("number", [signal.SIGINT, *ASKED], ids=lambda number: number.name)
def test_the_first_signal_is_noted_and_the_second_ends_it(number: signal.Signals) -> None:
    before, clock = signal.getsignal(number), Clock()
    with StopOnInterrupt(*ASKED, clock=clock) as stop:
        os.kill(os.getpid(), number)
        assert stop.wanted
        clock.now += 1
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)
        assert stop.status == 128 + number
    assert signal.getsignal(number) is before


def test_signals_at_one_moment_are_one_request_and_the_status_is_that_of_the_first() -> None:
    with StopOnInterrupt(*ASKED, clock=Clock()) as stop:
        for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGHUP):
            os.kill(os.getpid(), number)
    assert stop.status == 143


def test_the_status_is_that_of_the_signal_that_ended_it() -> None:
    clock = Clock()
    with StopOnInterrupt(*ASKED, clock=clock) as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.status == 143
        clock.now += 1
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert stop.status == 130


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
