"""Certificates and MAC keys for MQTT: who is admitted, and what `make_keys` makes again or keeps."""

from __future__ import annotations

import datetime
import hashlib
import shutil
import ssl
import stat
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("cryptography")

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.x509.oid import NameOID

from tinyproto.errors import FederationError
from tinyproto.federation import certificates, key_making
from tinyproto.federation.certificates import TlsFiles
from tinyproto.federation.device_keys import DeviceKeys
from tinyproto.federation.key_making import make_keys
from tinyproto.federation.keys import COORDINATOR, ServerKeys, certificate_name, public_pem
from tinyproto.storage.atomic import write_atomic

pytestmark = [pytest.mark.flower, pytest.mark.mqtt]

OF_MQTT = ("coordinator.crt", "coordinator.key", "clients/0.mac", "clients/1.mac")
OF_DEVICE = ("client.crt", "tls.key", "mac.key")


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    make_keys(tmp_path / "keys", 2, [])
    return tmp_path / "keys"


@pytest.fixture
def old_keys(keys: Path) -> Path:
    """A folder as the release before MQTT made it."""
    for name in OF_MQTT:
        (keys / "server" / name).unlink()
    for client in (0, 1):
        for name in OF_DEVICE:
            (keys / f"client-{client}" / name).unlink()
    return keys


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def device_files(keys: Path, client: int) -> TlsFiles:
    device = DeviceKeys.open(keys / f"client-{client}", client)
    return TlsFiles(device.certificate, device.key)


def admitted_as(keys: Path, client: TlsFiles, server: TlsFiles | None = None) -> str:
    """Return the common name that the server of these keys sees after a mutual handshake; raise its TLS error."""
    ours = ServerKeys.open(keys)
    server = server or TlsFiles(ours.certificate, ours.key)
    listening = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(ours.authority))
    listening.verify_mode = ssl.CERT_REQUIRED
    listening.load_cert_chain(server.certificate, server.key)
    connecting = ssl.create_default_context(cafile=str(ours.authority))
    connecting.load_cert_chain(client.certificate, client.key)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    near = connecting.wrap_bio(to_client, to_server, server_hostname="localhost")
    far = listening.wrap_bio(to_server, to_client, server_side=True)
    for end in (near, far, near):
        try:
            end.do_handshake()
        except ssl.SSLWantReadError:
            continue
    far.do_handshake()
    seen = far.getpeercert(binary_form=True)
    assert seen is not None
    return common_name(x509.load_der_x509_certificate(seen))


def common_name(certificate: x509.Certificate) -> str:
    (part,) = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(part.value)


def read(file: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(file.read_bytes())


def sign_for(days: int, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Make keys whose clients' certificates end after so many days."""
    with monkeypatch.context() as patched:
        patched.setattr(certificates, "CLIENT_DAYS", days)
        patched.setattr(certificates, "BACKDATED", datetime.timedelta(days=10))
        make_keys(folder, 2, [])


def test_client_and_coordinator_are_admitted_under_their_names(keys: Path) -> None:
    server = ServerKeys.open(keys)
    names = server.client_names()
    for client in (0, 1):
        pem = public_pem(keys / "server" / "clients" / f"{client}.pub")
        assert names[client] == f"{client}-{hashlib.sha256(pem).hexdigest()[:16]}"
        assert admitted_as(keys, device_files(keys, client)) == names[client]
    assert admitted_as(keys, server.for_mqtt()) == COORDINATOR == "coordinator"


def test_a_certificate_of_another_authority_is_refused(keys: Path, tmp_path: Path) -> None:
    make_keys(tmp_path / "theirs", 1, [])
    with pytest.raises(ssl.SSLCertVerificationError):
        admitted_as(keys, device_files(tmp_path / "theirs", 0))


def test_a_certificate_that_has_expired_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sign_for(-2, monkeypatch, tmp_path)
    with pytest.raises(ssl.SSLCertVerificationError, match="expired"):
        admitted_as(tmp_path, device_files(tmp_path, 0))
    with pytest.raises(FederationError, match=r"coordinator\.crt is not trusted .*expired.*serve --init"):
        ServerKeys.open(tmp_path).for_mqtt()


def test_a_client_s_certificate_is_no_server_s_and_a_server_s_no_client_s(keys: Path) -> None:
    server, device = ServerKeys.open(keys), device_files(keys, 0)
    with pytest.raises(ssl.SSLCertVerificationError, match="purpose"):
        admitted_as(keys, device, server=device)
    with pytest.raises(ssl.SSLCertVerificationError, match="purpose"):
        admitted_as(keys, TlsFiles(server.certificate, server.key))


def test_a_client_s_certificate_signs_nothing_and_ends_with_the_authority_s(keys: Path) -> None:
    ours = read(keys / "client-0" / "client.crt")
    assert not ours.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert ours.not_valid_after_utc == read(keys / "server" / "ca.crt").not_valid_after_utc
    left = ours.not_valid_after_utc - datetime.datetime.now(datetime.UTC)
    assert datetime.timedelta(days=3649) < left <= datetime.timedelta(days=3650)


def test_tls_key_is_client_key_in_a_format_that_openssl_reads(keys: Path) -> None:
    ssh = serialization.load_ssh_private_key((keys / "client-0" / "client.key").read_bytes(), password=None)
    tls = serialization.load_pem_private_key((keys / "client-0" / "tls.key").read_bytes(), password=None)
    assert tls.public_key() == ssh.public_key()
    assert (keys / "client-0" / "tls.key").read_text().startswith("-----BEGIN PRIVATE KEY-----")


def test_mac_keys_are_private_shared_by_two_and_different_for_each_client(keys: Path) -> None:
    secrets = ServerKeys.open(keys).mac_keys()
    assert set(secrets) == {0, 1}
    assert secrets[0] != secrets[1]
    for client, secret in secrets.items():
        assert len(secret) == 32
        assert DeviceKeys.open(keys / f"client-{client}", client).mac == secret
        files = keys / f"client-{client}" / "mac.key", keys / "server" / "clients" / f"{client}.mac"
        for file in files:
            assert file.read_text() == secret.hex() + "\n"
            assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_repeating_it_changes_nothing_and_growth_keeps_what_is_there(keys: Path) -> None:
    before = contents(keys)
    made = make_keys(keys, 2, [])
    assert (made.clients, made.completed, made.unsigned) == ((), (), ())
    assert contents(keys) == before
    made = make_keys(keys, 3, [])
    assert (made.clients, made.completed) == ((2,), ())
    assert {name: contents(keys)[name] for name in before} == before
    assert admitted_as(keys, device_files(keys, 2)) == ServerKeys.open(keys).client_names()[2]


@pytest.mark.parametrize(("days", "renewed"), [(-2, True), (29, True), (31, False)])
def test_a_certificate_that_ends_soon_is_signed_again_for_the_same_key(
    days: int, renewed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sign_for(days, monkeypatch, tmp_path)
    before = contents(tmp_path)
    assert make_keys(tmp_path, 2, []).completed == ((0, 1) if renewed else ())
    after = contents(tmp_path)
    changed = {"client-0/client.crt", "client-1/client.crt", "server/coordinator.crt", "server/coordinator.key"}
    assert {name for name in after if after[name] != before[name]} == (changed if renewed else set())
    for client in (device_files(tmp_path, 0), ServerKeys.open(tmp_path).for_mqtt()):
        admitted_as(tmp_path, client)


def test_a_certificate_that_ends_with_its_authority_s_is_not_signed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(certificates, "AUTHORITY_DAYS", 20)
    make_keys(tmp_path, 1, [])
    before = contents(tmp_path)
    make_keys(tmp_path, 1, [])
    assert contents(tmp_path) == before


def test_an_authority_that_has_expired_signs_no_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_keys(tmp_path, 1, [])
    (tmp_path / "server" / "ca.crt").unlink()
    with monkeypatch.context() as patched:
        patched.setattr(certificates, "AUTHORITY_DAYS", -1)
        patched.setattr(certificates, "BACKDATED", datetime.timedelta(days=10))
        with pytest.raises(FederationError, match=r"ca\.crt has expired; remove it, and .*--init"):
            make_keys(tmp_path, 2, [])
    (tmp_path / "server" / "ca.crt").unlink()
    make_keys(tmp_path, 2, [])
    admitted_as(tmp_path, device_files(tmp_path, 1))


@pytest.mark.parametrize("content", ["", "x\n"])
@pytest.mark.parametrize("name", ["server/coordinator.crt", "server/coordinator.key", "client-1/client.crt"])
def test_a_damaged_certificate_is_signed_again(name: str, content: str, keys: Path) -> None:
    (keys / name).write_text(content)
    assert make_keys(keys, 2, []).completed == ((1,) if name.startswith("client") else ())
    for client in (device_files(keys, 1), ServerKeys.open(keys).for_mqtt()):
        admitted_as(keys, client)


def test_certificates_of_another_authority_key_or_client_are_signed_again(keys: Path, tmp_path: Path) -> None:
    make_keys(tmp_path / "theirs", 2, [])
    own = keys / "client-0" / "client.crt"
    for wrong in (tmp_path / "theirs" / "client-0" / "client.crt", keys / "client-1" / "client.crt"):
        shutil.copy(wrong, own)
        assert make_keys(keys, 2, []).completed == (0,)
        assert admitted_as(keys, device_files(keys, 0)) == ServerKeys.open(keys).client_names()[0]
    (keys / "server" / "ca.crt").unlink()
    shutil.copy(tmp_path / "theirs" / "authority" / "ca.key", keys / "authority" / "ca.key")
    assert make_keys(keys, 2, []).completed == (0, 1)
    for client in (device_files(keys, 0), ServerKeys.open(keys).for_mqtt()):
        admitted_as(keys, client)


def test_a_certificate_of_the_right_key_and_another_name_is_signed_again(keys: Path) -> None:
    authority = certificates.Authority.open(keys / "server" / "ca.crt", keys / "authority" / "ca.key")
    public = certificates.read_public(keys / "server" / "clients" / "0.pub")
    (keys / "client-0" / "client.crt").write_text(authority.sign_client(public, COORDINATOR))
    assert make_keys(keys, 2, []).completed == (0,)
    assert admitted_as(keys, device_files(keys, 0)) == ServerKeys.open(keys).client_names()[0]


def test_a_key_pair_made_anew_has_a_new_name_certificate_and_secret(keys: Path) -> None:
    before, name = contents(keys), ServerKeys.open(keys).client_names()[1]
    (keys / "server" / "clients" / "1.pub").unlink()
    assert make_keys(keys, 2, []).clients == (1,)
    after = contents(keys)
    changed = {f"client-1/{name}" for name in ("client.key", *OF_DEVICE)} | {
        "server/clients/1.pub",
        "server/clients/1.mac",
    }
    assert {file for file in after if after[file] != before[file]} == changed
    assert admitted_as(keys, device_files(keys, 1)) == ServerKeys.open(keys).client_names()[1] != name


@pytest.mark.parametrize("cut", [*OF_MQTT, "client.key", *OF_DEVICE, "clients/0.pub"])
def test_an_interrupted_call_is_completed_by_the_next(
    cut: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut_off(file: Path, text: str, mode: int) -> None:
        if file.as_posix().endswith(f"/{cut}"):
            raise KeyboardInterrupt
        write_atomic(file, text, mode)

    with monkeypatch.context() as patched:
        patched.setattr(key_making, "write_atomic", cut_off)
        with pytest.raises(KeyboardInterrupt):
            make_keys(tmp_path, 2, [])
    make_keys(tmp_path, 2, [])
    for client in (0, 1):
        admitted_as(tmp_path, device_files(tmp_path, client))
        assert (
            DeviceKeys.open(tmp_path / f"client-{client}", client).mac == ServerKeys.open(tmp_path).mac_keys()[client]
        )
    admitted_as(tmp_path, ServerKeys.open(tmp_path).for_mqtt())


def test_a_folder_of_an_earlier_release_serves_flower_and_names_what_mqtt_lacks(old_keys: Path) -> None:
    server = ServerKeys.open(old_keys)
    server.check()
    with pytest.raises(FederationError, match=r"coordinator\.crt is missing; `tinyproto serve --init` makes it"):
        server.for_mqtt()
    with pytest.raises(FederationError, match=r"0\.mac is missing; `tinyproto serve --init` makes it"):
        server.mac_keys()
    with pytest.raises(
        FederationError, match=r"client\.crt is missing; run `tinyproto serve --init`.* copy client-1 once"
    ):
        DeviceKeys.open(old_keys / "client-1", 1)


def test_a_folder_of_an_earlier_release_gets_the_new_files(old_keys: Path) -> None:
    before = contents(old_keys)
    made = make_keys(old_keys, 2, [])
    assert (made.clients, made.completed, made.certificate) == ((), (0, 1), False)
    assert {name: contents(old_keys)[name] for name in before} == before
    for client in (0, 1):
        admitted_as(old_keys, device_files(old_keys, client))
    admitted_as(old_keys, ServerKeys.open(old_keys).for_mqtt())


def test_a_client_whose_private_key_is_elsewhere_gets_all_but_tls_key(old_keys: Path, tmp_path: Path) -> None:
    device = old_keys.joinpath("client-0").rename(tmp_path / "device")
    assert make_keys(old_keys, 2, []).completed == (0, 1)
    made = old_keys / "client-0"
    assert {path.name for path in made.iterdir()} == {"ca.crt", "client.crt", "mac.key"}
    shutil.copytree(made, device, dirs_exist_ok=True)
    with pytest.raises(FederationError, match=r"tls\.key is missing; .*make it from client\.key: ") as caught:
        DeviceKeys.open(device, 0)
    if shutil.which("ssh-keygen"):
        convert = str(caught.value).partition("make it from client.key: ")[2]
        subprocess.run(convert, shell=True, cwd=device, check=True, capture_output=True)
        found = DeviceKeys.open(device, 0)
        assert found.mac == ServerKeys.open(old_keys).mac_keys()[0]
        admitted_as(old_keys, TlsFiles(found.certificate, found.key))
    shutil.rmtree(made)
    assert make_keys(old_keys, 2, []).completed == ()
    assert not made.exists()


def test_an_empty_folder_of_a_moved_client_gets_another_certificate_and_the_same_secret(keys: Path) -> None:
    before, public = contents(keys), read(keys / "client-0" / "client.crt").public_key()
    shutil.rmtree(keys / "client-0")
    (keys / "client-0").mkdir()
    assert make_keys(keys, 2, []).completed == (0,)
    assert contents(keys)["client-0/mac.key"] == before["client-0/mac.key"]
    assert read(keys / "client-0" / "client.crt").public_key() == public


def test_a_client_key_that_is_not_of_the_registered_pair_becomes_no_tls_key(keys: Path) -> None:
    shutil.copy(keys / "client-1" / "client.key", keys / "client-0" / "client.key")
    before = contents(keys)
    make_keys(keys, 2, [])
    assert contents(keys) == before


def test_a_lost_mac_key_comes_from_the_server_and_one_lost_there_is_made_anew(keys: Path) -> None:
    before = ServerKeys.open(keys).mac_keys()
    (keys / "client-0" / "mac.key").unlink()
    (keys / "server" / "clients" / "1.mac").unlink()
    assert make_keys(keys, 2, []).completed == (0, 1)
    after = ServerKeys.open(keys).mac_keys()
    assert after[0] == before[0]
    assert after[1] != before[1]
    for client in (0, 1):
        assert DeviceKeys.open(keys / f"client-{client}", client).mac == after[client]


@pytest.mark.parametrize("content", ["", "x\n", "ab" * 31, "é" * 32])
def test_a_damaged_mac_key_of_the_server_is_named_and_nothing_is_made(content: str, keys: Path) -> None:
    (keys / "server" / "clients" / "1.mac").write_text(content)
    before = contents(keys)
    with pytest.raises(FederationError, match=r"1\.mac is not a valid MAC key.* client 1, or remove it"):
        make_keys(keys, 3, [])
    assert contents(keys) == before
    with pytest.raises(FederationError, match=r"1\.mac is not a valid MAC key"):
        ServerKeys.open(keys).mac_keys()
    assert set(ServerKeys.open(keys).only([0]).mac_keys()) == {0}


def test_without_the_authority_s_key_everything_else_is_made_and_the_rest_named(old_keys: Path, tmp_path: Path) -> None:
    away = old_keys.joinpath("authority").rename(tmp_path / "authority")
    made = make_keys(old_keys, 3, [])
    assert made.clients == (2,)
    missing = ("server/coordinator.crt", *(f"client-{client}/client.crt" for client in (0, 1, 2)))
    assert made.unsigned == missing
    assert not any((old_keys / name).exists() for name in missing)
    assert set(ServerKeys.open(old_keys).mac_keys()) == {0, 1, 2}
    assert make_keys(old_keys, 3, []).unsigned == missing
    away.rename(old_keys / "authority")
    assert make_keys(old_keys, 3, []).unsigned == ()
    for client in (0, 1, 2):
        admitted_as(old_keys, device_files(old_keys, client))
    old_keys.joinpath("authority").rename(away)
    assert make_keys(old_keys, 3, []).unsigned == ()


@pytest.mark.parametrize("content", ["", "theirs"])
def test_an_invalid_key_of_the_authority_makes_no_client(content: str, keys: Path, tmp_path: Path) -> None:
    make_keys(tmp_path / "theirs", 1, [])
    theirs = (tmp_path / "theirs" / "authority" / "ca.key").read_text()
    (keys / "authority" / "ca.key").write_text(theirs if content else "")
    before = contents(keys)
    with pytest.raises(FederationError, match=r"ca\.key is not (the key of|a valid private key)"):
        make_keys(keys, 3, [])
    assert contents(keys) == before


def test_a_coordinator_s_key_of_another_certificate_is_named(keys: Path) -> None:
    shutil.copy(keys / "server" / "server.key", keys / "server" / "coordinator.key")
    with pytest.raises(FederationError, match=r"coordinator\.key is not the key of .*coordinator\.crt; .*--init"):
        ServerKeys.open(keys).for_mqtt()
    make_keys(keys, 2, [])
    ServerKeys.open(keys).for_mqtt()


def test_a_name_differs_by_client_and_by_key(keys: Path) -> None:
    first, second = (public_pem(keys / "server" / "clients" / f"{client}.pub") for client in (0, 1))
    assert len({certificate_name(0, first), certificate_name(1, first), certificate_name(0, second)}) == 3
    assert common_name(read(keys / "client-0" / "client.crt")) == certificate_name(0, first)
