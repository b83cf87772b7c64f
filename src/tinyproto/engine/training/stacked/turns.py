"""Several stacks at once: a step of each in turn, each in its own place, so that small kernels fill the device.

A kernel whose blocks wait for each other may never end beside another of its kind: each holds what the other needs.
cuDNN has such kernels, and keeps their scratch memory per thread, not per stream; it is the likely cause of the hang
that concurrent graphs of cuDNN's convolutions were seen to run into. So only work without cuDNN runs side by side.
"""

from __future__ import annotations

from collections.abc import Generator, Hashable, Mapping
from typing import NamedTuple

from tinyproto.engine.training.stacked.capture import Place


class Work(NamedTuple):
    """Steps to take; `alone` says that nothing may run beside them."""

    steps: Generator[None, None, object]
    place: Place
    alone: bool


def in_turns(works: Mapping[Hashable, Work]) -> dict[Hashable, object]:
    """What each returns, or the exception that ended it."""
    done: dict[Hashable, object] = {}
    for key, work in works.items():
        if work.alone:
            work.place.begin()
            while key not in done:
                _advance(key, work, done)
            work.place.end()
    together = {key: work for key, work in works.items() if not work.alone}
    for work in together.values():
        work.place.begin()
    while any(key not in done for key in together):
        for key, work in together.items():
            if key not in done:
                _advance(key, work, done)
    for work in together.values():
        work.place.end()
    return done


def _advance(key: Hashable, work: Work, done: dict[Hashable, object]) -> None:
    with work.place.here():
        try:
            next(work.steps)
        except StopIteration as end:
            done[key] = end.value
        except Exception as error:  # whatever it is, the reference will say it better
            done[key] = error
