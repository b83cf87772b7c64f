from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch

from tinyproto.core.streams import Streams, global_randomness, random_states


def test_a_stream_is_the_same_on_every_machine_and_release() -> None:
    assert Streams(0).derive("batches", client=3, round_number=7) == 3692299553146066295


def test_every_part_of_the_name_makes_another_stream() -> None:
    seeds = [
        Streams(0).derive("a"),
        Streams(1).derive("a"),
        Streams(0).derive("b"),
        Streams(0).derive("a", client=0),
        Streams(0).derive("a", client=1),
        Streams(0).derive("a", round_number=1),
        Streams(0).derive("a", client=1, round_number=1),
    ]
    assert len(set(seeds)) == len(seeds)


def test_generators_of_one_name_draw_the_same() -> None:
    first = torch.randperm(10, generator=Streams(5).generator("x", client=1))
    second = torch.randperm(10, generator=Streams(5).generator("x", client=1))
    assert first.tolist() == second.tolist()


@pytest.mark.parametrize("draw", [lambda: torch.rand(()).item(), np.random.rand, random.random])
def test_the_global_generators_are_given_back_as_they_were(draw: Callable[[], float]) -> None:
    def fail() -> None:
        with global_randomness(99):
            draw()
            raise ValueError("inside")

    with global_randomness(1):
        undisturbed = draw()
    with global_randomness(1):
        with pytest.raises(ValueError, match="inside"):
            fail()
        assert draw() == undisturbed
    with global_randomness(1):
        assert draw() == undisturbed


@pytest.fixture(params=[None, np.random.PCG64, np.random.Philox, np.random.SFC64])
def numpys(request: pytest.FixtureRequest) -> Iterator[None]:
    """Another generator behind NumPy's global functions."""
    before = np.random.get_bit_generator()  # type: ignore[attr-defined]
    if request.param is not None:
        np.random.set_bit_generator(request.param(1))  # type: ignore[attr-defined]
    yield
    np.random.set_bit_generator(before)  # type: ignore[attr-defined]


@pytest.mark.usefixtures("numpys")
@pytest.mark.filterwarnings("ignore:get_state and legacy")
def test_each_draw_changes_the_state_of_its_own_generator_only() -> None:
    draws: dict[str, Callable[[], object]] = {
        "Python's random": random.random,
        "numpy": np.random.rand,
        "torch": lambda: torch.rand(()),
    }
    with global_randomness(1):
        for name, draw in draws.items():
            before = random_states()
            draw()
            assert [each for each, value in random_states().items() if value != before[each]] == [name]
