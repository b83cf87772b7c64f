"""Keys and certificates: who gets what, who may read it, and what the certificate is good for."""

from __future__ import annotations

import datetime
import errno
import os
import shutil
import socket
import stat
import subprocess
import threading
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from cryptography.hazmat.primitives import serialization

from support_cli import called, command, in_process
from support_keys import shake_hands
from tinyproto.errors import FederationError
from tinyproto.federation import certificates, key_making
from tinyproto.federation.flower.connection import AwayError, reach
from tinyproto.federation.key_making import make_keys
from tinyproto.federation.keys import ClientKeys, ServerKeys
from tinyproto.storage.atomic import write_atomic

pytestmark = pytest.mark.flower


def test_private_keys_are_their_owners_alone_and_each_machine_has_a_folder(tmp_path: Path) -> None:
    made = make_keys(tmp_path, 2, ["coordinator.example.org", "10.1.2.3"])
    assert made.names == ("localhost", "127.0.0.1", "coordinator.example.org", "10.1.2.3")
    files = {str(path.relative_to(tmp_path)): path for path in tmp_path.rglob("*") if path.is_file()}
    assert set(files) == {
        ".gitignore", "authority/ca.key", "server/ca.crt", "server/server.crt", "server/server.key",
        "server/coordinator.crt", "server/coordinator.key", "server/clients/0.pub", "server/clients/0.mac",
        "server/clients/1.pub", "server/clients/1.mac", "client-0/ca.crt", "client-0/client.key", "client-0/client.crt",
        "client-0/tls.key", "client-0/mac.key", "client-1/ca.crt", "client-1/client.key", "client-1/client.crt",
        "client-1/tls.key", "client-1/mac.key",
    }  # fmt: skip
    for name, path in files.items():
        assert (stat.S_IMODE(path.stat().st_mode) == 0o600) == name.endswith((".key", ".mac")), name
    assert ClientKeys.open(tmp_path / "client-1").key == files["client-1/client.key"]
    assert set(ServerKeys.open(tmp_path).public_keys()) == {0, 1}


def test_the_certificate_is_good_for_its_names_and_of_its_authority_only(tmp_path: Path) -> None:
    make_keys(tmp_path / "ours", 1, ["127.0.0.2"])
    make_keys(tmp_path / "theirs", 1, [])
    ours, theirs = (ServerKeys.open(tmp_path / whose) for whose in ("ours", "theirs"))
    for host in ("localhost", "127.0.0.1"):
        shake_hands(ours, host, ours.authority)
    with pytest.raises(FederationError, match="not from the authority"):
        shake_hands(theirs, "localhost", ours.authority)


def test_a_name_that_the_certificate_lacks_is_an_error_that_says_how_to_add_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_keys(tmp_path, 1, [])
    keys = ServerKeys.open(tmp_path)
    resolve = socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, *more, **named: resolve("127.0.0.1", *more, **named))
    with pytest.raises(FederationError, match="--host coordinator"):
        shake_hands(keys, "coordinator", keys.authority)
    assert make_keys(tmp_path, 1, ["coordinator"]).certificate
    shake_hands(ServerKeys.open(tmp_path), "coordinator", keys.authority)


def test_a_federation_grows_without_new_keys_for_those_who_have_one(tmp_path: Path) -> None:
    make_keys(tmp_path, 1, ["a"])
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    made = make_keys(tmp_path, 3, ["a"])
    assert made.clients == (1, 2)
    assert not made.certificate
    assert {path: path.read_bytes() for path in before} == before


def test_a_key_is_kept_where_its_private_half_is_only_on_its_own_machine(tmp_path: Path) -> None:
    make_keys(tmp_path, 2, [])
    before = ServerKeys.open(tmp_path).public_keys()
    shutil.rmtree(tmp_path / "client-0")  # moved to its device
    assert make_keys(tmp_path, 3, []).clients == (2,)
    after = ServerKeys.open(tmp_path).public_keys()
    assert {client: after[client] for client in before} == before
    assert not (tmp_path / "client-0").exists()


def test_a_key_that_was_taken_back_is_made_anew(tmp_path: Path) -> None:
    make_keys(tmp_path, 2, [])
    public, private = tmp_path / "server" / "clients" / "1.pub", tmp_path / "client-1" / "client.key"
    before = public.read_bytes(), private.read_bytes()
    public.unlink()
    assert make_keys(tmp_path, 2, []).clients == (1,)
    assert public.read_bytes() != before[0]
    assert private.read_bytes() != before[1]
    made = serialization.load_ssh_private_key(private.read_bytes(), password=None).public_key()
    told = made.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    assert public.read_bytes() == told + b"\n"


def test_it_says_whose_keys_are_new(tmp_path: Path) -> None:
    said = command("serve", "--init", "keys", "--clients", "3", cwd=tmp_path).stdout
    assert "3 new keys; a new certificate" in said
    (tmp_path / "keys" / "server" / "clients" / "1.pub").unlink()
    said = command("serve", "--init", "keys", "--clients", "3", cwd=tmp_path).stdout
    assert "1 new key (client 1); the same certificate" in said


def test_a_client_whose_making_was_cut_off_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_keys(tmp_path, 1, [])

    def full(key: object, form: object) -> str:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(key_making, "_pem", full)
        with pytest.raises(FederationError, match="No space"):
            make_keys(tmp_path, 2, [])
    assert make_keys(tmp_path, 2, []).clients == (1,)


def test_git_passes_the_keys_over(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    make_keys(tmp_path / "secrets", 1, [])
    subprocess.run(["git", "-C", str(tmp_path), "add", "--all"], check=True)
    listed = subprocess.run(["git", "-C", str(tmp_path), "ls-files"], check=True, capture_output=True, text=True)
    assert listed.stdout == ""


@pytest.mark.parametrize(("days", "renewed"), [(-2, True), (29, True), (31, False)])
def test_a_certificate_that_ends_soon_is_made_anew_by_the_same_authority(
    days: int, renewed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(certificates, "SERVER_DAYS", days)
        patched.setattr(certificates, "BACKDATED", datetime.timedelta(days=10))
        make_keys(tmp_path, 1, ["a"])
    authority = (tmp_path / "server" / "ca.crt").read_bytes()
    if days < 0:
        keys = ServerKeys.open(tmp_path)
        with pytest.raises(FederationError, match=r"expired.*tinyproto serve --init"):
            shake_hands(keys, "localhost", keys.authority)
    made = make_keys(tmp_path, 1, [])
    assert (made.certificate, made.names) == (renewed, ("localhost", "127.0.0.1", "a"))
    assert (tmp_path / "server" / "ca.crt").read_bytes() == authority
    keys = ServerKeys.open(tmp_path)
    shake_hands(keys, "localhost", keys.authority)


def test_without_the_authority_s_key_clients_can_be_added_but_no_name(tmp_path: Path) -> None:
    make_keys(tmp_path, 1, [])
    (tmp_path / "authority" / "ca.key").unlink()
    assert make_keys(tmp_path, 2, []).clients == (1,)
    with pytest.raises(FederationError, match=r"ca\.key is missing"):
        make_keys(tmp_path, 2, ["b"])


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("authority/ca.key", "ca.key is not a valid private key"),
        ("server/ca.crt", "ca.crt is not a valid certificate; restore it from a copy, or remove it"),
        ("server/clients/0.pub", "0.pub is not a valid public key; restore that of client 0, or remove"),
    ],
)
@pytest.mark.parametrize("content", ["", "x\n"])
def test_a_damaged_file_is_named_and_nothing_is_made(
    content: str, name: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    make_keys(tmp_path / "keys", 1, [])
    (tmp_path / "keys" / name).write_text(content)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    hosts = ["--host", "a"] if name == "authority/ca.key" else []  # else nothing is to be signed
    assert in_process(monkeypatch, tmp_path, "serve", "--init", "keys", "--clients", "2", *hosts) == 2
    said = capsys.readouterr().err
    assert words in said
    assert len(said.splitlines()) == 1
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_an_authority_s_key_of_elsewhere_signs_nothing(tmp_path: Path) -> None:
    for name in ("ours", "theirs"):
        make_keys(tmp_path / name, 1, [])
    (tmp_path / "ours" / "authority" / "ca.key").write_bytes(
        (tmp_path / "theirs" / "authority" / "ca.key").read_bytes()
    )
    with pytest.raises(FederationError, match=r"ca\.key is not the key of .*ca\.crt"):
        make_keys(tmp_path / "ours", 1, ["a"])


def test_a_lost_server_key_comes_with_a_new_certificate(tmp_path: Path) -> None:
    make_keys(tmp_path, 1, ["a"])
    (tmp_path / "server" / "server.key").unlink()
    with pytest.raises(FederationError, match=r"server\.key is missing; .*serve --init"):
        ServerKeys.open(tmp_path)
    made = make_keys(tmp_path, 1, [])
    assert (made.certificate, made.names) == (True, ("localhost", "127.0.0.1", "a"))
    ServerKeys.open(tmp_path).check()


def test_a_renewal_that_was_cut_off_between_key_and_certificate_is_made_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_keys(tmp_path, 1, [])

    def cut_off(file: Path, text: str, mode: int) -> None:
        if file.name == "server.crt":
            raise KeyboardInterrupt
        write_atomic(file, text, mode)

    with monkeypatch.context() as patched:
        patched.setattr(key_making, "write_atomic", cut_off)
        with pytest.raises(KeyboardInterrupt):
            make_keys(tmp_path, 1, ["a"])
    keys = ServerKeys.open(tmp_path)
    with pytest.raises(FederationError, match=r"server\.key is not the key of .*serve --init"):
        keys.check()
    assert make_keys(tmp_path, 1, []).certificate
    keys.check()


def test_a_file_whose_writing_fails_is_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_keys(tmp_path, 1, [])
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}

    def full(self: Path, target: Path) -> Path:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", full)
        with pytest.raises(FederationError, match="No space"):
            make_keys(tmp_path, 1, ["a"])
    assert {path: path.read_bytes() for path in before} == before
    (partial,) = {path for path in tmp_path.rglob("*") if path.is_file()} - set(before)
    assert stat.S_IMODE(partial.stat().st_mode) == 0o600


def test_a_lost_private_key_is_made_anew_as_it_is_said(tmp_path: Path) -> None:
    make_keys(tmp_path / "keys", 3, [])
    shutil.rmtree(tmp_path / "keys" / "client-0")
    with pytest.raises(FederationError, match=r"remove server/clients/N\.pub"):
        ClientKeys.open(tmp_path / "keys" / "client-0")
    (tmp_path / "keys" / "server" / "clients" / "0.pub").unlink()
    assert make_keys(tmp_path / "keys", 3, []).clients == (0,)
    assert ClientKeys.open(tmp_path / "keys" / "client-0").key.is_file()


def test_a_file_in_the_place_of_the_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("mine")
    with pytest.raises(FederationError, match="keys is a file"):
        make_keys(tmp_path / "keys", 1, [])
    assert (tmp_path / "keys").read_text() == "mine"


@pytest.mark.parametrize("name", ["", "a b", "host:80", "https://host", "a..b", "fe80::1%eth0"])
def test_what_is_no_host_is_refused_before_anything_is_written(name: str, tmp_path: Path) -> None:
    with pytest.raises(FederationError, match="--host"):
        make_keys(tmp_path / "keys", 1, [name])
    assert not (tmp_path / "keys").exists()


def test_a_name_written_in_another_way_is_the_same_name(tmp_path: Path) -> None:
    made = make_keys(tmp_path, 1, ["2001:0db8::1", "Example.ORG"])
    assert made.names == ("localhost", "127.0.0.1", "2001:db8::1", "example.org")
    key = (tmp_path / "server" / "server.key").read_bytes()
    for names in (["2001:0db8::1", "Example.ORG"], ["2001:db8:0::1", "EXAMPLE.org"]):
        assert not make_keys(tmp_path, 1, names).certificate
    assert (tmp_path / "server" / "server.key").read_bytes() == key


@pytest.mark.parametrize("stray", ["²", "01", "١"])
def test_a_file_that_is_called_by_no_client_s_number_is_no_client_s(stray: str, tmp_path: Path) -> None:
    make_keys(tmp_path, 1, [])
    clients = tmp_path / "server" / "clients"
    (clients / f"{stray}.pub").write_bytes((clients / "0.pub").read_bytes())
    assert ServerKeys.open(tmp_path).clients == {0: (clients / "0.pub").resolve()}
    assert make_keys(tmp_path, 2, []).clients == (1,)


def test_nobody_there_is_no_error_but_a_reason_to_wait(tmp_path: Path) -> None:
    make_keys(tmp_path, 1, [])
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        with pytest.raises(AwayError, match="refused"):
            reach(("127.0.0.1", unused.getsockname()[1]), ServerKeys.open(tmp_path).authority)


def test_a_server_without_tls_is_an_error(tmp_path: Path) -> None:
    make_keys(tmp_path, 1, [])
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            opened, _ = listening.accept()
            with opened:
                opened.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
                opened.recv(4096)

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(FederationError, match="without TLS"):
            reach(("127.0.0.1", listening.getsockname()[1]), ServerKeys.open(tmp_path).authority)
        thread.join()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["serve"], "CONFIG"),
        (["serve", "--init", "keys"], "--init needs --clients"),
        (["serve", "--clients", "2"], "--init"),
        (["serve", "c.yaml", "--init", "keys", "--clients", "1"], "leave out CONFIG"),
        (
            ["serve", "--init", "keys", "--clients", "1", "--listen", "127.0.0.1:8443"],
            "leave out CONFIG, --keys, --listen",
        ),
        (
            ["serve", "--init", "keys", "--clients", "1", "--overwrite"],
            "leave out CONFIG, --keys, --listen, --broker, --overwrite",
        ),
        (["serve", "runs/a", "--resume", "--overwrite"], "leave out one of them"),
        (["serve", "c.yaml"], "c.yaml"),
        (
            ["join", "--server", "host", "--client-id", "0", "--model", "m", "--data", "."],
            "--server: expected HOST:PORT",
        ),
        (
            ["join", "--server", "h:1", "--client-id", "0", "--model", "m", "--data", "."],
            "client-0/client.key is missing",
        ),
    ],
)
def test_a_mistake_on_the_command_line_is_one_sentence(arguments: list[str], words: str, tmp_path: Path) -> None:
    done = command(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert words in done.stderr


@pytest.mark.parametrize("given", ["client-0", "keys"])
def test_keys_that_are_in_another_folder_are_suggested(given: str, tmp_path: Path) -> None:
    make_keys(tmp_path / "keys", 1, [])
    arguments = ("--server", "h:1", "--client-id", "0", "--model", "m", "--data", ".", "--keys", given)
    done = called("join", *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert "did you mean `--keys keys/client-0`?" in done.stderr
