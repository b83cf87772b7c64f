from __future__ import annotations

import torch

from tinyproto.core.streams import Streams, global_randomness


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


def test_the_global_generator_is_given_back_as_it_was() -> None:
    torch.manual_seed(1)
    undisturbed = torch.rand(3)
    torch.manual_seed(1)
    with global_randomness(99):
        inside = torch.rand(3)
    assert torch.rand(3).tolist() == undisturbed.tolist()
    with global_randomness(99):
        assert torch.rand(3).tolist() == inside.tolist()
