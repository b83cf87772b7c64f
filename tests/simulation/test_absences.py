"""Participants that drop out of a round, and uploads that miss its deadline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from support import PROTO_DIM, InProcess, SimulationSettings, head_weight, same_tensors, tiny_net
from support_rounds import build
from tinyproto.algorithms import ALGORITHMS
from tinyproto.algorithms.base import Round
from tinyproto.core.streams import Streams
from tinyproto.data.dataset import FederatedData
from tinyproto.engine.client import LocalTraining
from tinyproto.engine.measure import WAYS, Cost
from tinyproto.engine.participation import Event, Trace, read_trace, with_absences
from tinyproto.engine.round import RoundRecord
from tinyproto.engine.server import RoundPlan
from tinyproto.errors import DataError
from tinyproto.wire.values import WireSettings

SETTINGS = SimulationSettings(LocalTraining(rounds=3, batch_size=8), PROTO_DIM)
HELD = WireSettings(download="held")
EVERYONE: Trace = {(2, client): "drop" for client in range(5)}

every_algorithm = pytest.mark.parametrize("name", ALGORITHMS)


def started(data: FederatedData, name: str, trace: Trace, **changes: object) -> InProcess:
    settings: SimulationSettings = replace(SETTINGS, dropout=trace, **changes)  # type: ignore[arg-type]
    return InProcess(data, [tiny_net], build(name), settings, 0)


def records(simulation: InProcess) -> list[RoundRecord]:
    return [played.record for played in simulation.rounds()]


def absent(number: int, dropout: float, late: float, clients: range = range(20), seed: int = 0) -> RoundPlan:
    return with_absences(RoundPlan(Round(number, 999), clients, frozenset()), dropout, late, Streams(seed))


def weights(simulation: InProcess) -> dict[str, torch.Tensor]:
    return {str(client.id): head_weight(client).clone() for client in simulation.clients.values()}


def test_participants_drop_out_and_are_late_as_often_as_asked() -> None:
    plans = [absent(number, 0.2, 0.5) for number in range(1, 501)]
    dropped, late = (
        sum(len(found) for found in (getattr(plan, name) for plan in plans)) for name in ("dropped", "late")
    )
    assert dropped / 10_000 == pytest.approx(0.2, abs=0.015)
    assert late / (10_000 - dropped) == pytest.approx(0.5, abs=0.02)
    assert not any(plan.dropped & plan.late for plan in plans)


def test_a_draw_depends_on_seed_client_and_round_alone() -> None:
    whole = absent(3, 0.4, 0.4)
    for clients in (range(10), range(5, 20)):
        part = absent(3, 0.4, 0.4, clients)
        assert (part.dropped, part.late) == (whole.dropped & set(clients), whole.late & set(clients))
    assert absent(3, 0.4, 0.0).dropped == whole.dropped
    assert len({absent(3, 0.4, 0.4, seed=seed).dropped for seed in range(9)}) > 1
    assert len({absent(number, 0.4, 0.4).dropped for number in range(9)}) > 1


def test_without_absences_a_plan_stays_as_it_is() -> None:
    plan = RoundPlan(Round(1, 3), range(5), frozenset(range(5)))
    assert with_absences(plan, 0.0, 0.0, Streams(0)) == plan


def test_a_dropped_client_loses_its_work_and_a_late_one_keeps_it_and_neither_is_aggregated(
    quarters: FederatedData,
) -> None:
    simulation = started(quarters, "fedproto", {(1, 0): "drop", (1, 1): "late"})
    before = weights(simulation)
    first = next(iter(simulation.rounds())).record
    after = weights(simulation)
    assert (first.participants, first.dropped, first.late) == ((2, 3, 4), (0,), (1,))
    assert [name for name in before if torch.equal(before[name], after[name])] == ["0"]
    without = started(quarters, "fedproto", {(1, client): "drop" for client in (0, 1)})
    next(iter(without.rounds()))
    assert same_tensors(simulation.server.state, without.server.state)


@every_algorithm
def test_the_server_s_state_is_that_of_a_round_without_the_absent(quarters: FederatedData, name: str) -> None:
    absent_ones = started(quarters, name, {(1, 0): "drop", (1, 3): "late"})
    rounds = absent_ones.rounds()
    next(rounds)
    both_dropped = started(quarters, name, {(1, 0): "drop", (1, 3): "drop"})
    next(both_dropped.rounds())
    assert same_tensors(absent_ones.server.state, both_dropped.server.state)
    everyone = started(quarters, name, {})
    next(everyone.rounds())
    assert same_tensors(absent_ones.server.state, everyone.server.state) == (name in ("local", "anchors"))


def test_a_dropped_client_costs_its_download_and_a_late_one_its_upload_too(quarters: FederatedData) -> None:
    plain = records(started(quarters, "fedproto", {}))
    found = records(started(quarters, "fedproto", {(2, 0): "drop", (2, 1): "late"}))
    before, after = (record[1].traffic["training"] for record in (plain, found))
    assert after["down"] == before["down"]
    lost = plain[1].clients[0]
    up = Cost(before["up"].parameters - lost.payload_bytes["up"] // 4, *(
        getattr(before["up"], name) - getattr(lost, f"{name}_bytes")["up"] for name in ("payload", "wire")
    ))  # fmt: skip
    assert after["up"] == up
    assert found[1].clients[0].wire_bytes == {"up": 0, "down": lost.wire_bytes["down"]}
    assert found[1].clients[1].wire_bytes == plain[1].clients[1].wire_bytes
    assert set(found[1].traffic) == {"training"}
    for record in found[:-1]:
        for way in WAYS:
            assert (
                sum(client.wire_bytes[way] for client in record.clients.values())
                == record.traffic["training"][way].wire
            )


@pytest.mark.parametrize("wire", [WireSettings(), HELD], ids=["all", "held"])
def test_absences_do_not_change_who_is_evaluated(quarters: FederatedData, wire: WireSettings) -> None:
    plain = records(started(quarters, "fedproto", {}, wire=wire))
    found = records(started(quarters, "fedproto", {(2, 0): "drop", (2, 1): "late"}, wire=wire))
    assert found[1].accuracy == plain[1].accuracy  # what round 1 left, which lost nobody
    assert found[2].accuracy != plain[2].accuracy
    for record in found:
        assert {client for client, one in record.clients.items() if one.test_samples} == {0, 1, 2, 3}
    assert found[1].clients[0].correct == plain[1].clients[0].correct


def test_a_dropped_client_that_is_not_evaluated_is_recorded_with_its_download(quarters: FederatedData) -> None:
    found = records(started(quarters, "fedproto", {(2, 0): "drop"}, evaluate_every=5))
    lost = found[1].clients[0]
    assert lost.test_samples is None
    assert lost.wire_bytes["down"] > 0 == lost.wire_bytes["up"]


@pytest.mark.parametrize("wire", [WireSettings(), HELD], ids=["all", "held"])
@pytest.mark.parametrize("event", ["drop", "late"])
@pytest.mark.parametrize("every", [1, 5])
@every_algorithm
def test_a_round_that_loses_everybody_leaves_the_server_as_it_was(
    quarters: FederatedData, name: str, event: Event, every: int, wire: WireSettings
) -> None:
    trace: Mapping[tuple[int, int], Event] = dict.fromkeys(EVERYONE, event)
    simulation = started(quarters, name, trace, wire=wire, evaluate_every=every)
    rounds = simulation.rounds()
    next(rounds)
    before = dict(simulation.server.state)
    lost = next(rounds).record
    assert same_tensors(before, simulation.server.state)
    assert (lost.participants, lost.loss) == ((), {})
    assert (lost.dropped or lost.late) == tuple(range(5))
    assert (lost.accuracy["head"] is not None) == (every == 1)
    assert lost.traffic["training"]["down"].wire > 0
    assert (lost.traffic["training"]["up"].wire > 0) == (event == "late")
    third, closing = (played.record for played in rounds)
    assert third.participants == tuple(range(5))
    assert closing.accuracy["head"] is not None
    assert not closing.dropped


def test_the_closing_exchange_has_no_absences(quarters: FederatedData) -> None:
    closing = records(started(quarters, "fedproto", {(4, client): "drop" for client in range(5)}))[-1]
    assert closing.closing
    assert set(closing.clients) == set(range(5))
    assert not closing.dropped


def test_a_late_upload_does_not_tell_the_server_which_classes_a_client_holds(quarters: FederatedData) -> None:
    simulation = started(quarters, "fedproto", {(1, 0): "late", (1, 1): "drop"}, wire=HELD)
    next(simulation.rounds())
    assert sorted(simulation.server.held) == [2, 3, 4]


def trace_file(folder: Path, text: str) -> Path:
    file = folder / "trace.csv"
    file.write_text(text, encoding="utf-8")
    return file


@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_a_trace_says_who_drops_out_or_is_late_when(tmp_path: Path, mark: str) -> None:
    file = trace_file(tmp_path, f"{mark}round,client,event\n3,0,drop\n\n3, 4, late\r\n700,1,drop\n")
    assert read_trace(file, 5) == {(3, 0): "drop", (3, 4): "late", (700, 1): "drop"}
    plan = with_absences(RoundPlan(Round(3, 9), (0, 1, 2), frozenset()), read_trace(file, 5), 0.0, Streams(0))
    assert (plan.dropped, plan.late) == (frozenset({0}), frozenset())  # client 4 does not take part


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "line 1: the columns have to be round,client,event"),
        ("3,0,drop\n", "line 1: the columns have to be round,client,event"),
        ("round,client,event\n3,0\n", "line 2: '3,0' is not round,client,event, such as 3,0,drop"),
        ("round,client,event\n1,0,drop\n\n3,x,drop\n", "line 4: '3,x,drop' is not round,client,event"),
        ("round,client,event\n3,-1,drop\n", "line 2: '3,-1,drop' is not round,client,event"),
        ("round,client,event\n0,0,drop\n", "line 2: rounds count from 1"),
        ("round,client,event\n3,5,drop\n", "line 2: there is no client 5; clients are 0 … 4"),
        ("round,client,event\n3,0,gone\n", "line 2: unknown event 'gone'; expected drop or late"),
        ("round,client,event\n3,0,drop\n3,0,late\n", "line 3: client 0 in round 3 has an event already; remove one"),
    ],
)
def test_a_line_that_is_wrong_is_named(tmp_path: Path, text: str, says: str) -> None:
    file = trace_file(tmp_path, text)
    with pytest.raises(DataError) as error:
        read_trace(file, 5)
    assert str(error.value).startswith(f"train.dropout: {file}, {says}")


def test_a_trace_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"missing file .*none\.csv; give a probability from 0 to below 1, or"):
        read_trace(tmp_path / "none.csv", 5)
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match=r"binary\.csv cannot be read: UnicodeDecodeError"):
        read_trace(tmp_path / "binary.csv", 5)
