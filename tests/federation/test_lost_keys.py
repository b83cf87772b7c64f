"""Lost or damaged certificates and keys: what `serve --init` makes again, and which clients that excludes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from support_cli import in_process
from support_keys import shake_hands
from tinyproto.errors import FederationError
from tinyproto.federation import key_making
from tinyproto.federation.key_making import make_keys
from tinyproto.federation.keys import ClientKeys, ServerKeys

pytestmark = pytest.mark.flower


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    make_keys(tmp_path / "keys", 2, ["a"])
    return tmp_path / "keys"


@pytest.fixture
def field(keys: Path, tmp_path: Path) -> Path:
    """The ca.crt that a client has on a machine of its own."""
    return Path(shutil.copy(keys / "server" / "ca.crt", tmp_path / "field.crt"))


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


class Init:
    """The verb in this process: what it says, and its result."""

    def __init__(self, keys: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.keys, self.monkeypatch, self.capsys = keys, monkeypatch, capsys
        self.said = ""

    def __call__(self) -> dict[str, Any]:
        arguments = ("serve", "--init", "keys", "--clients", "2", "--json")
        assert in_process(self.monkeypatch, self.keys.parent, *arguments) == 0
        shown, self.said = self.capsys.readouterr()
        ServerKeys.open(self.keys).check()
        for client in (0, 1):
            if (self.keys / f"client-{client}").exists():
                own = ClientKeys.open(self.keys / f"client-{client}")
                assert own.authority.read_bytes() == (self.keys / "server" / "ca.crt").read_bytes()
        result: dict[str, Any] = json.loads(shown)
        return result


@pytest.fixture
def init(keys: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Init:
    return Init(keys, monkeypatch, capsys)


def test_the_first_authority_is_new_and_cuts_nobody_off(init: Init) -> None:
    shutil.rmtree(init.keys)
    assert init()["new_authority"] is True
    assert "ca.crt" not in init.said
    assert init()["new_authority"] is False


@pytest.mark.parametrize("name", ["client-0/ca.crt", "client-1/ca.crt"])
@pytest.mark.parametrize("signer", ["here", "away"])
@pytest.mark.parametrize("content", [None, "another federation's"])
def test_a_ca_crt_that_a_client_lost_is_put_back_as_it_was(
    content: str | None, name: str, signer: str, init: Init
) -> None:
    if signer == "away":
        shutil.rmtree(init.keys / "authority")
    before = contents(init.keys)
    (init.keys / name).unlink()
    if content is not None:
        (init.keys / name).write_text(content)
    result = init()
    assert contents(init.keys) == before
    assert (result["new_authority"], result["new_certificate"], result["new_clients"]) == (False, False, [])


def test_for_a_lost_ca_crt_the_same_key_signs_another_that_clients_in_the_field_need_not_have(
    init: Init, field: Path
) -> None:
    for client in (0, 1):
        shutil.rmtree(init.keys / f"client-{client}")
    (init.keys / "server" / "ca.crt").unlink()
    before = contents(init.keys)
    result = init()
    assert (result["new_authority"], result["new_certificate"]) == (True, False)
    assert "server/ca.crt is new; a client that no longer trusts this coordinator needs a copy" in init.said
    assert {path: path.read_bytes() for path in before} == before
    assert (init.keys / "server" / "ca.crt").read_bytes() != field.read_bytes()
    shake_hands(ServerKeys.open(init.keys), "localhost", field)
    make_keys(init.keys, 2, ["b"])
    shake_hands(ServerKeys.open(init.keys), "localhost", field)


def test_with_another_key_a_new_authority_is_not_made_in_silence(init: Init, field: Path) -> None:
    make_keys(init.keys.parent / "other", 1, [])
    shutil.copy(init.keys.parent / "other" / "authority" / "ca.key", init.keys / "authority" / "ca.key")
    (init.keys / "server" / "ca.crt").unlink()
    result = init()
    assert "server/ca.crt is new; a client that no longer trusts" in init.said
    assert (result["new_authority"], result["new_certificate"]) == (True, True)
    with pytest.raises(FederationError, match="not from the authority"):
        shake_hands(ServerKeys.open(init.keys), "localhost", field)


def test_without_certificate_and_key_of_the_authority_nothing_is_made(init: Init) -> None:
    shutil.rmtree(init.keys / "authority")
    copy = (init.keys / "server" / "ca.crt").rename(init.keys.parent / "copy.crt")
    before = contents(init.keys)
    with pytest.raises(FederationError, match=r"copy ca\.crt from a client's keys"):
        make_keys(init.keys, 2, [])
    assert contents(init.keys) == before
    copy.rename(init.keys / "server" / "ca.crt")
    assert init()["new_certificate"] is False


def test_an_authority_that_was_cut_off_before_its_certificate_is_made_good(
    init: Init, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.rmtree(init.keys)

    def cut_off(key: object) -> str:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(key_making, "authority_certificate", cut_off)
        with pytest.raises(KeyboardInterrupt):
            make_keys(init.keys, 2, [])
    assert init()["new_certificate"] is True


@pytest.mark.parametrize("content", ["", "x\n"])
@pytest.mark.parametrize("name", ["server.crt", "server.key"])
def test_a_damaged_certificate_or_key_of_the_server_is_made_anew(
    name: str, content: str, init: Init, field: Path
) -> None:
    (init.keys / "server" / name).write_text(content)
    with pytest.raises(FederationError, match=rf"{name} is not a valid .*serve --init"):
        ServerKeys.open(init.keys).check()
    result = init()
    assert (result["new_certificate"], result["new_authority"]) == (True, False)
    assert ("a" in result["names"]) == (name == "server.key")
    shake_hands(ServerKeys.open(init.keys), "localhost", field)


def test_a_client_without_its_ca_crt_is_not_told_to_give_up_its_key(keys: Path) -> None:
    (keys / "client-0" / "ca.crt").unlink()
    with pytest.raises(FederationError, match=r"ca\.crt is missing; .*server/ca\.crt"):
        ClientKeys.open(keys / "client-0")
    (keys / "client-0" / "client.key").unlink()
    with pytest.raises(FederationError, match=r"client\.key is missing; .*remove server/clients/N\.pub"):
        ClientKeys.open(keys / "client-0")


def test_a_damaged_public_key_is_named_at_once_and_by_serve(keys: Path) -> None:
    (keys / "server" / "clients" / "1.pub").write_text("")
    words = r"1\.pub is not a valid public key; restore that of client 1, or remove"
    with pytest.raises(FederationError, match=words):
        make_keys(keys, 2, [])
    with pytest.raises(FederationError, match=words):
        ServerKeys.open(keys).check()
    (keys / "server" / "clients" / "1.pub").unlink()
    assert make_keys(keys, 2, []).clients == (1,)
    ServerKeys.open(keys).check()


def test_it_says_which_clients_need_a_copy_of_new_files(init: Init) -> None:
    before = init()
    assert (before["completed"], before["unsigned"]) == ([], [])
    assert "client-N has new files" not in init.said
    (init.keys / "server" / "clients" / "1.mac").unlink()
    assert init()["completed"] == [1]
    assert "keys/client-N has new files (client 1); for MQTT, copy them to these clients" in init.said


def test_it_says_which_certificates_the_missing_key_of_the_authority_must_sign(init: Init) -> None:
    shutil.rmtree(init.keys / "authority")
    assert init()["unsigned"] == []
    assert "ca.key is missing" not in init.said
    (init.keys / "server" / "coordinator.crt").unlink()
    (init.keys / "client-1" / "client.crt").unlink()
    assert init()["unsigned"] == ["server/coordinator.crt", "client-1/client.crt"]
    assert "only MQTT needs what it did not sign: server/coordinator.crt, client-1/client.crt" in init.said
