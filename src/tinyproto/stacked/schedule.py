"""Schedule steps: how many clients of a stack take part in each, and in which order several stacks take theirs."""

from __future__ import annotations

from collections.abc import Generator, Hashable, Mapping, Sequence
from typing import NamedTuple

import torch

from tinyproto.stacked.capture import in_order

CLIENT_COST = 0.15
"""Cost of one more client in a step, in steps of one client: most of a small step is latency, not arithmetic."""
WIDTH_COST = 4.0
"""Cost of one more width in a round, in steps of one client: it has to be captured once, and kept."""


class Stretch(NamedTuple):
    """Consecutive steps that the first `width` clients take together."""

    width: int
    start: int
    stop: int


def plan_widths(steps: Sequence[int]) -> list[Stretch]:
    """Return the cheapest stretches for clients with these step counts, in falling order.

    When client v has no steps left, neither have the clients after it, and the stack may shrink to v clients. A client
    without steps that is still in the stack computes steps whose result is discarded.
    """
    ends = [*steps, 0]  # ends[v]: the step at which a stack of v clients may begin
    best: dict[int, tuple[float, int]] = {0: (0.0, 0)}  # by width: cost from its start to the end, and the next width
    for width in range(1, len(steps) + 1):
        price = 1.0 + CLIENT_COST * (width - 1)
        best[width] = min(
            ((ends[after] - ends[width]) * price + WIDTH_COST * (ends[after] > ends[width]) + best[after][0], after)
            for after in range(width)
        )
    found, width = [], len(steps)
    while width:
        after = best[width][1]
        if ends[after] > ends[width]:
            found.append(Stretch(width, ends[width], ends[after]))
        width = after
    return found


def computed_steps(stretches: Sequence[Stretch], client: int) -> int:
    """Return the number of steps computed for a client, including those whose result is discarded."""
    return sum(stretch.stop - stretch.start for stretch in stretches if client < stretch.width)


class Job(NamedTuple):
    """Steps to run on a stream; `alone` if nothing may run at the same time."""

    steps: Generator[None, None, object]
    stream: torch.cuda.Stream | None
    alone: bool


def run_side_by_side(jobs: Mapping[Hashable, Job]) -> dict[Hashable, object]:
    """Run all jobs, a step of each in turn, so that small kernels fill the device; return each result or exception.

    A kernel whose blocks wait for each other may never end beside another such kernel: each holds what the other
    needs. cuDNN has such kernels, and concurrent graphs of its convolutions were seen to hang. So jobs that use cuDNN
    run alone.
    """
    outcomes: dict[Hashable, object] = {}
    batches = [[key] for key, job in jobs.items() if job.alone]
    for running in [*batches, [key for key, job in jobs.items() if not job.alone]]:
        with in_order(jobs[key].stream for key in running):
            while running:
                for key in running:
                    with torch.cuda.stream(jobs[key].stream):
                        try:
                            next(jobs[key].steps)
                        except StopIteration as end:
                            outcomes[key] = end.value
                        except Exception as error:  # the caller decides whether another trainer takes over
                            outcomes[key] = error
                running = [key for key in running if key not in outcomes]
    return outcomes
