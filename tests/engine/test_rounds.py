"""The round as client and server play it, on a small federation with every awkward client in it."""

from __future__ import annotations

import re
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from support import NUM_CLASSES, PROTO_DIM, InProcess, SimulationSettings, head_weight, tiny_net
from support_rounds import build, simulation
from tinyproto.algorithms import ALGORITHMS
from tinyproto.algorithms.base import ClientInfo, Derived, Round, expected_frames
from tinyproto.core.prototypes import Message, Prototypes, class_means, on_host
from tinyproto.core.task import FitResult, State, Task
from tinyproto.data.dataset import FederatedData
from tinyproto.engine import round as round_module
from tinyproto.engine.checks import check_scores, read_hello
from tinyproto.engine.client import LocalTraining
from tinyproto.engine.eager import EagerTrainer
from tinyproto.engine.measure import Cost, Meter, Stopwatch
from tinyproto.engine.round import RoundRecord, play_round
from tinyproto.engine.server import Reply, RoundPlan
from tinyproto.errors import WireError
from tinyproto.models.split import SplitModel
from tinyproto.simulation.loop import Loopback
from tinyproto.tracking.summary import RoundResult, Totals
from tinyproto.wire.codec import decode, encode
from tinyproto.wire.frame import HEADER_BYTES, Header, Kind

PROTOTYPE_METHODS = {
    "anchors", "input_means", "fedproto", "fedtgp", "protonorm", "fedsa", "fedorgp", "tinyproto_fp", "tinyproto_ft",
    "tinyproto_sphere",
}  # fmt: skip


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_lives_with_one_sample_one_class_and_no_test_part(quarters: FederatedData, name: str) -> None:
    played = list(simulation(quarters, build(name)).rounds())
    assert [round_.record.round for round_ in played] == [1, 2, 3]
    assert [round_.record.closing for round_ in played] == [False, False, True]
    last = played[-1].record
    assert last.clients[4].test_samples == 0
    assert last.clients[3].test_samples == 2
    assert last.accuracy["head"] is not None
    assert last.accuracy["local"] is not None
    assert (last.accuracy["global"] is not None) == (name in PROTOTYPE_METHODS)
    tested = [client for client in last.clients.values() if client.test_samples]
    heads = [client.correct["head"] or 0 for client in tested]
    assert last.accuracy["head"] == sum(heads) / sum(client.test_samples or 0 for client in tested)
    shares = [correct / (client.test_samples or 1) for correct, client in zip(heads, tested, strict=True)]
    assert last.client_mean["head"] == pytest.approx(sum(shares) / len(shares))


def test_what_was_derived_is_that_of_the_last_round_anyone_trained_in(quarters: FederatedData) -> None:
    played = simulation(quarters, build("tinyproto_ft"))
    records = [round_.record for round_ in played.rounds()]
    first, second, closing = (
        replace(one, participants=who) for one, who in zip(records, ((0, 1), (2,), ()), strict=True)
    )
    info = played.server.infos[2]
    expected = 3.0 * info.counted_classes / info.counted_samples

    def derived(*records: RoundRecord) -> Derived:
        return played.server.derived(Totals(RoundResult(record, {}) for record in records).participants)

    assert derived(first, second, closing) == {"global_scale": pytest.approx(expected)}
    assert derived(first) != derived(first, second)
    assert derived(closing) == {}


def test_before_prototypes_exist_their_rules_have_no_accuracy(quarters: FederatedData) -> None:
    first = next(iter(simulation(quarters, build("fedproto")).rounds())).record
    assert first.accuracy["head"] is not None
    assert first.accuracy["global"] is None
    assert first.accuracy["local"] is None


@pytest.mark.parametrize(
    ("name", "width"),
    [
        ("fedproto", PROTO_DIM),
        ("protonorm", PROTO_DIM),
        ("fedorgp", PROTO_DIM),
        ("tinyproto_fp", 3),
        ("tinyproto_ft", 3),
        ("tinyproto_sphere", 3),
        ("feddistill", NUM_CLASSES),
    ],
)
def test_the_meter_equals_rows_sent_times_width_and_from_round_two_the_paper_s_formula(
    quarters: FederatedData, name: str, width: int
) -> None:
    algorithm = build(name)
    first, second, closing = (round_.record for round_ in simulation(quarters, algorithm).rounds())
    rows_up = int((quarters.train_counts > 0).sum())
    assert first.traffic["training"]["up"].parameters == rows_up * width
    assert first.traffic["training"]["down"].parameters == 0
    measured = sum(cost.parameters for cost in second.traffic["training"].values())
    held = (quarters.train_counts > 0).sum(1).tolist()
    assert measured == algorithm.table2_parameters(held)
    assert second.traffic["training"]["up"].payload == 4 * rows_up * width
    assert closing.traffic["closing"]["down"].parameters == 5 * NUM_CLASSES * width
    assert closing.traffic["closing"]["up"].parameters == 0


def test_the_hello_is_metered_apart_and_tells_sizes_only(quarters: FederatedData) -> None:
    played = simulation(quarters, build("fedproto"))
    first = next(iter(played.rounds())).record
    assert first.traffic["hello"]["down"] == Cost(0, 0, 5 * HEADER_BYTES)
    info = played.server.infos[0]
    assert (info.train_samples, info.counted_samples, info.counted_classes) == (30, 30, 4)
    assert played.server.infos[2].counted_classes == 1


def test_local_prototypes_are_those_of_the_trained_network(quarters: FederatedData) -> None:
    played = simulation(quarters, build("fedproto"), rounds=1)
    list(played.rounds())
    client = played.clients[0]
    client.model.eval()
    features = client.model(client.train.batch(slice(None)).inputs).features.detach()
    torch.testing.assert_close(client.local.values, class_means(features, client.train.labels, NUM_CLASSES).values)


@pytest.mark.parametrize("source", ["stale", "running"])
def test_other_sources_of_prototypes_give_other_prototypes(quarters: FederatedData, source: str) -> None:
    fresh, other = (
        simulation(quarters, build("fedproto")),
        simulation(quarters, build("fedproto", prototype_source=source)),
    )
    next(iter(fresh.rounds()))
    next(iter(other.rounds()))
    assert torch.equal(head_weight(fresh.clients[0]), head_weight(other.clients[0]))
    assert torch.equal(fresh.clients[0].local.present, other.clients[0].local.present)
    assert not torch.allclose(fresh.clients[0].local.values, other.clients[0].local.values)


def test_stale_prototypes_are_those_of_the_network_before_training(quarters: FederatedData) -> None:
    played = simulation(quarters, build("fedproto", prototype_source="stale"), rounds=1)
    client = played.clients[0]
    client.model.eval()
    features = client.model(client.train.batch(slice(None)).inputs).features.detach()
    next(iter(played.rounds()))
    torch.testing.assert_close(client.local.values, class_means(features, client.train.labels, NUM_CLASSES).values)


def test_prototypes_can_be_taken_over_the_samples_seen_only(quarters: FederatedData) -> None:
    training = LocalTraining(1, batch_size=8, shuffle=False, last_batch="drop", prototype_samples="seen")
    settings = SimulationSettings(training, PROTO_DIM)
    played = InProcess(quarters, [tiny_net], build("fedproto"), settings, seed=0)
    next(iter(played.rounds()))
    client = played.clients[0]  # 30 samples: 24 in full batches
    client.model.eval()
    features = client.model(client.train.batch(slice(0, 24)).inputs).features.detach()
    torch.testing.assert_close(client.local.values, class_means(features, client.train.labels[:24], NUM_CLASSES).values)


class Tampering:
    """A channel that changes what one client says."""

    def __init__(self, played: InProcess, forged: bytes) -> None:
        self.channel = played.loopback
        self.forged = forged

    def exchange(self, round_number: int, frames: Mapping[int, bytes]) -> Iterable[Reply]:
        for client, frame, _ in self.channel.exchange(round_number, frames):
            yield Reply(client, self.forged if client == 1 and round_number else frame)


def forgeries() -> Iterator[tuple[str, bytes]]:
    digest = expected_frames(build("fedproto"), NUM_CLASSES, PROTO_DIM).digest
    good = Header(Kind.UPDATE, 1, 1, digest)
    nan = Message(
        rows=Prototypes(torch.full((NUM_CLASSES, PROTO_DIM), torch.nan), torch.ones(NUM_CLASSES, dtype=torch.bool))
    )
    yield "NaN", encode(good, nan)
    yield "round", encode(Header(Kind.UPDATE, 9, 1, digest), Message())
    yield "checksum", encode(Header(Kind.UPDATE, 1, 1, bytes(16)), Message())
    yield "checksum", encode(good, Message(metrics={"x": 1.0}))[:-1] + b"\x07"


@pytest.mark.parametrize(("field", "forged"), list(forgeries()))
def test_a_refused_frame_changes_no_state(quarters: FederatedData, field: str, forged: bytes) -> None:
    played = simulation(quarters, build("fedproto"))
    meter = Meter()
    played.server.greet(played.host, list(range(5)), meter)
    plan = RoundPlan(Round(1, 2), participants=[1], evaluated=frozenset())
    before = {name: value.clone() for name, value in played.server.state.items()}
    record = play_round(played.server, Tampering(played, forged), plan, meter)
    assert re.search(rf"client 1.* round 1.*{field}", record.refused[1])
    assert all(torch.equal(played.server.state[name], value) for name, value in before.items())


def test_a_frame_of_another_federation_is_refused_by_the_client(quarters: FederatedData) -> None:
    played = simulation(quarters, build("fedproto"))
    stranger = expected_frames(build("tinyproto_fp"), NUM_CLASSES, PROTO_DIM).digest
    with pytest.raises(WireError, match=r"checksum: .* another federation"):
        played.loopback.clients.handle({0: encode(Header(Kind.TRAIN, 1, 0, stranger), Message())})


def test_one_frame_at_a_time_gives_the_same_answers_as_all_at_once(quarters: FederatedData) -> None:
    together, apart = simulation(quarters, build("fedproto")), simulation(quarters, build("fedproto"))
    digest = together.loopback.clients.expectation.digest
    frames = {client: encode(Header(Kind.TRAIN, 1, client, digest, evaluate=True), Message()) for client in range(5)}
    at_once = together.loopback.clients.handle(frames)
    one_by_one = {
        client: apart.loopback.clients.handle({client: frame})[client] for client, frame in reversed(frames.items())
    }
    assert at_once == one_by_one
    assert decode(at_once[0], digest).message.metrics["test_samples"] == 10.0


@pytest.mark.parametrize("source", ["fresh", "running", "stale"])
def test_nothing_passes_through_the_network_of_a_client_without_training_samples(
    quarters: FederatedData, source: str
) -> None:
    """Many networks flatten with `view(len(images), -1)`, which fails on a batch of none."""

    class Viewing(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            return images.view(len(images), -1)

    def net(input_shape: Sequence[int], proto_dim: int, num_classes: int) -> SplitModel:
        model = tiny_net(input_shape, proto_dim, num_classes)
        return SplitModel(nn.Sequential(Viewing(), model.extractor), model.head)

    shares = [*quarters.shares[:2], replace(quarters.shares[2], train=quarters.shares[2].train[:0])]
    data = FederatedData(quarters.images, shares)
    settings = SimulationSettings(LocalTraining(rounds=2, batch_size=8), PROTO_DIM)
    played = InProcess(data, [net], build("fedproto", prototype_source=source), settings, seed=0)
    records = [one.record for one in played.rounds()]
    assert [record.refused for record in records] == [{}] * 3
    assert not played.clients[2].local.present.any()
    assert played.clients[1].local.present.any()


def test_a_server_may_write_what_each_client_is_sent_into_the_same_tensor(quarters: FederatedData) -> None:
    played = simulation(quarters, build("fedproto"))
    server, side, buffer = played.server, played.server.side, torch.zeros(NUM_CLASSES, PROTO_DIM)
    present = torch.ones(NUM_CLASSES, dtype=torch.bool)

    def broadcast(state: State, client: ClientInfo) -> Message:
        return Message(Prototypes(buffer.fill_(client.id), present))

    side.broadcast = broadcast  # type: ignore[method-assign]
    played.server.greet(played.host, list(range(5)), Meter())
    play_round(server, played.host, RoundPlan(Round(1, 2), participants=[0, 1, 2], evaluated=frozenset()), Meter())
    found = [played.clients[client].received for client in range(3)]
    assert [rows and rows.values[:, 0].tolist() for rows in found] == [
        [number] * NUM_CLASSES for number in (0.0, 1.0, 2.0)
    ]


@pytest.mark.parametrize("name", ["fedavg", "fedproto"])
def test_nothing_of_an_exchange_stays_once_it_is_over(
    quarters: FederatedData, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither what was sent, nor a client's copy of it while clients train, nor an upload while the next ones do."""
    made: list[weakref.ref[Message] | weakref.ref[Tensor]] = []
    alive: list[int] = []
    on, fit = Message.on, EagerTrainer.fit

    def copied(message: Message, device: torch.device) -> Message:
        found = on(message, device)
        made.append(weakref.ref(found))
        return found

    def uploaded(messages: Sequence[Message]) -> list[Message]:
        found = on_host(messages)
        made.extend(weakref.ref(tensor) for message in found for tensor in message.all_tensors())
        return found

    def fitted(trainer: EagerTrainer, tasks: Sequence[Task]) -> list[FitResult]:
        alive.append(sum(each() is not None for each in made))
        return fit(trainer, tasks)

    monkeypatch.setattr(Message, "on", copied)
    monkeypatch.setattr("tinyproto.engine.client.on_host", uploaded)
    monkeypatch.setattr(EagerTrainer, "fit", fitted)
    played = simulation(quarters, build(name))
    played.loopback.most_bytes = 1  # one client after the other
    list(played.rounds())
    assert len(alive) >= 10
    assert made
    assert not any(alive)
    assert played.server._sent is None


def test_a_round_leaves_a_refused_client_out_and_says_why(quarters: FederatedData) -> None:
    played = simulation(quarters, build("fedproto"))
    meter = Meter()
    played.server.greet(played.host, list(range(5)), meter)
    plan = RoundPlan(Round(1, 2), participants=range(5), evaluated=frozenset())
    record = play_round(played.server, Tampering(played, b"noise"), plan, meter)
    assert record.participants == (0, 2, 3, 4)
    assert record.refused[1].startswith("frame of client 1, round 1, refused: length")
    assert list(record.clients) == [0, 2, 3, 4]


class Giving(Loopback):
    """A channel that knows from whom no good answer will come."""

    def exchange(self, round_number: int, frames: Mapping[int, bytes]) -> Iterable[Reply]:
        for client, frame, _ in super().exchange(round_number, frames):
            yield Reply(client, b"", WireError("it is gone")) if client == 1 else Reply(client, frame)


@pytest.mark.parametrize("name", ["fedproto", "fedtgp"])  # which gathers uploads as they come, and which does not
def test_whom_the_channel_gives_up_is_left_out_with_the_reason_it_names(quarters: FederatedData, name: str) -> None:
    played = simulation(quarters, build(name))
    meter = Meter()
    played.server.greet(played.host, range(5), meter)
    channel = Giving(played.loopback.clients, played.loopback.store)
    plan = RoundPlan(Round(1, 2), participants=range(5), evaluated=frozenset())
    record = play_round(played.server, channel, plan, meter)
    assert record.participants == (0, 2, 3, 4)
    assert record.refused == {1: "it is gone"}


def test_a_greeting_leaves_out_whom_it_cannot_understand(quarters: FederatedData) -> None:
    played = simulation(quarters, build("fedproto"))
    channel = Giving(played.loopback.clients, played.loopback.store)
    refused = played.server.greet(channel, range(5), Meter())
    assert {client: str(error) for client, error in refused.items()} == {1: "it is gone"}
    assert sorted(played.server.infos) == [0, 2, 3, 4]


class Echoing(Loopback):
    """A channel on which answers come late, twice and from strangers."""

    def exchange(self, round_number: int, frames: Mapping[int, bytes]) -> Iterable[Reply]:
        replies = list(super().exchange(round_number, frames))
        yield from reversed(replies)
        yield replies[0]
        yield Reply(77, b"who asked?")


def test_order_repetition_and_strangers_change_nothing(quarters: FederatedData) -> None:
    straight, odd = simulation(quarters, build("tinyproto_ft")), simulation(quarters, build("tinyproto_ft"))
    odd.host = Echoing(odd.loopback.clients, odd.loopback.store)
    assert [played.record for played in straight.rounds()] == [played.record for played in odd.rounds()]
    assert all(torch.equal(straight.server.state[name], odd.server.state[name]) for name in straight.server.state)


class Correcting(Loopback):
    """A channel on which a client's noise is followed by what it meant to say."""

    def exchange(self, round_number: int, frames: Mapping[int, bytes]) -> Iterable[Reply]:
        if round_number:
            yield Reply(1, b"noise")
        yield from super().exchange(round_number, frames)


def test_a_client_s_first_answer_counts_good_or_bad(quarters: FederatedData) -> None:
    played = simulation(quarters, build("fedproto"))
    channel, meter = Correcting(played.loopback.clients, played.loopback.store), Meter()
    played.server.greet(channel, range(5), meter)
    plan = RoundPlan(Round(1, 2), participants=range(5), evaluated=frozenset())
    record = play_round(played.server, channel, plan, meter)
    assert list(record.refused) == [1]
    assert record.participants == (0, 2, 3, 4)


@pytest.mark.parametrize(
    "said",
    [
        {},
        {"train_samples": 5.0, "counted_samples": 5.0},
        {"train_samples": 5.0, "counted_samples": 5.0, "counted_classes": 2.0, "more": 1.0},
        {"train_samples": -5.0, "counted_samples": 5.0, "counted_classes": 2.0},
        {"train_samples": 5.0, "counted_samples": 4.0, "counted_classes": 2.0},
        {"train_samples": 5.0, "counted_samples": 5.0, "counted_classes": 99.0},
        {"train_samples": 5.5, "counted_samples": 6.0, "counted_classes": 2.0},
        {"train_samples": 5.0, "counted_samples": 1e308, "counted_classes": 2.0},
        {"train_samples": 5.0, "counted_samples": 2.0**31, "counted_classes": 2.0},
    ],
)
def test_an_impossible_hello_is_refused(said: dict[str, float]) -> None:
    with pytest.raises(WireError, match="hello of client 3, refused"):
        read_hello(3, Message(metrics=said), num_classes=4)


@pytest.mark.parametrize(
    "scores", [{"correct_head": 1.0}, {"test_samples": 1.0, "correct_local": 500.0}, {"test_samples": 1e308}]
)
def test_impossible_scores_are_refused(scores: dict[str, float]) -> None:
    with pytest.raises(WireError, match="test samples correct"):
        check_scores(3, scores)


def test_a_client_takes_nothing_in_before_all_frames_are_found_good(quarters: FederatedData) -> None:
    clients = simulation(quarters, build("fedproto")).loopback.clients
    rows = Prototypes(torch.ones(NUM_CLASSES, PROTO_DIM), torch.ones(NUM_CLASSES, dtype=torch.bool))
    good = encode(Header(Kind.TRAIN, 1, 0, clients.expectation.digest), Message(rows=rows))
    with pytest.raises(WireError, match="client 1"):
        clients.handle({0: good, 1: good[:50]})
    assert not clients.clients[0].state["present"].any()


@pytest.mark.parametrize(
    ("kind", "number", "client", "words"),
    [
        (Kind.TRAIN, 0, 0, "round: 0"),
        (Kind.TRAIN, 3, 0, "round: 3"),
        (Kind.EVALUATE, 4, 0, "round: 4"),
        (Kind.TRAIN, 1, 9, "client 9, refused: client:"),
    ],
)
def test_a_round_that_is_not_and_a_client_that_is_not_here_are_refused(
    quarters: FederatedData, kind: Kind, number: int, client: int, words: str
) -> None:
    clients = simulation(quarters, build("fedproto")).loopback.clients
    with pytest.raises(WireError, match=words):
        clients.handle({client: encode(Header(kind, number, client, clients.expectation.digest), Message())})


def test_a_client_and_a_server_that_scale_differently_are_different_federations() -> None:
    digests = [
        expected_frames(build("tinyproto_fp", scaling=scaling), NUM_CLASSES, PROTO_DIM).digest
        for scaling in ("count", "none")
    ]
    assert digests[0] != digests[1]


def test_a_network_never_sees_an_empty_batch(quarters: FederatedData) -> None:
    def picky(input_shape: tuple[int, ...], proto_dim: int, num_classes: int) -> SplitModel:
        model = tiny_net(input_shape, proto_dim, num_classes)

        def check(_: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
            assert len(inputs[0])

        model.extractor.register_forward_pre_hook(check)
        return model

    settings = SimulationSettings(LocalTraining(1, batch_size=8), PROTO_DIM)
    records = [played.record for played in InProcess(quarters, [picky], build("fedproto"), settings, seed=0).rounds()]
    assert records[-1].clients[4].test_samples == 0


def test_the_stopwatch_waits_for_the_device_before_it_reads_the_clock() -> None:
    events: list[str] = []

    def clock() -> float:
        events.append("read")
        return 0.0

    watch = Stopwatch(clock, lambda: events.append("wait"))
    with watch.phase("train"):
        pass
    assert events == ["wait", "read", "wait", "read"]


def test_the_stopwatch_adds_up_what_its_clock_says() -> None:
    ticks = iter([0.0, 2.0, 5.0, 6.5])
    watch = Stopwatch(lambda: next(ticks))
    for _ in range(2):
        with watch.phase("train"):
            pass
    assert watch.take() == {"train": 3.5}
    assert watch.take() == {}


class InParts(Loopback):
    """A channel that reads some frames twice and counts how many are held at once."""

    def exchange(self, round_number: int, frames: Mapping[int, bytes]) -> Iterable[Reply]:
        assert (len(frames), 77 in frames) == (5, False)
        with pytest.raises(KeyError):
            frames[77]
        for client in sorted(frames, reverse=True):
            assert frames[client] == frames[client]
            yield from super().exchange(round_number, {client: frames[client]})


def test_a_frame_is_made_when_it_is_read_and_counts_once(quarters: FederatedData) -> None:
    at_once, parts = simulation(quarters, build("tinyproto_ft")), simulation(quarters, build("tinyproto_ft"))
    parts.host = InParts(parts.loopback.clients, parts.loopback.store)
    assert [repr(played.record) for played in at_once.rounds()] == [repr(played.record) for played in parts.rounds()]


def test_a_claimed_test_set_counts_for_at_most_a_multiple_of_the_median() -> None:
    honest = {client: Message(metrics={"test_samples": 10.0, "correct_head": 9.0}) for client in range(4)}
    boast = Message(metrics={"test_samples": 2.0**30, "correct_head": 0.0})
    assert round_module._accuracy("head", honest, 10.0) == 0.9
    assert round_module._accuracy("head", {**honest, 4: boast}, 10.0) == pytest.approx(36 / 140)
    assert round_module._accuracy("head", {**honest, 4: boast}, None) == pytest.approx(0.0, abs=1e-6)
