"""`python -m benchmarks transports`: what is counted is what passed, and a value above its limit is noticed."""

from __future__ import annotations

import json
import math
import socket
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.transports import command, packets
from benchmarks.transports.command import PARTS, Part, Row, main
from benchmarks.transports.proxy import CountingProxy
from tinyproto.engine.measure import WAYS
from tinyproto.federation.mqtt.messages import split_counts, to_json
from tinyproto.wire.codec import decode
from tinyproto.wire.frame import Header, Kind, pack, unpack


def test_a_proxy_passes_bytes_on_and_counts_them_by_direction_and_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        proxy = CountingProxy(server.getsockname()[1])

        def answer() -> None:
            opened, _ = server.accept()
            with opened:
                while data := opened.recv(100):
                    opened.sendall(2 * data)

        thread = threading.Thread(target=answer)
        thread.start()
        with socket.create_connection(("127.0.0.1", proxy.port), 10) as opened:
            opened.sendall(b"abc")
            assert _exactly(opened, 6) == b"abcabc"
            between = time.time()
            opened.sendall(b"de")
            assert _exactly(opened, 4) == b"dede"
        thread.join(10)
        assert proxy.count() == {"up": 5, "down": 10}
        assert proxy.count(between) == {"up": 2, "down": 4}
        proxy.close()


def _exactly(opened: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        found += opened.recv(size - len(found))
    return found


def test_a_training_frame_has_the_rows_of_a_client_s_classes_and_fits_the_packets_counted() -> None:
    held = [np.arange(46), np.array([3, 99])]
    frames = packets.training_frames(0, held[0])
    for way in WAYS:
        rows = decode(frames[way], b"").message.rows
        assert rows is not None
        assert rows.present.nonzero()[:, 0].tolist() == list(range(46))
    assert sorted(decode(frames["up"], b"").message.metrics) == ["cross_entropy", "regulariser"]
    found = packets.packets_of(held)
    assert found["up"]["frame"]["bytes"]["highest"] == len(frames["up"])
    assert found["up"]["frame"]["packets"]["highest"] == math.ceil(len(frames["up"]) / 222)
    assert found["down"]["frame"]["packets"]["lowest"] == 1
    assert packets.mqtt_bytes(12, frames["up"], "up") - len(frames["up"]) == 22 + 8 + 3 + 2 + 3 + 2 + 1


def test_without_the_images_packets_are_skipped_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(packets, "UNPACK", tmp_path / "unpack.py")
    file = tmp_path / "record.json"
    assert main(["--only", "packets", "--json", str(file)]) == 0
    assert "packets: CIFAR-100 is missing" in capsys.readouterr().out
    assert json.loads(file.read_text())["packets"]["environment"]["cpu_count"]


def test_a_value_above_its_limit_gives_status_1_and_other_parts_of_the_record_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def part(growth: int) -> Part:
        figures = {"resident_bytes_after_round": {100: 10**8}, "growth_bytes": growth, "limit_bytes": 2_000_000}
        return Part(lambda _: {**figures, "bytes_per_round": growth / 900}, command._memory_rows, ())

    file = tmp_path / "record.json"
    file.write_text('{"members": {"cases": []}}')
    for growth, status in ((1_000_000, 0), (3_000_000, 1)):
        monkeypatch.setattr(command, "PARTS", {**PARTS, "memory": part(growth)})
        assert main(["--only", "memory", "--json", str(file), "--seed", "5"]) == status
    assert "missed" in capsys.readouterr().out
    kept = json.loads(file.read_text())
    assert kept["members"] == {"cases": []}
    assert (kept["memory"]["growth_bytes"], kept["memory"]["seed"]) == (3_000_000, 5)


def test_each_limit_of_a_comparison_is_checked() -> None:
    ways = {"up": 100.0, "down": 200.0}
    one: dict[str, Any] = {
        **dict.fromkeys(("frame_bytes", "socket_bytes", "bytes_to_join", "idle_bytes_per_minute"), ways),
        "bytes_beside_frames": 120, "idle_bytes_per_day": 3456, "seconds_per_round": 1.0,
        "overhead_seconds_per_round": 0.5, "waiting": {"client_bytes": 1, "client_processes": 1},
        "peaks": dict.fromkeys(("client_bytes", "client_processes", "coordinator_bytes", "coordinator_processes"), 1),
    }  # fmt: skip
    limits = {"bytes_beside_frames": 130, "idle_bytes_per_day": 50_000}
    found = {"flower": one, "limits": limits, "simulation": {"seconds_per_round": 0.5}}

    def missed(**changed: float) -> list[str]:
        rows = list(PARTS["compare"].rows({**found, "mqtt": {**one, **changed}}))
        assert all(isinstance(row, Row) for row in rows)
        return [row.what for row in rows if row.fails]

    assert missed() == []
    assert missed(bytes_beside_frames=131) == ["socket without frames, bytes"]
    assert missed(idle_bytes_per_day=50_001) == ["an idle day"]


@pytest.mark.mqtt
def test_light_members_take_part_in_rounds_of_the_real_coordinator() -> None:
    from benchmarks.transports.members import measure_memory

    found = measure_memory(3, 4, seed=0)
    assert found["median_seconds"] < 5
    assert list(found["resident_bytes_after_round"]) == [1, 2, 3, 4]
    assert min(found["resident_bytes_after_round"].values()) > 10_000_000


@pytest.mark.mqtt
def test_a_light_member_answers_with_its_own_number_and_the_round_that_was_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from benchmarks.transports.light_member import LightMember

    said: list[bytes] = []
    member = LightMember.__new__(LightMember)
    member.__dict__.update(client=4, is_over=False, _bodies={Kind.UPDATE: b"body"}, _counts={"up": 0, "down": 0})
    monkeypatch.setattr(member, "_say", said.append, raising=False)
    digest = bytes(range(16))
    member.hear(to_json(terms=json.dumps({"digest": digest.hex(), "federation": "f"})))
    member.hear(pack(Header(Kind.TRAIN, 9, 4, digest), b""))
    assert json.loads(said[0])["client-id"] == 4
    frame, counts = split_counts(said[1])
    header, body = unpack(frame, digest)
    assert (header.kind, header.round_number, header.client, bytes(body)) == (Kind.UPDATE, 9, 4, b"body")
    assert counts["socket-down"] > 0
    member.hear(to_json(over="f"))
    assert member.is_over
