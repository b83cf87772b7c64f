"""Options of `serve` and `join` that do not go together, and what `--resume` takes over from before."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

pytest.importorskip("cryptography")

from support_cli import called, tree
from support_federation import CONFIG
from support_members import TOKEN
from tinyproto import federation
from tinyproto.cli import serve as serve_verb
from tinyproto.cli.options import TransportName
from tinyproto.config import load_config
from tinyproto.errors import ConfigError
from tinyproto.federation.terms import MqttPlace, ServeFile

pytestmark = pytest.mark.mqtt

JOIN = ("join", "--client-id", "0", "--share", "trial.yaml", "--model", "small_cnn_a")
SERVE = ("serve", "trial.yaml")
INIT = ("serve", "--init", "keys", "--clients", "2")
OURS, OTHERS = ("--server", "h:1"), ("--broker", "h:1")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A config, where every transport counts as installed."""
    monkeypatch.setattr(federation, "require_transport", lambda _: None)
    (tmp_path / "trial.yaml").write_text(CONFIG.format(rounds=3, quorum=0.5, deadline=60))
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((*JOIN,), "give one of --server"),
        ((*JOIN, *OURS, *OTHERS), "give one of --server"),
        ((*JOIN, *OTHERS, "--offline", "trial.yaml"), "give one of --server"),
        ((*JOIN, *OURS, "--once"), "--once and --resident are for MQTT"),
        ((*JOIN, *OURS, "--resident", "--transport", "flower"), "--once and --resident are for MQTT"),
        ((*JOIN, *OTHERS, "--once", "--resident"), "--once ends after a round and --resident stays"),
        ((*JOIN, *OTHERS, "--transport", "flower"), "--broker is for MQTT; leave out --transport flower"),
        ((*JOIN, *OURS, "--broker-ca", "system"), "--broker-ca and --topic go with --broker"),
        ((*JOIN, *OURS, "--transport", "mqtt", "--topic", "a/"), "--broker-ca and --topic go with --broker"),
        *(
            ((*JOIN, *OTHERS, "--topic", t), "--topic is the start of topic names")
            for t in ("site/#", "\udcff", "a\nb")
        ),
        ((*JOIN, *OTHERS, "--broker-ca", "nowhere.crt"), "--broker-ca: nowhere.crt is missing; name a file"),
        ((*JOIN, "--offline", "trial.yaml", "--transport", "mqtt"), "--offline trains alone; leave out --transport"),
        ((*JOIN, "--offline", "trial.yaml", "--once"), "--offline trains alone; leave out"),
        ((*JOIN, "--offline", "trial.yaml", "--topic", "a/"), "--broker-ca and --topic go with --broker"),
        ((*SERVE, *OTHERS, "--listen", "127.0.0.1:1"), "leave out one of them"),
        ((*SERVE, *OTHERS, "--transport", "flower"), "--broker is for MQTT; leave out --transport flower"),
        ((*SERVE, "--topic", "a/"), "--broker-ca and --topic go with --broker"),
        ((*SERVE, *OTHERS, "--broker-ca", "nowhere.crt"), "--broker-ca: nowhere.crt is missing; name a file"),
        ((*SERVE, "--clients", "2"), "--clients and --host need --init"),
        ((*INIT, *OTHERS), "--init only makes certificates and keys; leave out CONFIG, --keys, --listen, --broker"),
        ((*INIT, "--broker-ca", "system"), "--broker-ca and --topic go with --broker"),
        ((*INIT, "--live"), "--init only makes certificates and keys"),
        (("serve", "--init", "keys"), "--init needs --clients"),
        (("serve",), "name a CONFIG"),
    ],
)
def test_options_that_contradict_each_other_are_one_sentence(
    arguments: tuple[str, ...], words: str, site: Path
) -> None:
    before = tree(site)
    done = called(*arguments, cwd=site)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert words in done.stderr
    assert tree(site) == before


def interrupted(site: Path, mqtt: MqttPlace) -> Path:
    """The run folder of a federation over MQTT that can be resumed."""
    folder = site / "runs" / "trial"
    folder.mkdir(parents=True)
    resolved = load_config(site / "trial.yaml", []).resolved()
    (folder / "config.yaml").write_text(yaml.safe_dump(resolved, sort_keys=False))
    (folder / "serve.json").write_text(
        json.dumps({"config": resolved, "federation": TOKEN, "listen": "[::1]:8883", "mqtt": mqtt.model_dump()})
    )
    return folder


def test_a_federation_at_another_broker_resumes_there_and_listens_nowhere(site: Path) -> None:
    folder = interrupted(site, MqttPlace(host="::1", port=8883, foreign=True))
    before = tree(folder)
    done = called("serve", "runs/trial", "--resume", "--listen", "127.0.0.1:8883", cwd=site)
    assert (done.returncode, done.stdout) == (2, "")
    assert "this federation uses a broker that runs already; leave out --listen" in done.stderr
    assert {name: content for name, content in tree(folder).items() if name in before} == before


def options(site: Path, **more: str) -> serve_verb.ServeOptions:
    return serve_verb.ServeOptions(site / "runs" / "trial", (), site / "runs", None, None, False, True, **more)  # type: ignore[arg-type]


def test_what_resumes_finds_the_broker_of_before_unless_another_is_named(site: Path) -> None:
    theirs = MqttPlace(host="::1", port=8883, foreign=True, authority="/ca.crt", prefix="site/")
    before = ServeFile.read(interrupted(site, theirs))
    assert serve_verb._other_broker(options(site), before) == theirs
    assert serve_verb._where("[::1]:8883", theirs) == "--broker [::1]:8883 --broker-ca /ca.crt --topic site/"
    named = serve_verb._other_broker(options(site, broker="[::2]:1", broker_ca="system"), before)
    assert named == MqttPlace(host="::2", port=1, foreign=True, authority="system", prefix="site/")
    moved = serve_verb._other_broker(options(site, broker="[::2]:1", topic="b/"), before)
    assert moved == MqttPlace(host="::2", port=1, foreign=True, authority="/ca.crt", prefix="b/")
    assert serve_verb._other_broker(options(site, broker="h:1"), None) == MqttPlace(
        host="h", port=1, foreign=True, prefix="tinyproto/"
    )
    assert serve_verb._transport(options(site), before) is TransportName.MQTT
    with pytest.raises(ConfigError, match="this federation runs over mqtt"):
        serve_verb._transport(options(site, transport=TransportName.FLOWER), before)  # type: ignore[arg-type]


def test_a_broker_of_our_own_is_named_by_its_port(site: Path) -> None:
    assert serve_verb._where("0.0.0.0:8883", None) == "--server HOST:8883"
    assert serve_verb._where("[::]:8884", None) == "--server HOST:8884"
