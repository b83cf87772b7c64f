"""A federation over a broker that `serve` did not start, with the rights of docs/how-to/transports.md."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support_cli import jsonl
from support_federation import NETWORKS, assert_equal_to_the_simulation, eventually
from support_real_mqtt import RealMqtt, Start, Stranger
from tinyproto.cli.options import PREFIX
from tinyproto.federation.key_making import make_keys
from tinyproto.federation.mqtt.broker import mosquitto
from tinyproto.federation.mqtt.messages import Topics, to_json
from tinyproto.federation.processes import free_port

pytestmark = [
    pytest.mark.mqtt,
    pytest.mark.skipif(shutil.which("mosquitto_passwd") is None, reason="mosquitto_passwd is not installed"),
]

TOPICS = Topics(PREFIX)
CONFIG = """\
user root
allow_anonymous false
password_file {folder}/passwords
acl_file {folder}/rights
listener {port} 127.0.0.1
cafile {server}/ca.crt
certfile {server}/server.crt
keyfile {server}/server.key
"""


def rights() -> str:
    lines = ["user coordinator"]
    for client in range(3):
        lines += [f"topic write {TOPICS.down(client)}", f"topic read {TOPICS.up(client)}"]
    for client in range(3):
        lines += [f"user device{client}", f"topic write {TOPICS.up(client)}", f"topic read {TOPICS.down(client)}"]
    return "\n".join([*lines, "user owner", "topic readwrite #", ""])


@contextmanager
def other_broker(folder: Path) -> Iterator[tuple[int, Path]]:
    """A broker with an authority, users and passwords of its own; yield its port and the authority's certificate."""
    folder.mkdir()
    make_keys(folder / "keys", 1, [])
    (folder / "passwords").touch()
    for user in ("coordinator", "device0", "device1", "device2", "owner"):
        subprocess.run(["mosquitto_passwd", "-b", str(folder / "passwords"), user, f"of {user}"], check=True)
    (folder / "rights").write_text(rights())
    port, server = free_port(), folder / "keys" / "server"
    (folder / "broker.conf").write_text(CONFIG.format(folder=folder, port=port, server=server))
    with (folder / "log").open("w") as log:
        process = subprocess.Popen([mosquitto(), "-c", str(folder / "broker.conf")], stdout=log, stderr=log)
    try:
        yield port, server / "ca.crt"
    finally:
        process.terminate()
        process.wait(10)


def test_users_with_a_password_federate_and_its_owner_forges_nothing(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    federation: RealMqtt = start(rounds=3)
    with other_broker(tmp_path / "theirs") as (port, authority):
        reached = ("--broker", f"localhost:{port}", "--broker-ca", str(authority))

        def log_in(user: str) -> None:
            monkeypatch.setenv("TINYPROTO_MQTT_USERNAME", user)
            monkeypatch.setenv("TINYPROTO_MQTT_PASSWORD", f"of {user}")

        log_in("coordinator")
        serve = federation._start("serve", "serve", str(federation.config), *reached)
        federation.wait_for("waiting", 60)
        owner = Stranger(port, authority)
        owner.client.username_pw_set("owner", "of owner")
        with owner:
            assert owner.answer("connect") == "Success"
            for client in range(3):
                owner.client.publish(TOPICS.up(client), to_json(here="forged", nonce="n"), qos=1)
            eventually(lambda: len(federation.events("refused")) == 3, 10, federation.tail())
            assert not federation.events("joined")
            joins = []
            for client, network in enumerate(NETWORKS):
                log_in(f"device{client}")
                joins.append(
                    federation._start(
                        f"join{client}", "join", *reached, "--client-id", str(client), "--model", network, "--share",
                        str(federation.config),
                    )
                )  # fmt: skip
            federation.wait_for("round", 90, round=1)
            for client in range(3):
                owner.client.publish(TOPICS.down(client), to_json(terms="forged"), qos=1)
                eventually(lambda: refusals_of(federation, client), 20, "the forged terms are refused")  # noqa: B023
            federation.assert_completes(serve, joins)
    assert all("authentication code is invalid" in event["reason"] for event in federation.events("refused"))
    assert_equal_to_the_simulation(federation)


def refusals_of(federation: RealMqtt, client: int) -> list[str]:
    """Return what a client has refused for its authentication code."""
    events = jsonl(federation.client_folder(client) / "progress.jsonl")
    told = [event["reason"] for event in events if event["event"] == "refused"]
    return [reason for reason in told if "authentication code is invalid" in reason]


def test_a_wrong_password_and_missing_rights_are_told(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    federation: RealMqtt = start(rounds=1)
    monkeypatch.setenv("TINYPROTO_MQTT_USERNAME", "device0")
    with other_broker(tmp_path / "theirs") as (port, authority):
        common = (
            "join", "--broker", f"localhost:{port}", "--client-id", "0", "--model", "small_cnn_a", "--share",
            str(federation.config),
        )  # fmt: skip
        trusted = ("--broker-ca", str(authority))
        for number, (password, arguments, words) in enumerate([
            ("wrong", trusted, "refuses the connection: not authorized; check TINYPROTO_MQTT_USERNAME and"),
            ("of device0", (*trusted, "--topic", "site/"), "does not let this user send messages for this client"),
            ("of device0", (), f"the certificate of the broker localhost:{port} is not from the authority in"),
        ]):  # fmt: skip
            monkeypatch.setenv("TINYPROTO_MQTT_PASSWORD", password)
            join = federation._start(f"join{number}", *common, *arguments)
            assert join.wait(60) == 2, join.said
            assert words in join.said
