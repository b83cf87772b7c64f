from __future__ import annotations

import io
import threading

import pytest

from tinyproto.config import parse_config
from tinyproto.errors import WorkerError
from tinyproto.experiment import Experiment
from tinyproto.models import build_model
from tinyproto.models.count import count_parameters
from tinyproto.simulation.loop import batches
from tinyproto.subprocesses import End, Parcel, receive, send
from tinyproto.workers import pool
from tinyproto.workers.child import Child
from tinyproto.workers.pool import deal


def test_parcels_come_out_as_they_went_in() -> None:
    stream = io.BytesIO()
    send(stream, Parcel({"do": "exchange", "clients": [1, 2]}, [b"", b"frame"]))
    send(stream, Parcel({"done": "load"}))
    stream.seek(0)
    assert receive(stream) == Parcel({"do": "exchange", "clients": [1, 2]}, [b"", b"frame"])
    assert receive(stream) == Parcel({"done": "load"}, [])
    assert receive(stream) is None


def test_clients_are_dealt_out_evenly_by_size() -> None:
    assert deal([10, 1, 9, 2], 2) == [[0, 1], [2, 3]]
    assert deal([5, 5, 5], 1) == [[0, 1, 2]]
    shares = deal([7] * 20, 3)
    assert sorted(client for share in shares for client in share) == list(range(20))
    assert {len(share) for share in shares} == {6, 7}


def test_a_client_with_a_larger_network_counts_as_more_work() -> None:
    values = {
        "name": "work", "data": {"name": "digits"}, "partition": {"num_clients": 4, "alpha": 100.0},
        "models": ["small_cnn_a", "small_cnn_d"], "prototypes": {"dim": 20, "cps_dim": 5}, "algorithms": ["local"],
    }  # fmt: skip
    experiment = Experiment(parse_config(values, "a test"))
    samples = experiment.data.train_counts.sum(1).tolist()
    networks = [build_model(f"small_cnn_{kind}", experiment.shape, 0) for kind in "adad"]
    assert experiment.work == [
        count * count_parameters(network) for count, network in zip(samples, networks, strict=True)
    ]
    assert {len({client % 2 for client in share}) for share in deal(experiment.work, 2)} == {2}  # one of each kind


def test_a_worker_is_sent_no_more_frames_at_a_time_than_a_pipe_should_hold() -> None:
    frames = {client: bytes(4) for client in range(7)}
    assert [list(batch) for batch in batches([0, 1, 3, 4, 6], frames, 10)] == [[0, 1, 3], [4, 6]]
    assert list(batches([], frames, 10)) == []


def test_replies_are_read_before_somebody_asks_for_them_so_that_no_worker_waits_for_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written = [Parcel({"event": "client", "client": client}) for client in range(3)]
    left = iter([*written, None])
    all_read = threading.Event()

    def answer(_self: object) -> Parcel | None:
        parcel = next(left)
        if parcel is None:
            all_read.set()
        return parcel

    monkeypatch.setattr(Child, "__init__", lambda *_: None)
    monkeypatch.setattr(Child, "answer", answer)
    monkeypatch.setattr(Child, "end", lambda _self: End(1, "ended with status 1", ""))
    worker = pool._Worker(0, {}, None)  # type: ignore[arg-type]
    assert all_read.wait(10)
    assert [worker.reply("client") for _ in written] == written
    for _ in range(2):
        with pytest.raises(WorkerError, match="worker 1 ended with status 1"):
            worker.reply("client")
