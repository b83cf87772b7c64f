"""Checks of `tinyproto serve` before it touches a run folder."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("flwr")

from support_cli import in_process, tree
from support_federation import CONFIG, free_port
from support_members import TOKEN
from tinyproto.cli import serve as serve_verb
from tinyproto.cli.options import TransportName
from tinyproto.config import load_config
from tinyproto.errors import FederationError
from tinyproto.federation import processes as federation_processes
from tinyproto.federation.flower import host as flower_host
from tinyproto.federation.flower import processes
from tinyproto.federation.key_making import make_keys
from tinyproto.federation.keys import ServerKeys
from tinyproto.tracking.lock import alone_in

pytestmark = pytest.mark.flower


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """Keys, a config, and the run folder of a federation of it that was interrupted."""
    make_keys(tmp_path / "keys", 3, [])
    (tmp_path / "trial.yaml").write_text(CONFIG.format(rounds=3, quorum=0.5, deadline=60))
    folder = tmp_path / "runs" / "trial"
    folder.mkdir(parents=True)
    resolved = load_config(tmp_path / "trial.yaml", []).resolved()
    (folder / "config.yaml").write_text(yaml.safe_dump(resolved, sort_keys=False))
    (folder / "serve.json").write_text(json.dumps({"config": resolved, "federation": TOKEN}))
    (folder / "rounds.jsonl").write_text("{}\n")
    return tmp_path


class Serve:
    """The verb in this process, up to where Flower would be started."""

    def __init__(self, site: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.site, self.monkeypatch, self.capsys = site, monkeypatch, capsys
        self.registered: list[int] = []
        self.keys: ServerKeys | None = None  # those that the SuperLink gets
        self.listened: list[str] = []
        self.interrupted = False  # while keys are registered
        self.shown = ""
        serve = self

        class NoSuperLink:
            def __init__(self, folder: Path, keys: ServerKeys) -> None:
                serve.keys = keys

            def stop(self) -> None:
                pass

            wait_until_up = stop

            def register(self) -> None:
                assert serve.keys is not None
                serve.registered = list(serve.keys.clients)
                if serve.interrupted:
                    signal.raise_signal(signal.SIGTERM)
                raise FederationError("Flower would be started here")

        monkeypatch.setattr(flower_host, "SuperLink", NoSuperLink)
        listening = federation_processes.listening

        def noted(host: str, port: int) -> socket.socket:
            self.listened.append(f"{host}:{port}")
            return listening(host, port)

        monkeypatch.setattr(flower_host, "listening", noted)

    def __call__(self, *arguments: str, port: int | None = None) -> str:
        return self.plain(*arguments, "--listen", f"127.0.0.1:{port or free_port()}")

    def plain(self, *arguments: str) -> str:
        """Without an address of its own; what it says."""
        assert in_process(self.monkeypatch, self.site, "serve", *arguments) == 2
        self.shown, said = self.capsys.readouterr()
        return said

    def refused(self, words: str, *arguments: str, port: int | None = None) -> None:
        """In one sentence, and nothing in the run folder has changed."""
        before = tree(self.site / "runs" / "trial")
        said = self(*arguments, port=port)
        assert words in said
        assert len(said.splitlines()) == 1
        assert tree(self.site / "runs" / "trial") == before


@pytest.fixture
def serve(site: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Serve:
    return Serve(site, monkeypatch, capsys)


@pytest.mark.parametrize("arguments", [("trial.yaml", "--overwrite"), ("runs/trial", "--resume")])
def test_nothing_is_touched_where_the_port_is_taken(arguments: tuple[str, ...], serve: Serve) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        serve.refused("cannot listen on", *arguments, port=int(taken.getsockname()[1]))


@pytest.mark.parametrize("arguments", [("trial.yaml", "--overwrite"), ("runs/trial", "--resume")])
def test_a_folder_that_is_being_served_is_nobody_elses(arguments: tuple[str, ...], serve: Serve) -> None:
    with alone_in(serve.site / "runs" / "trial"):
        serve.refused("another process is running in", *arguments)
    assert "Flower would be started here" in serve(*arguments)


@pytest.mark.parametrize("arguments", [("trial.yaml",), ("runs/trial", "train.rounds=9")])
def test_a_federation_that_goes_on_is_named_by_its_folder_and_takes_no_changes(
    arguments: tuple[str, ...], serve: Serve
) -> None:
    serve.refused("--resume takes a run folder and no overrides", *arguments, "--resume")


def test_without_a_key_a_client_is_shut_out_of_what_goes_on_and_nothing_new_begins(serve: Serve) -> None:
    keys = serve.site / "keys" / "server" / "clients"
    (keys / "2.pub").unlink()
    serve.refused("has no key for client 2", "trial.yaml", "--overwrite")
    assert "Flower would be started here" in serve("runs/trial", "--resume")
    assert "keys has no key for client 2: excluded" in serve.shown
    assert serve.registered == [0, 1]
    told: dict[str, Any] = json.loads((serve.site / "runs" / "trial" / "serve.json").read_text())
    assert sorted(told["keys"]) == ["0", "1"]
    for client in (0, 1):
        (keys / f"{client}.pub").unlink()
    serve.refused("has no key for client 0", "runs/trial", "--resume")


def serve_file(site: Path) -> dict[str, Any]:
    told: dict[str, Any] = json.loads((site / "runs" / "trial" / "serve.json").read_text())
    return told


def test_what_goes_on_takes_the_address_and_the_keys_of_before(serve: Serve) -> None:
    make_keys(serve.site / "other", 3, [])
    address = f"127.0.0.1:{free_port()}"
    assert "Flower would be started here" in serve.plain(
        "runs/trial", "--resume", "--keys", "other", "--listen", address
    )
    assert "Flower would be started here" in serve.plain("runs/trial", "--resume")
    assert serve.listened == [address] * 2
    assert serve.keys == ServerKeys.open(serve.site / "other")
    other = f"127.0.0.1:{free_port()}"
    assert "Flower would be started here" in serve.plain("runs/trial", "--resume", "--listen", other)
    assert (serve.listened[-1], serve_file(serve.site)["listen"]) == (other, other)
    (serve.site / "other").rename(serve.site / "moved")
    serve.refused("the folder of the keys of runs/trial, is missing; name it with --keys", "runs/trial", "--resume")
    assert "Flower would be started here" in serve("runs/trial", "--resume", "--keys", "moved")
    assert serve_file(serve.site)["key_folder"] == str(serve.site / "moved")


def test_a_federation_of_before_goes_on_with_what_is_named_or_the_defaults(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not {"listen", "key_folder"} & set(serve_file(serve.site))
    default = f"127.0.0.1:{free_port()}"
    monkeypatch.setitem(serve_verb.LISTEN, TransportName.FLOWER, default)
    assert "Flower would be started here" in serve.plain("runs/trial", "--resume")
    assert serve.listened == [default]
    assert serve.keys is not None
    assert serve.keys.folder == Path("keys")


def test_another_federations_keys_do_not_shut_its_clients_out(serve: Serve) -> None:
    make_keys(serve.site / "other", 2, [])
    assert "Flower would be started here" in serve("runs/trial", "--resume")
    serve.registered = []
    serve.refused(
        "other/server/clients/0.pub is not the key of client 0 in runs/trial",
        "runs/trial", "--resume", "--keys", "other",
    )  # fmt: skip
    assert serve.registered == []


def test_a_new_key_is_taken_once_the_old_one_was_taken_back(serve: Serve) -> None:
    assert "Flower would be started here" in serve("runs/trial", "--resume")
    (serve.site / "keys" / "server" / "clients" / "2.pub").unlink()
    make_keys(serve.site / "keys", 3, [])
    serve.refused("--resume once without this client's key", "runs/trial", "--resume")
    (serve.site / "keys" / "server" / "clients" / "2.pub").unlink()
    assert "Flower would be started here" in serve("runs/trial", "--resume")
    make_keys(serve.site / "keys", 3, [])
    assert "Flower would be started here" in serve("runs/trial", "--resume")
    assert serve.registered == [0, 1, 2]


def test_where_nothing_was_served_there_is_nothing_to_go_on_with(serve: Serve) -> None:
    file = serve.site / "runs" / "trial" / "serve.json"
    file.write_text("{torn")
    serve.refused("serve.json: ", "runs/trial", "--resume")
    file.unlink()
    serve.refused("runs/trial holds no federation to resume", "runs/trial", "--resume")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("trial.yaml", "--keys", "nowhere"), "ca.crt is missing; `tinyproto serve --init`"),
        (("trial.yaml", "--listen", "8443"), "--listen: expected HOST:PORT"),
        (
            ("trial.yaml", "--listen", "0.0.0.0:99999"),
            "--listen: port 99999 is out of range; a port is",
        ),
        (("runs/nothing", "--resume"), "runs/nothing is not a run folder: it does not exist"),
        (("trial.yaml", "--runs", "trial.yaml"), "--runs: trial.yaml is a file"),
    ],
)
def test_a_mistake_on_the_command_line_is_one_sentence(arguments: tuple[str, ...], words: str, serve: Serve) -> None:
    said = serve.plain(*arguments)
    assert words in said
    assert len(said.splitlines()) == 1


def spoil_public(keys: Path) -> None:
    (keys / "server" / "clients" / "1.pub").write_text("x\n")


def same_public(keys: Path) -> None:
    clients = keys / "server" / "clients"
    (clients / "2.pub").write_bytes((clients / "0.pub").read_bytes())


def other_kind(keys: Path) -> None:
    (keys / "server" / "clients" / "1.pub").write_text(
        "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGFD9Mu6NUN8mtiGfnxWWbVGcjlOqwzgZbXMmSgC4HGw\n"
    )


def other_key(keys: Path) -> None:
    make_keys(keys / "more", 1, [])
    (keys / "server" / "server.key").write_bytes((keys / "more" / "server" / "server.key").read_bytes())


def other_authority(keys: Path) -> None:
    make_keys(keys / "more", 1, [])
    (keys / "server" / "ca.crt").write_bytes((keys / "more" / "server" / "ca.crt").read_bytes())


def garbage(name: str) -> Callable[[Path], None]:
    def spoil(keys: Path) -> None:
        (keys / "server" / name).write_text("x\n")

    return spoil


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (spoil_public, "1.pub is not a valid public key"),
        (same_public, "2.pub are the same key; each client needs its own"),
        (other_kind, "1.pub is not an ECDSA key"),
        (other_key, "server.key is not the key of"),
        (other_authority, "is not trusted under "),
        (garbage("ca.crt"), "ca.crt is not a valid certificate"),
        (garbage("server.crt"), "server.crt is not a valid certificate"),
        (garbage("server.key"), "server.key is not a valid private key"),
    ],
)
def test_keys_are_looked_at_before_any_run_folder(spoil: Callable[[Path], None], words: str, serve: Serve) -> None:
    spoil(serve.site / "keys")
    serve.refused(words, "trial.yaml", "--overwrite")
    serve.refused(words, "runs/trial", "--resume")
    assert words in serve("trial.yaml", "name=new")
    assert sorted(path.name for path in (serve.site / "runs").iterdir() if path.is_dir()) == ["trial"]


def test_where_flower_does_not_start_a_new_run_is_removed(serve: Serve) -> None:
    assert "Flower would be started here" in serve("trial.yaml", "name=new")
    assert serve.registered == [0, 1, 2]
    assert sorted(path.name for path in (serve.site / "runs").iterdir() if path.is_dir()) == ["trial"]


def test_what_flower_fails_at_is_no_fault_of_the_run_folder(serve: Serve) -> None:
    def refused(*_: object) -> None:
        raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))

    serve.monkeypatch.setattr(flower_host, "SuperLink", refused)
    with pytest.raises(ConnectionRefusedError):
        serve("runs/trial", "--resume")


@pytest.mark.parametrize("name", ["flower", "flower/app"])
def test_a_folder_of_flower_s_that_cannot_be_made_is_named(
    name: str, site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = site / "runs" / "trial"
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text("a file")
    monkeypatch.setattr(processes, "Leashed", lambda *_: None)
    with pytest.raises(FederationError, match=f"cannot write to {folder / name}: File exists"):
        processes.SuperLink(folder / "flower", ServerKeys.open(site / "keys")).submit(folder)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("trial.yaml", "--overwrite"), "interrupted; nothing has started"),
        (("runs/trial", "--resume"), "interrupted; resume with: tinyproto serve runs/trial --resume"),
    ],
)
def test_a_ctrl_c_while_keys_are_registered_ends_it_there(
    arguments: tuple[str, ...], words: str, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve.interrupted = True
    before = tree(serve.site / "runs" / "trial")
    listen = f"127.0.0.1:{free_port()}"
    assert in_process(monkeypatch, serve.site, "serve", *arguments, "--listen", listen) == 130
    shown, said = serve.capsys.readouterr()
    assert words in said
    assert "listening at" not in shown
    after = tree(serve.site / "runs" / "trial")
    assert {name: after[name] for name in before if name != "serve.json"} == {
        name: before[name] for name in before if name != "serve.json"
    }
    assert set(after) == set(before)


@pytest.mark.parametrize(
    ("listen", "words"),
    [
        ("nohost.invalid:8450", "cannot listen on nohost.invalid:8450: the host name nohost.invalid is unknown"),
        ("192.0.2.1:8450", "it is not an address of this machine; 0.0.0.0 listens"),
    ],
)
def test_an_address_that_is_not_here_is_named(listen: str, words: str, serve: Serve) -> None:
    before = tree(serve.site / "runs" / "trial")
    said = serve.plain("trial.yaml", "--overwrite", "--listen", listen)
    assert words in said
    assert "another federation" not in said
    assert tree(serve.site / "runs" / "trial") == before


def test_no_lock_is_left_behind(serve: Serve) -> None:
    folder = serve.site / "runs" / "trial"
    with alone_in(folder):
        assert (folder.parent / ".trial.lock").is_file()
        serve.refused("another process is running", "runs/trial", "--resume")
        serve.refused("another process is running", "runs/trial", "--resume")  # the first took nothing away
    assert "Flower would be started here" in serve("trial.yaml", "name=new")
    assert [path.name for path in folder.parent.iterdir()] == ["trial"]
