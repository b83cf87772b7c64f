"""No upload makes the server's state one that clients refuse, and nobody sends rows of classes it does not hold."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from support import NUM_CLASSES, PROTO_DIM, InProcess, SimulationSettings, same_tensors, tiny_net
from support_rounds import build
from tinyproto.algorithms import ALGORITHMS
from tinyproto.algorithms.base import Round
from tinyproto.core.prototypes import Message, Prototypes
from tinyproto.data.dataset import FederatedData
from tinyproto.engine.checks import SUSPECT_NORM, Settled, settle, unsendable
from tinyproto.engine.client import LocalTraining
from tinyproto.engine.measure import Meter
from tinyproto.engine.round import RoundRecord, play_round
from tinyproto.engine.server import Reply, RoundPlan
from tinyproto.errors import LeftOutError
from tinyproto.wire.codec import decode, encode
from tinyproto.wire.validate import LONGEST_DOWNLOAD, LONGEST_UPLOAD
from tinyproto.wire.values import VALUE_TYPES, ValueName, ValueType, WireSettings

HOSTILE = 1
TYPES = pytest.mark.parametrize("kind", VALUE_TYPES.values(), ids=lambda kind: kind.name)


class Forging:
    """A channel on which one client's uploads are replaced."""

    def __init__(self, played: InProcess, forge: Callable[[Message], Message], rounds: set[int]) -> None:
        self.played = played
        self.forge = forge
        self.rounds = rounds

    def exchange(self, round_number: int, frames: Mapping[int, bytes]) -> Iterable[Reply]:
        for reply in self.played.loopback.exchange(round_number, frames):
            if reply.client != HOSTILE or round_number not in self.rounds:
                yield reply
                continue
            expected = self.played.server.expectation
            decoded = decode(reply.frame, expected.digest)
            header, forged = decoded.header, self.forge(decoded.message)
            yield Reply(HOSTILE, encode(header, forged, expected.coding(header.kind, torch.Generator)))


def federation(data: FederatedData, name: str, down: ValueName = "float32", **hyper: Any) -> InProcess:
    training = LocalTraining(rounds=4, batch_size=8)
    settings_ = SimulationSettings(training, PROTO_DIM, wire=WireSettings(down=down))
    return InProcess(data, [tiny_net], build(name, **hyper), settings_, seed=0)


def rounds_of(played: InProcess, forge: Callable[[Message], Message], hostile: set[int]) -> list[RoundRecord]:
    """All four rounds as a coordinator plays them."""
    channel, meter = Forging(played, forge, hostile), Meter()
    played.server.greet(channel, range(5), meter)
    plans = [RoundPlan(Round(number, 4), range(5), frozenset(range(5))) for number in range(1, 5)]
    return [play_round(played.server, channel, plan, meter) for plan in plans]


def rows_of_norm(norm: float) -> Callable[[Message], Message]:
    def forge(message: Message) -> Message:
        assert message.rows is not None
        rows = message.rows
        values = torch.zeros_like(rows.values)
        values[:, 0] = norm
        return replace(message, rows=Prototypes(values, rows.present))

    return forge


def test_a_row_just_below_what_clients_accept_is_refused_and_the_next_rounds_go_on(quarters: FederatedData) -> None:
    """The attack of the issue: a scale of int8, rounded up, would lift this row above 1e9 on the way down."""
    played = federation(quarters, "fedproto", down="int8")
    records = rounds_of(played, rows_of_norm(0.9996e9), {1})
    assert [record.participants for record in records] == [(0, 2, 3, 4), *[(0, 1, 2, 3, 4)] * 3]
    assert "above 1e+08" in records[0].refused[HOSTILE]


@pytest.mark.parametrize("down", VALUE_TYPES)
@pytest.mark.parametrize("aggregation", ["sum", "mean"])
def test_an_accepted_upload_that_lifts_the_state_above_what_clients_accept_is_dropped(
    quarters: FederatedData, aggregation: str, down: ValueName
) -> None:
    hyper = {"global_scale": 50.0, "proto_weight": 0.0, "aggregation": aggregation}
    played, without = (federation(quarters, "tinyproto_fp", down, **hyper) for _ in range(2))
    records = rounds_of(played, rows_of_norm(0.9e8), {2})
    assert [record.participants for record in records[1:]] == [(0, 2, 3, 4), *[(0, 1, 2, 3, 4)] * 2]
    assert "clients would refuse the server's next broadcast (norm " in records[1].refused[HOSTILE]
    assert not records[2].refused
    rounds_of(without, lambda message: replace(message, rows=None), {2})
    assert same_tensors(played.server.state, without.server.state)


def test_a_fit_that_an_upload_drives_to_nan_is_made_without_it(quarters: FederatedData) -> None:
    played = federation(quarters, "fedtgp")
    side = played.server.side

    class Fragile:
        broadcast = staticmethod(side.broadcast)

        def aggregate(self, state: Any, updates: Any, *rest: Any) -> Any:
            fitted = side.aggregate(state, updates, *rest)
            spoilt = any(update.message.rows.values.max() > 1e6 for update in updates)
            weight = next(name for name in fitted if name.startswith("network."))
            return {**fitted, weight: fitted[weight] * torch.nan} if spoilt else fitted

    played.server.side = Fragile()  # type: ignore[assignment]
    records = rounds_of(played, rows_of_norm(0.9e8), {2})
    assert all(bool(value.isfinite().all()) for value in played.server.state.values())
    assert [list(record.refused) for record in records] == [[], [HOSTILE], [], []]
    assert "of the server's state is not finite" in records[1].refused[HOSTILE]


@pytest.mark.parametrize("name", ["fedavg", "lg_fedavg", "fml", "fedkd"])
def test_tensors_are_held_to_the_same(quarters: FederatedData, name: str) -> None:
    def forge(message: Message) -> Message:
        return replace(message, tensors={key: 0 * value + 0.5e7 for key, value in message.tensors.items()})

    played = federation(quarters, name, down="int4")
    rounds_of(played, forge, {2})
    message = played.server.side.broadcast(played.server.state, played.server.infos[0])
    assert unsendable(message, played.server.expectation.down, LONGEST_DOWNLOAD) is None


def test_factors_whose_product_no_client_would_accept_are_dropped(quarters: FederatedData) -> None:
    def forge(message: Message) -> Message:
        long = {
            name: value / value.norm() * 0.9e8 if name.endswith((".left", ".right")) else value
            for name, value in message.tensors.items()
        }
        assert any(name.endswith((".left", ".right")) for name in long)
        return replace(message, tensors=long)

    played = federation(quarters, "fedkd", energy_start=0.5, energy_end=0.5)
    records = rounds_of(played, forge, {2})
    assert list(records[1].refused) == [HOSTILE]
    assert not records[2].refused


def test_where_no_upload_is_to_blame_the_state_of_the_round_before_stays(quarters: FederatedData) -> None:
    played = federation(quarters, "tinyproto_fp", aggregation="sum", global_scale=1e12)
    before = {name: value.clone() for name, value in played.server.state.items()}
    record = rounds_of(played, lambda message: message, set())[0]
    assert record.participants == ()
    assert sorted(record.refused) == [0, 1, 2, 3, 4]
    assert same_tensors(played.server.state, before)
    with pytest.raises(
        LeftOutError, match=r"left out all clients: .*lower algorithms.proto_weight, then algorithms.gl"
    ):
        list(federation(quarters, "tinyproto_fp", aggregation="sum", global_scale=1e12).rounds())


BY_ROWS = (
    "fedproto", "fedtgp", "tinyproto_fp", "tinyproto_ft", "tinyproto_sphere", "feddistill", "fedgh", "protonorm",
    "fedsa", "fedorgp",
)  # fmt: skip


@pytest.mark.parametrize("name", BY_ROWS)
def test_rows_of_more_classes_than_the_hello_counted_are_refused(quarters: FederatedData, name: str) -> None:
    def forge(message: Message) -> Message:
        assert message.rows is not None
        every = torch.ones(NUM_CLASSES, dtype=torch.bool)
        return replace(message, rows=Prototypes(torch.ones_like(message.rows.values), every))

    small = quarters.train_counts.gt(0).sum(1).tolist()
    assert small[2] == 1
    played = federation(quarters, name)

    class OfTwo(Forging):
        def exchange(self, round_number: int, frames: Mapping[int, bytes]) -> Iterable[Reply]:
            for reply in self.played.loopback.exchange(round_number, frames):
                if reply.client == 2 and round_number:
                    decoded = decode(reply.frame, self.played.server.expectation.digest)
                    yield Reply(2, encode(decoded.header, self.forge(decoded.message)))
                else:
                    yield reply

    channel, meter = OfTwo(played, forge, set()), Meter()
    played.server.greet(channel, range(5), meter)
    record = play_round(played.server, channel, RoundPlan(Round(1, 4), range(5), frozenset()), meter)
    assert record.refused == {
        2: "frame of client 2, round 1, refused: rows of 4 classes, but its hello counted 1",
    }


@pytest.mark.parametrize("counted", ["train", "all"])
@pytest.mark.parametrize("seen", ["all", "seen"])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_no_honest_client_sends_rows_of_more_classes_than_it_counts(
    quarters: FederatedData, name: str, seen: Any, counted: Any
) -> None:
    training = LocalTraining(rounds=2, batch_size=8, prototype_samples=seen, last_batch="drop")
    settings_ = SimulationSettings(training, PROTO_DIM, counted_samples=counted)
    played = InProcess(quarters, [tiny_net], build(name), settings_, seed=0)
    assert not any(round_.record.refused for round_ in played.rounds())


def test_uploads_that_are_long_but_harmless_are_folded_in(quarters: FederatedData) -> None:
    played, norm = federation(quarters, "fedproto"), 4 * SUSPECT_NORM
    record = rounds_of(played, rows_of_norm(norm), {1})[0]
    assert not record.refused
    assert record.participants == (0, 1, 2, 3, 4)


@TYPES
@settings(max_examples=60)
@given(
    arrays(np.float32, st.tuples(st.integers(1, 4), st.integers(1, 40)), elements=st.floats(-1e6, 1e6, width=32)),
    st.none() | st.integers(0, 99),
)
def test_no_rounding_makes_a_row_longer_than_its_type_says(
    kind: ValueType, values: np.ndarray[tuple[int, int], np.dtype[np.float32]], seed: int | None
) -> None:
    draws = None if seed is None else torch.Generator().manual_seed(seed)
    rows, width = values.shape
    data = np.frombuffer(bytearray(kind.encode(values, draws)), np.uint8)
    before, after = (
        np.linalg.norm(part.astype(np.float64), axis=1) for part in (values, kind.decode(data, rows, width))
    )
    tiny = 2.0**-120 * width
    assert bool((after <= before * kind.stretch(width) * (1 + 1e-6) + tiny).all())


@TYPES
def test_a_mean_of_accepted_rows_can_be_sent_whatever_the_type(kind: ValueType) -> None:
    row = torch.zeros(1, 500)
    row[0, 0] = LONGEST_UPLOAD
    message = Message(Prototypes(row, torch.tensor([True])))
    assert unsendable(message, kind, LONGEST_DOWNLOAD) is None


def test_the_fewest_and_worst_uploads_are_dropped_in_few_aggregations() -> None:
    made: list[int] = []

    def aggregate(without: Any) -> dict[str, torch.Tensor]:
        made.append(len(without))
        return {"left": torch.tensor(float(10 - len(without)))}

    def problem_of(state: Mapping[str, torch.Tensor]) -> str | None:
        return "too many" if state["left"] > 7 else None

    settled = settle(aggregate, problem_of, list(range(10)))
    assert (settled.dropped, settled.problem) == ((0, 1, 2), "too many")
    assert settled.state == {"left": torch.tensor(7.0)}
    assert len(made) <= 5
    assert settle(aggregate, lambda _: "never", [0, 1]) == Settled(None, (), "never")
