"""What `trainer: auto` takes: the quickest for a whole run, the time to prepare included.

On a GPU a step of the reference is hundreds of kernel launches, which take the host longer than the device. A captured
step costs no more than its kernels, a stacked one the kernels of one client for several; both have to be prepared once.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

TrainerName = Literal["auto", "eager", "graphed", "stacked"]
Known = Literal["eager", "graphed", "stacked"]

GRAPHED_PAYS = 1_000
"""Steps of all clients over a whole run from which capturing them pays."""
STACKED_PAYS = 5_000
"""The same for stacking: on one H200 it prepares for up to a minute, and the reference takes 15 ms a step."""


class Choice(NamedTuple):
    """A trainer, and why."""

    trainer: Known
    reason: str


def choose(name: TrainerName, device: str, steps: int) -> Choice:
    """The trainer for a run of so many steps of single clients."""
    if name != "auto":
        return Choice(name, "as the config says")
    if device == "cpu":
        return Choice("eager", "on a CPU nothing is quicker")
    if steps < GRAPHED_PAYS:
        return Choice("eager", f"{steps} steps are too few to prepare for")
    if steps < STACKED_PAYS:
        return Choice("graphed", f"{steps} steps are too few for stacks")
    return Choice("stacked", f"{steps} steps are worth the preparation")
