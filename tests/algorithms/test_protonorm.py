from __future__ import annotations

import math

import pytest
import torch

from support import FEDERATION, NUM_CLASSES, PROTO_DIM, STREAMS, random_prototypes, update
from tinyproto.algorithms.base import Algorithm, ClientInfo, FederationSpec, Round, Update
from tinyproto.algorithms.protonorm import SPEC, ProtoNormHyper, align, repulsion, unit
from tinyproto.core import cps
from tinyproto.core.prototypes import Prototypes
from tinyproto.core.task import State
from tinyproto.engine.training import EagerTrainer

INFO = ClientInfo(0, 10, 10, 2)
PLANE = FederationSpec(num_classes=2, proto_dim=2, learning_rate=0.1)
FULL, SPARSE = (SPEC.build(ProtoNormHyper(sent_dim=sent), FEDERATION) for sent in (None, 5))


def aggregated(algorithm: Algorithm, *updates: Update, state: State | None = None) -> State:
    before = algorithm.server.init(STREAMS) if state is None else state
    return algorithm.server.aggregate(before, updates, EagerTrainer(), Round(1, 1), STREAMS)


def plane(values: list[list[float]], present: tuple[bool, bool] = (True, True)) -> Update:
    return update(Prototypes(torch.tensor(values), torch.tensor(present)))


def test_the_force_is_the_sum_of_differences_over_squared_distances() -> None:
    # From (0, 1), at squared distance 2: (1, −1)/2. From (−1, 0), at 4: (2, 0)/4. Together (1, −1/2).
    points = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(repulsion(points)[0], torch.tensor([1.0, -0.5], dtype=torch.float64))


def test_one_step_moves_by_the_learning_rate_and_returns_to_the_sphere() -> None:
    # Forces (1/2, −1/2) and (−1/2, 1/2) times 0.1: (1.05, −0.05) and (−0.05, 1.05), brought to length 80.
    algorithm = SPEC.build(ProtoNormHyper(align_steps=1), PLANE)
    state = aggregated(algorithm, plane([[3.0, 0.0], [0.0, 0.5]]))
    factor = 80 / math.hypot(1.05, 0.05)
    expected = torch.tensor([[1.05, -0.05], [-0.05, 1.05]]) * factor
    torch.testing.assert_close(state["values"], expected)


def test_momentum_keeps_nine_tenths_of_the_last_step() -> None:
    points = torch.tensor([[1.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    once = align(points, None, ProtoNormHyper(align_steps=1))
    twice = align(points, None, ProtoNormHyper(align_steps=2))
    velocity = 0.9 * 0.1 * repulsion(points) + 0.1 * repulsion(once)
    torch.testing.assert_close(twice, (once + velocity) / torch.linalg.vector_norm(once + velocity, dim=1)[:, None])


def test_the_alignment_hardly_amplifies_rounding() -> None:
    generator = torch.Generator().manual_seed(0)
    common = torch.rand(1, 100, dtype=torch.float64, generator=generator)  # means of ReLU features are close together
    points = unit(common + 0.5 * torch.rand(10, 100, dtype=torch.float64, generator=generator))
    moved = unit(points + 1e-8 * torch.randn(10, 100, dtype=torch.float64, generator=generator))
    ends = [align(each, None, ProtoNormHyper()) for each in (points, moved)]
    assert float((ends[1] - ends[0]).norm()) < 20 * float((moved - points).norm())


def test_two_classes_in_the_plane_end_up_opposite() -> None:
    state = aggregated(SPEC.build(ProtoNormHyper(), PLANE), plane([[1.0, 0.0], [0.6, 0.8]]))
    first, second = state["values"]
    torch.testing.assert_close(first, -second, atol=0.1, rtol=0)  # of 80: it stops when little changes
    assert float(first.norm()) == pytest.approx(80, rel=1e-5)


def test_three_classes_in_the_plane_end_up_120_degrees_apart() -> None:
    federation = FederationSpec(num_classes=3, proto_dim=2, learning_rate=0.1)
    values = torch.tensor([[1.0, 0.1], [0.9, 0.5], [0.5, 0.9]])
    state = aggregated(SPEC.build(ProtoNormHyper(), federation), update(Prototypes(values, torch.ones(3).bool())))
    units = state["values"] / 80
    cosines = (units @ units.T)[~torch.eye(3).bool()]
    torch.testing.assert_close(cosines, torch.full((6,), -0.5), atol=0.03, rtol=0)


def test_without_steps_the_mean_of_the_holders_keeps_its_direction() -> None:
    algorithm = SPEC.build(ProtoNormHyper(align_steps=0, upscale=5.0), PLANE)
    state = aggregated(algorithm, plane([[6.0, 0.0], [0.0, 0.0]], (True, False)), plane([[0.0, 8.0], [2.0, 0.0]]))
    torch.testing.assert_close(state["values"], torch.tensor([[3.0, 4.0], [5.0, 0.0]]))  # the mean is (3, 4)


def test_one_class_alone_only_gets_the_length() -> None:
    state = aggregated(FULL, update(random_prototypes([2])))
    assert state["present"].tolist() == [False, False, True, False]
    torch.testing.assert_close(state["values"], cps.with_length(random_prototypes([2]), 80.0).values)


def test_equal_prototypes_stay_finite() -> None:
    state = aggregated(SPEC.build(ProtoNormHyper(), PLANE), plane([[1.0, 1.0], [1.0, 1.0]]))
    torch.testing.assert_close(state["values"], torch.full((2, 2), 80 / math.sqrt(2)))


def test_a_mean_of_zero_has_no_direction_and_the_class_keeps_its_last_row() -> None:
    algorithm = SPEC.build(ProtoNormHyper(align_steps=0, upscale=5.0), PLANE)
    first = aggregated(algorithm, plane([[1.0, 0.0], [0.0, 0.0]]))
    assert first["present"].tolist() == [True, False]
    second = aggregated(algorithm, plane([[0.0, 0.0], [0.0, 1.0]]), state=first)
    torch.testing.assert_close(second["values"], torch.tensor([[5.0, 0.0], [0.0, 5.0]]))


def test_a_class_that_nobody_sent_is_repelled_too() -> None:
    algorithm = SPEC.build(ProtoNormHyper(), PLANE)
    first = aggregated(algorithm, plane([[1.0, 0.0], [0.0, 0.0]], (True, False)))
    second = aggregated(algorithm, plane([[0.0, 0.0], [0.8, 0.6]], (False, True)), state=first)
    torch.testing.assert_close(second["values"][0], -second["values"][1], atol=1.0, rtol=0)


def test_with_cps_each_class_stays_on_its_mask_and_overlapping_ones_move_apart() -> None:
    sent = [update(random_prototypes([0, 1, 2, 3], seed, width=5), seed) for seed in range(3)]
    still = SPEC.build(ProtoNormHyper(sent_dim=5, align_steps=0), FEDERATION)
    found = {}
    for algorithm in (still, SPARSE):
        rows = Prototypes(*(aggregated(algorithm, *sent)[key] for key in ("values", "present")))
        assert rows.values.shape == (NUM_CLASSES, 5)
        assert algorithm.masks is not None
        units = cps.reconstruct(rows, algorithm.masks).values / 80
        assert not units[~algorithm.masks].any()
        found[algorithm is SPARSE] = (units @ units.T).masked_fill(torch.eye(NUM_CLASSES).bool(), -1).max()
    assert found[True] < found[False]


def test_disjoint_masks_are_orthogonal_already_and_nothing_moves() -> None:
    sent = update(random_prototypes([0, 1, 2, 3], width=3))
    state = aggregated(SPEC.build(ProtoNormHyper(sent_dim=3), FEDERATION), sent)  # 4 · 3 = d
    torch.testing.assert_close(state["values"], cps.with_length(random_prototypes([0, 1, 2, 3], width=3), 80.0).values)


@pytest.mark.parametrize("algorithm", [FULL, SPARSE])
def test_gathering_gives_what_all_at_once_gives(algorithm: Algorithm) -> None:
    server, width = algorithm.server, algorithm.row_width
    assert width is not None
    updates = [update(random_prototypes([0, seed], seed, width), seed) for seed in (1, 2, 3)]
    gathered = server.gather()  # type: ignore[attr-defined]
    for client, message in updates:
        gathered.add(client, message.rows)
    streamed = server.conclude(server.init(STREAMS), gathered)  # type: ignore[attr-defined]
    assert torch.equal(streamed["values"], aggregated(algorithm, *updates)["values"])


def test_a_round_without_uploads_changes_nothing() -> None:
    state = FULL.server.init(STREAMS)
    assert aggregated(FULL, state=state) is state
    assert FULL.server.broadcast(state, INFO).rows is None


def test_more_dimensions_than_there_are_cannot_be_sent() -> None:
    with pytest.raises(ValueError, match=rf"sent_dim \(13\) is greater than prototypes.dim \({PROTO_DIM}\)"):
        SPEC.build(ProtoNormHyper(sent_dim=13), FEDERATION)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("upscale", 0.0, "must be above 0"),
        ("align_learning_rate", 0.0, "must be above 0"),
        ("align_steps", -1, "must not be negative"),
        ("align_momentum", 1.0, "must be below 1"),
        ("proto_weight", -1.0, "must not be negative"),
        ("sent_dim", 0, "must be above 0"),
    ],
)
def test_hyper_parameters_are_checked(field: str, value: float, message: str) -> None:
    with pytest.raises(ValueError, match=f"{field} {message}"):
        SPEC.hyper(**{field: value})
