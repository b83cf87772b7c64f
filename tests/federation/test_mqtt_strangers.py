"""What a certificate may do at the coordinator's broker, and what becomes of those who try more."""

from __future__ import annotations

import datetime
import os
import resource
import shutil
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support_federation import eventually
from support_real_mqtt import LARGEST_FRAME, Stranger, own_broker, resident_bytes
from tinyproto.errors import FederationError
from tinyproto.federation import certificates
from tinyproto.federation.device_keys import DeviceKeys
from tinyproto.federation.key_making import make_keys
from tinyproto.federation.keys import ServerKeys
from tinyproto.federation.mqtt.broker import LARGEST_TERMS, MOST_WAITING, OVERHEAD, OwnBroker, mosquitto
from tinyproto.federation.mqtt.connection import LEAVING_SECONDS, UNANSWERED_SECONDS, Connection
from tinyproto.federation.mqtt.tls import Broker
from tinyproto.federation.processes import free_port

pytestmark = pytest.mark.mqtt

GRANTED, SUCCESS, DENIED = "Granted QoS 1", "Success", "Not authorized"


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    make_keys(tmp_path / "keys", 2, [])
    return tmp_path / "keys"


@pytest.fixture
def broker(tmp_path: Path, keys: Path) -> Iterator[OwnBroker]:
    with own_broker(tmp_path, ServerKeys.open(keys)) as made:
        yield made


def own(broker: OwnBroker, keys: Path, client: int, **more: str) -> Stranger:
    return Stranger.with_keys(broker.address[1], keys / f"client-{client}", **more)


def coordinator(broker: OwnBroker, keys: Path) -> Stranger:
    server = keys / "server"
    return Stranger(broker.address[1], server / "ca.crt", server / "coordinator.crt", server / "coordinator.key")


def at(device: DeviceKeys, broker: OwnBroker) -> Broker:
    return Broker(*broker.address, device.authority, device.certificate, device.key)


def processes_of(broker: OwnBroker) -> list[int]:
    """Return the broker's process, which its config names."""
    config = str(broker.folder / "mosquitto.conf")
    lines = {int(one.parent.name): one.read_bytes().split(b"\0") for one in Path("/proc").glob("[0-9]*/cmdline")}
    return [process for process, line in lines.items() if line[0] == mosquitto().encode() and config.encode() in line]


def connect(keys: Path, client: int, broker: OwnBroker, seconds: float = 10) -> Connection:
    """Connect as `join` does."""
    device = DeviceKeys.open(keys / f"client-{client}", client)
    made = Connection(at(device, broker), f"client-{client}", [f"d{client}", "a"])
    give_up = time.monotonic() + seconds
    while not made.is_open and time.monotonic() < give_up:
        made.step(0.1)
    return made


def test_a_client_writes_its_own_topic_and_reads_its_own_and_the_shared_one(broker: OwnBroker, keys: Path) -> None:
    with own(broker, keys, 1) as client, coordinator(broker, keys) as reader:
        assert reader.subscribe("u0", "u1") == [GRANTED, GRANTED]
        assert client.subscribe("d1", "a") == [GRANTED, GRANTED]
        assert client.publish("u1", b"one") == SUCCESS
        assert [reader.publish(topic, b"down") for topic in ("d1", "a", "d0")] == [
            SUCCESS,
            SUCCESS,
            "No matching subscribers",
        ]
        client.wait_until_heard(2)
        assert client.heard == [("d1", b"down"), ("a", b"down")]
        assert reader.heard == [("u1", b"one")]


def test_a_user_without_a_name_as_in_a_container_starts_a_broker(
    tmp_path: Path, keys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 4_000_000)
    with own_broker(tmp_path, ServerKeys.open(keys)) as broker, own(broker, keys, 1) as client:
        assert client.answer("connect") == SUCCESS


def test_a_system_that_allows_fewer_files_than_it_says_starts_a_broker(
    tmp_path: Path, keys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:  # as macOS, whose limit is "unlimited"
        raise ValueError("current limit exceeds maximum limit")

    monkeypatch.setattr(resource, "setrlimit", refuse)
    with own_broker(tmp_path, ServerKeys.open(keys)) as broker, own(broker, keys, 1) as client:
        assert client.answer("connect") == SUCCESS


def test_sessions_that_a_power_cut_damaged_are_set_aside(tmp_path: Path, keys: Path) -> None:
    (tmp_path / "mqtt").mkdir()
    (tmp_path / "mqtt" / "mosquitto.db").write_bytes(b"damaged")
    with own_broker(tmp_path, ServerKeys.open(keys)) as broker, own(broker, keys, 1) as client:
        assert client.answer("connect") == SUCCESS
    assert (tmp_path / "mqtt" / "mosquitto.damaged").read_bytes() == b"damaged"


def test_localhost_is_one_address_since_a_container_may_lack_the_other(tmp_path: Path, keys: Path) -> None:
    port = free_port()
    broker = OwnBroker(tmp_path / "mqtt", ServerKeys.open(keys), ("localhost", port), LARGEST_FRAME)
    broker.stop()
    assert broker.address == ("127.0.0.1", port)
    assert f"listener {port} 127.0.0.1\n" in (tmp_path / "mqtt" / "mosquitto.conf").read_text()


def test_a_broker_that_does_not_start_says_why(tmp_path: Path, keys: Path) -> None:
    with pytest.raises(FederationError, match=r"did not start: Error: Cannot assign requested address$"):
        OwnBroker(tmp_path / "mqtt", ServerKeys.open(keys), ("198.51.100.1", free_port()), LARGEST_FRAME)


def test_a_client_can_neither_write_nor_read_another_topic(broker: OwnBroker, keys: Path) -> None:
    with own(broker, keys, 1) as client, own(broker, keys, 0) as other, coordinator(broker, keys) as reader:
        reader.subscribe("u0", "u1")
        client.subscribe("d1", "u0", "u1", "d0", "#", "+", "$SYS/#", "$share/group/d0")  # granted, but
        for topic in ("u0", "d0", "d1", "a", "x", "$SYS/broker"):
            assert client.publish(topic, b"forged") == DENIED
        assert other.publish("u0", b"of 0") == SUCCESS
        assert client.publish("u1", b"of 1") == SUCCESS
        reader.publish("d0", b"for 0")
        reader.publish("d1", b"for 1")
        reader.wait_until_heard(2)
        client.wait_until_heard(1)
        assert reader.heard == [("u0", b"of 0"), ("u1", b"of 1")]
        assert set(client.heard) == {("d1", b"for 1")}  # once for each subscription that matches


def test_a_certificate_does_not_take_over_the_session_of_another_client(broker: OwnBroker, keys: Path) -> None:
    first, heard = connect(keys, 0, broker), list[bytes]()
    first.step(0.0)
    (name,) = (name for client, name in ServerKeys.open(keys).client_names().items() if client == 0)
    for identity in ("client-0", name, "coordinator"):
        with own(broker, keys, 1, identity=identity) as client:
            assert client.answer("connect") == SUCCESS
            client.subscribe("d0")
            with coordinator(broker, keys) as writer:
                assert writer.publish("d0", identity.encode()) == SUCCESS
            heard += [happened.payload for _ in range(3) for happened in first.step(0.2)]
            assert first.is_open
            assert client.heard == []
    first.close(keep_session=False)
    assert heard == [b"client-0", name.encode(), b"coordinator"]


def test_two_processes_with_one_client_s_keys_do_not_push_each_other_out_without_end(
    broker: OwnBroker, keys: Path
) -> None:
    twins, lost = [connect(keys, 0, broker), connect(keys, 0, broker)], list[str]()
    for _ in range(60):
        for twin in twins:
            lost += [happened.lost for happened in twin.step(0.05) if happened.lost is not None]
    assert lost[0] == "the connection was lost"
    assert lost[-1] == "the connection was lost; this repeats: another process may have the same keys"
    assert len(lost) < 12  # with the first pause only, there would be some 20
    for twin in twins:
        twin.close(keep_session=False)


def test_a_client_that_is_silent_has_left_after_one_and_a_half_keep_alives(broker: OwnBroker, keys: Path) -> None:
    device = DeviceKeys.open(keys / "client-0", 0)
    with coordinator(broker, keys) as reader:
        reader.subscribe("u0")
        silent = Connection(at(device, broker), "client-0", ["d0", "a"], will=("u0", b"gone"), keep_alive=4)
        while not silent.is_open:
            silent.step(0.1)
        assert silent._socket is not None
        assert silent._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 1000 * UNANSWERED_SECONDS
        last = time.monotonic()  # from now on it has no power: not even TCP answers for it, but there is no will yet
        eventually(lambda: reader.heard, 30, "its will")
        assert reader.heard == [("u0", b"gone")]
        waited = time.monotonic() - last
        assert 4 + LEAVING_SECONDS < waited < 1.5 * 4 + LEAVING_SECONDS + 12  # Mosquitto looks every 5 s


def test_a_flood_for_a_coordinator_that_is_away_fills_the_broker_s_memory_only_so_far(
    broker: OwnBroker, keys: Path
) -> None:
    server = keys / "server"
    theirs = Broker(*broker.address, server / "ca.crt", server / "coordinator.crt", server / "coordinator.key")
    away = Connection(theirs, "coordinator", ["u0", "u1"])
    while not away.is_open:
        away.step(0.1)
    away.close(keep_session=True)
    payload = bytes(200_000)
    with own(broker, keys, 1) as client:
        for _ in range(2 * MOST_WAITING // len(payload)):
            assert client.publish("u1", payload) in (SUCCESS, "Quota exceeded")
    (process,) = processes_of(broker)
    assert MOST_WAITING / 2 < resident_bytes(process) < 1.5 * MOST_WAITING


def test_a_coordinator_is_sent_nothing_larger_than_a_frame_whatever_the_broker_lets_pass(
    broker: OwnBroker, keys: Path
) -> None:
    server = keys / "server"
    theirs = Broker(*broker.address, server / "ca.crt", server / "coordinator.crt", server / "coordinator.key")
    limited, heard = Connection(theirs, "coordinator", ["u1"], begin_anew=True), list[int]()
    limited.limit(LARGEST_FRAME)
    while not limited.is_open:
        limited.step(0.1)
    with own(broker, keys, 1) as client:
        for size in (LARGEST_FRAME + 1, 100_000, LARGEST_FRAME - 100):
            client.publish("u1", bytes(size))
        for _ in range(10):
            heard += [len(happened.payload) for happened in limited.step(0.1) if happened.topic == "u1"]
    assert heard == [LARGEST_FRAME - 100]
    assert limited.is_open
    limited.close(keep_session=False)


def test_a_message_that_is_too_large_ends_the_connection_and_reaches_nobody(broker: OwnBroker, keys: Path) -> None:
    most = max(LARGEST_FRAME, LARGEST_TERMS) + OVERHEAD
    with coordinator(broker, keys) as reader:
        reader.subscribe("u0", "u1")
        with own(broker, keys, 1) as client:
            client.answer("connect")
            client.client.publish("u1", bytes(most + 1), qos=1)
            assert client.answer("disconnect") in ("Packet too large", "Unspecified error")
        with own(broker, keys, 1) as client:
            assert client.publish("u1", bytes(most - 100)) == SUCCESS
        reader.wait_until_heard(1)
        assert [len(payload) for _, payload in reader.heard] == [most - 100]


def test_without_a_certificate_or_with_one_of_another_authority_nobody_connects(
    broker: OwnBroker, keys: Path, tmp_path: Path
) -> None:
    make_keys(tmp_path / "others", 2, [])
    theirs = tmp_path / "others" / "client-1"
    ours = keys / "client-1" / "ca.crt"
    for files in ((None, None), (theirs / "client.crt", theirs / "tls.key")):
        stranger = Stranger(broker.address[1], ours, *files)
        with stranger:
            stranger.answer("disconnect")
            assert "connect" not in stranger.answers
    shutil.copy(ours, theirs / "ca.crt")
    with pytest.raises(FederationError, match="the broker does not know the authority of this client's certificate"):
        connect(tmp_path / "others", 1, broker)


def test_an_authority_that_the_client_does_not_know_is_told(broker: OwnBroker, keys: Path, tmp_path: Path) -> None:
    make_keys(tmp_path / "others", 2, [])
    with pytest.raises(FederationError, match=r"127\.0\.0\.1:\d+ is not in this federation: .* authority in .*ca\.crt"):
        connect(tmp_path / "others", 1, broker)


def sign_anew(keys: Path, client: int, by: datetime.timedelta, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a client's certificate again at another time."""
    real = certificates._now
    (keys / f"client-{client}" / "client.crt").unlink()
    with monkeypatch.context() as patch:
        patch.setattr(certificates, "_now", lambda: real() + by)
        patch.setattr(certificates, "CLIENT_DAYS", 1)
        make_keys(keys, 2, [])


def test_an_expired_certificate_is_refused_and_the_client_says_how_to_renew_it(
    broker: OwnBroker, keys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sign_anew(keys, 1, -datetime.timedelta(days=2), monkeypatch)
    with pytest.raises(FederationError, match=r"this client's certificate has expired; .*serve --init"):
        connect(keys, 1, broker)
    make_keys(keys, 2, [])
    renewed = connect(keys, 1, broker)
    assert renewed.is_open
    renewed.close(keep_session=False)


def test_the_certificate_of_a_replaced_key_may_do_nothing_any_more(tmp_path: Path, keys: Path) -> None:
    shutil.copytree(keys / "client-1", tmp_path / "lost")
    (keys / "server" / "clients" / "1.pub").unlink()
    make_keys(keys, 2, [])
    with own_broker(tmp_path, ServerKeys.open(keys)) as broker:
        with Stranger.with_keys(broker.address[1], tmp_path / "lost") as thief, coordinator(broker, keys) as reader:
            reader.subscribe("u0", "u1")
            thief.subscribe("d1", "a")
            reader.publish("d1", b"secret")
            reader.publish("a", b"secret")
            assert thief.publish("u1", b"forged") == DENIED
            with own(broker, keys, 1) as client:
                assert client.publish("u1", b"own") == SUCCESS
            reader.wait_until_heard(1)
            assert reader.heard == [("u1", b"own")]
            assert thief.heard == []
        (tmp_path / "lost").rename(tmp_path / "client-1")
        refused = connect(tmp_path, 1, broker)
        refused.publish("u1", b"here")  # the first thing that a listener does
        with pytest.raises(FederationError, match=r"does not let this certificate send messages .*; use the keys of"):
            refused.step(5.0)


@pytest.mark.parametrize("minutes", [-59, 59])
def test_a_clock_that_is_almost_an_hour_off_makes_no_difference(
    minutes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = keys_made_at(datetime.timedelta(minutes=minutes), tmp_path, monkeypatch)
    with own_broker(tmp_path, ServerKeys.open(keys)) as broker:
        made = connect(keys, 0, broker)
        assert made.is_open
        made.close(keep_session=False)


def test_a_clock_that_is_two_hours_off_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = keys_made_at(datetime.timedelta(hours=2), tmp_path, monkeypatch)
    with (
        own_broker(tmp_path, ServerKeys.open(keys)) as broker,
        pytest.raises(FederationError, match=r"is not valid now \(certificate is not yet valid\); check the clocks"),
    ):
        connect(keys, 0, broker)


def keys_made_at(later: datetime.timedelta, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keys of a coordinator whose clock differs from the client's."""
    real = certificates._now
    with monkeypatch.context() as patch:
        patch.setattr(certificates, "_now", lambda: real() + later)
        make_keys(folder / "keys", 1, [])
    return folder / "keys"
