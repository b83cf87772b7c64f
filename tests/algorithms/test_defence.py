"""Defences in front of the methods' servers."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from support import FEDERATION, NUM_CLASSES, STREAMS, update
from tinyproto.algorithms import ALGORITHMS
from tinyproto.algorithms.base import Algorithm, ClientInfo, Round, Update
from tinyproto.algorithms.defence import Defence, DefenceName, DefendedServer, defended, sizes_capped
from tinyproto.algorithms.streaming import StreamingSide
from tinyproto.core.prototypes import Message, Prototypes
from tinyproto.engine.training import EagerTrainer

ROUND = Round(1, 1)
FEDPROTO = ALGORITHMS["fedproto"]
BY_ROWS = (
    "fedproto", "fedtgp", "tinyproto_fp", "tinyproto_ft", "tinyproto_sphere", "feddistill", "protonorm", "fedsa",
    "fedorgp",
)  # fmt: skip


def built(name: str) -> Algorithm:
    spec = ALGORITHMS[name]
    hyper = spec.hyper(cps_dim=3) if name.startswith("tinyproto") else spec.hyper()
    return spec.build(hyper, FEDERATION)


def sent(width: int, factor: float = 1.0, hostile: int = 1) -> list[Update]:
    """Five clients that agree, the last of which send something else."""
    present = torch.ones(NUM_CLASSES, dtype=torch.bool)
    values = torch.arange(1.0, width + 1).expand(NUM_CLASSES, width)
    factors = [1.0] * (5 - hostile) + [factor] * hostile
    return [
        update(Prototypes(10 * values * own, present), client, samples=40, classes=NUM_CLASSES)
        for client, own in enumerate(factors)
    ]


def aggregated(algorithm: Algorithm, updates: list[Update], defence: Defence) -> tuple[torch.Tensor, dict[int, int]]:
    side = defended(algorithm, defence)
    state = side.aggregate(side.init(STREAMS), updates, EagerTrainer(), ROUND, STREAMS)
    return state["values"], side.distrusted if isinstance(side, DefendedServer) else {}


@pytest.mark.parametrize("name", BY_ROWS)
def test_the_guard_leaves_honest_uploads_to_the_bit(name: str) -> None:
    algorithm = built(name)
    assert algorithm.row_width is not None
    updates = sent(algorithm.row_width)
    plain, _ = aggregated(algorithm, updates, Defence())
    guarded, distrusted = aggregated(algorithm, updates, Defence("guard"))
    assert torch.equal(plain, guarded)
    assert distrusted == {}


@pytest.mark.parametrize("name", BY_ROWS)
@pytest.mark.parametrize("factor", [-1.0, 1e3, 1e6])
def test_the_guard_gives_what_the_honest_clients_alone_give(name: str, factor: float) -> None:
    algorithm = built(name)
    assert algorithm.row_width is not None
    updates = sent(algorithm.row_width, factor)
    honest, _ = aggregated(algorithm, updates[:4], Defence())
    guarded, distrusted = aggregated(algorithm, updates, Defence("guard"))
    assert torch.equal(honest, guarded)
    assert distrusted == {4: NUM_CLASSES}


@pytest.mark.parametrize("name", ["median", "trimmed_mean", "krum"])
@pytest.mark.parametrize("method", ["fedproto", "tinyproto_fp"])
def test_other_defences_bring_one_hostile_client_of_five_to_nothing(method: str, name: DefenceName) -> None:
    algorithm = built(method)
    assert algorithm.row_width is not None
    honest, _ = aggregated(algorithm, sent(algorithm.row_width), Defence())
    defended_, _ = aggregated(algorithm, sent(algorithm.row_width, -1e3), Defence(name))
    torch.testing.assert_close(defended_ / defended_.norm(), honest / honest.norm())


@pytest.mark.parametrize("name", ["guard", "median", "trimmed_mean", "krum"])
def test_networks_are_defended_as_one_row(name: DefenceName) -> None:
    algorithm = built("lg_fedavg")
    tensors = [
        {
            part: torch.full([size for size in shape if isinstance(size, int)], 1.0)
            for part, shape in algorithm.tensor_shapes.items()
        }
        for _ in range(5)
    ]
    tensors[4] = {part: -1e3 * value for part, value in tensors[4].items()}
    updates = [Update(ClientInfo(client, 10, 10, 2), Message(tensors=own)) for client, own in enumerate(tensors)]
    side = defended(algorithm, Defence(name))
    state = side.aggregate(side.init(STREAMS), updates, EagerTrainer(), ROUND, STREAMS)
    for value in state.values():
        torch.testing.assert_close(value, torch.ones_like(value))


def test_a_defence_ends_streaming() -> None:
    algorithm = built("fedproto")
    assert isinstance(defended(algorithm, Defence()), StreamingSide)
    assert not isinstance(defended(algorithm, Defence("guard")), StreamingSide)


@pytest.mark.parametrize("method", ["fedkd", "input_means"])
def test_tensors_of_varying_size_are_refused(method: str) -> None:
    with pytest.raises(ValueError, match="varying size; use `none`"):
        defended(built(method), Defence("median"))


def test_krum_is_refused_where_rounds_are_small() -> None:
    Defence("krum", hostile=0.4).check_clients(15)
    with pytest.raises(ValueError, match=r"2f \+ 3 = 11 clients, not 10; use guard or median"):
        Defence("krum", hostile=0.4).check_clients(10)


def test_krum_takes_nobody_in_a_round_that_became_too_small() -> None:
    algorithm = built("fedproto")
    values, distrusted = aggregated(algorithm, sent(FEDERATION.proto_dim)[:2], Defence("krum"))
    assert not values.any()
    assert distrusted == {0: NUM_CLASSES, 1: NUM_CLASSES}


def test_no_claimed_size_counts_for_more_than_a_multiple_of_the_median() -> None:
    infos = {client: ClientInfo(client, 30, 40, 5) for client in range(19)}
    lied = {**infos, 19: ClientInfo(19, 2**31 - 1, 2**31 - 1, 5)}
    believed = sizes_capped(lied, 10.0)
    assert believed[19] == ClientInfo(19, 300, 400, 5)
    assert {client: believed[client] for client in infos} == infos
    assert sizes_capped(lied, None) is lied


def test_a_small_cap_never_leaves_fewer_samples_than_classes() -> None:
    infos = {client: ClientInfo(client, 1, 1, 1) for client in range(3)} | {3: ClientInfo(3, 90, 90, 8)}
    assert sizes_capped(infos, 2.0)[3] == ClientInfo(3, 2, 8, 8)


def test_one_lie_in_the_hello_moves_the_scale_by_less_than_two() -> None:
    algorithm = built("tinyproto_ft")
    infos = {client: ClientInfo(client, 30, 30, 3) for client in range(20)}
    lied = {**infos, 7: replace(infos[7], train_samples=2**31 - 1, counted_samples=2**31 - 1)}
    honest, steered = (
        algorithm.derived(list(sizes_capped(said, 10.0).values()))["global_scale"] for said in (infos, lied)
    )
    assert honest / 2 < steered < honest
    assert algorithm.derived(list(lied.values()))["global_scale"] < honest / 1e6
