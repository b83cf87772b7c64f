"""How `serve` and `join` over MQTT end: by a signal, or with a sentence before anything has started."""

from __future__ import annotations

import shutil
import signal
import socket

import pytest

from support_cli import called
from support_federation import eventually
from support_real_mqtt import BROKER, COORDINATOR, TRAINING, RealMqtt, Start
from tinyproto.federation.mqtt.connection import LEAVING_SECONDS

pytestmark = pytest.mark.mqtt


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGINT,
        *(pytest.param(number, marks=pytest.mark.mqtt_slow) for number in (signal.SIGTERM, signal.SIGKILL)),
    ],
    ids=["SIGINT", "SIGTERM", "SIGKILL"],
)
def test_nothing_is_left_running_however_serve_and_join_end(number: signal.Signals, start: Start) -> None:
    federation = start(rounds=2)
    serve, join = federation.serve(), federation.join(0)
    federation.wait_for("joined", 120, client=0)
    assert join.has(TRAINING)
    assert serve.has(BROKER)
    assert serve.has(COORDINATOR)
    status = -signal.SIGKILL if number is signal.SIGKILL else 130
    join.process.send_signal(number)
    assert join.wait(20) == status
    join.assert_nothing_left(10)
    federation.wait_for("left", LEAVING_SECONDS + 8 if number is signal.SIGKILL else 5, client=0)
    serve.process.send_signal(number)
    assert serve.wait(30) == status
    serve.assert_nothing_left(20)
    if number is not signal.SIGKILL:
        assert "run the same command to continue" in join.said
        assert "interrupted; resume with: tinyproto serve" in serve.said
    again = federation.serve("--resume")
    eventually(lambda: len(federation.events("started")) == 2, 90, again.said)


def serve_in_this_process(federation: RealMqtt, *place: str) -> str:
    """Return the one sentence with which `serve` ends."""
    place = place or ("--listen", f"127.0.0.1:{federation.port}")
    done = called("serve", "trial.yaml", "--transport", "mqtt", *place, cwd=federation.folder)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert not federation.run_folder.exists()
    return done.stderr


def test_a_port_in_use_is_told(start: Start) -> None:
    federation = start(rounds=1)
    with socket.create_server(("127.0.0.1", federation.port)):
        said = serve_in_this_process(federation)
    assert f"cannot listen on 127.0.0.1:{federation.port}: Address already in use" in said
    assert "--listen HOST:PORT" in said


def test_a_broker_that_is_not_installed_is_told(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    federation = start(rounds=1)
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    assert "--transport mqtt needs a broker: install Mosquitto" in serve_in_this_process(federation)


def test_another_broker_s_invalid_authority_and_user_are_told(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    federation = start(rounds=1)
    there = ("--broker", "localhost:1", "--broker-ca", "trial.yaml")
    assert "trial.yaml is not a valid certificate of an authority" in serve_in_this_process(federation, *there)
    for user in ("\udcff", 2**16 * "u"):
        monkeypatch.setenv("TINYPROTO_MQTT_USERNAME", user)
        said = serve_in_this_process(federation, *there[:2])
        assert "TINYPROTO_MQTT_USERNAME is no UTF-8 text of at most 65535 bytes" in said


def test_keys_of_an_earlier_release_are_told_on_either_machine(start: Start) -> None:
    federation = start(rounds=1)
    (federation.folder / "keys" / "server" / "coordinator.crt").unlink()
    assert "coordinator.crt is missing; " in serve_in_this_process(federation)
    for missing in ("client.crt", "tls.key", "mac.key"):
        (federation.folder / "keys" / "client-0" / missing).unlink()
    done = called(
        "join", "--server", federation.server, "--transport", "mqtt", "--client-id", "0", "--share", "trial.yaml",
        "--model", "small_cnn_a", cwd=federation.folder,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    assert "client.crt is missing; run `tinyproto serve --init` again and copy client-0 once more" in done.stderr
    assert done.stderr.count("\n") == 1
    done = called("serve", "--init", "keys", "--clients", "3", cwd=federation.folder)
    assert done.returncode == 0
    assert "keys/client-N has new files (client 0); for MQTT, copy them" in done.stdout
    assert (federation.folder / "keys" / "client-0" / "client.crt").is_file()
