"""Lost or damaged certificates and keys: what `serve --init` makes again, and which clients that excludes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from cryptography.hazmat.primitives import serialization

from support_cli import in_process
from support_keys import shake_hands
from tinyproto.errors import FederationError
from tinyproto.federation import keys as keys_module
from tinyproto.federation.keys import ClientKeys, ServerKeys, make_keys

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


@pytest.mark.parametrize("name", ["server/ca.crt", "client-0/ca.crt", "client-1/ca.crt"])
@pytest.mark.parametrize("signer", ["here", "away"])
def test_a_lost_ca_crt_is_put_back_as_it_was(name: str, signer: str, init: Init) -> None:
    if signer == "away":
        shutil.rmtree(init.keys / "authority")
    before = contents(init.keys)
    (init.keys / name).unlink()
    result = init()
    assert contents(init.keys) == before
    assert (result["new_authority"], result["new_certificate"], result["new_clients"]) == (False, False, [])
    assert result["copied"] == ([name.partition("/")[0]] if name.startswith("client") else [])


def test_a_copy_of_another_federation_is_not_put_back(init: Init, field: Path, tmp_path: Path) -> None:
    make_keys(tmp_path / "other", 1, [])
    shutil.copy(tmp_path / "other" / "server" / "ca.crt", init.keys / "client-0" / "ca.crt")
    (init.keys / "client-1" / "ca.crt").write_text("")
    (init.keys / "server" / "ca.crt").unlink()
    result = init()
    assert (result["new_authority"], result["copied"]) == (False, ["client-0", "client-1"])
    shake_hands(ServerKeys.open(init.keys), "localhost", field)


def test_without_any_copy_the_same_key_signs_another_that_clients_in_the_field_need_not_have(
    init: Init, field: Path
) -> None:
    for client in (0, 1):
        shutil.rmtree(init.keys / f"client-{client}")
    (init.keys / "server" / "ca.crt").unlink()
    before = contents(init.keys)
    result = init()
    assert (result["new_authority"], result["new_certificate"]) == (False, False)
    assert "a new ca.crt of the same authority" in init.said
    assert {path: path.read_bytes() for path in before} == before
    assert (init.keys / "server" / "ca.crt").read_bytes() != field.read_bytes()
    shake_hands(ServerKeys.open(init.keys), "localhost", field)
    make_keys(init.keys, 2, ["b"])
    shake_hands(ServerKeys.open(init.keys), "localhost", field)


def lose_all(keys: Path) -> None:
    shutil.rmtree(keys / "authority")


def exchange(keys: Path) -> None:
    make_keys(keys.parent / "other", 1, [])
    shutil.copy(keys.parent / "other" / "authority" / "ca.key", keys / "authority" / "ca.key")


@pytest.mark.parametrize("how", [lose_all, exchange])
def test_an_authority_that_clients_do_not_know_is_never_made_in_silence(how: Any, init: Init, field: Path) -> None:
    how(init.keys)
    for name in ("server", "client-0", "client-1"):
        (init.keys / name / "ca.crt").unlink()
    result = init()
    assert "0 new keys; a new certificate; a new authority: each client needs the new ca.crt" in init.said
    assert (result["new_authority"], result["new_certificate"]) == (True, True)
    assert result["copied"] == ["client-0", "client-1"]
    with pytest.raises(FederationError, match="not from the authority"):
        shake_hands(ServerKeys.open(init.keys), "localhost", field)


def test_a_new_authority_that_was_cut_off_before_its_certificate_is_made_good(
    init: Init, monkeypatch: pytest.MonkeyPatch
) -> None:
    lose_all(init.keys)
    for name in ("server", "client-0", "client-1"):
        (init.keys / name / "ca.crt").unlink()

    def cut_off(folder: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(keys_module, "_copy_authority", cut_off)
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
    lost = name == "server.crt"
    assert ("a" in result["names"]) != lost
    assert ("earlier certificate could not be read" in init.said) == lost
    shake_hands(ServerKeys.open(init.keys), "localhost", field)


def test_a_key_with_a_password_is_somebody_s_own_and_stays(init: Init) -> None:
    file = init.keys / "server" / "server.key"
    key = serialization.load_pem_private_key(file.read_bytes(), password=None)
    lock = serialization.BestAvailableEncryption(b"secret")
    file.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, lock))
    before = contents(init.keys)
    with pytest.raises(FederationError, match="is locked with a password"):
        make_keys(init.keys, 2, [])
    assert contents(init.keys) == before


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
