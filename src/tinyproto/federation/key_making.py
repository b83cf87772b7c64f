"""Certificates and keys: the federation's own authority, the server's certificate, and one key pair for each client.

`make_keys` writes one folder for each machine, so that a whole folder is copied:

    authority/ca.key                              signs certificates; keep it away from every machine of the federation
    server/   ca.crt server.crt server.key coordinator.crt coordinator.key clients/N.pub clients/N.mac
    client-N/ ca.crt client.key client.crt tls.key mac.key

Flower needs `client.key` and `N.pub`. A broker for MQTT needs certificates of its clients: `client.crt` with `tls.key`,
which is client.key in another format, and `coordinator.crt` for the coordinator itself. `mac.key` and `N.mac` are the
same secret, for message authentication codes (MAC) where the broker belongs to somebody else.
"""

from __future__ import annotations

import contextlib
import ipaddress
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tinyproto.errors import FederationError
from tinyproto.federation.certificates import (
    Authority,
    InvalidFileError,
    TlsFiles,
    authority_certificate,
    host_names,
    is_current,
    is_pair,
    lasts,
    read_authority_key,
    read_certificate,
    read_client_key,
    read_private,
    read_public,
    why_not_trusted,
)
from tinyproto.federation.device_keys import readable
from tinyproto.federation.journal import writing
from tinyproto.federation.keys import COORDINATOR, certificate_name, clients_in, pem_of, public_pem, read_mac_of
from tinyproto.storage.atomic import write_atomic

ALWAYS = ("localhost", "127.0.0.1")
"""Names in every server certificate; processes on the coordinator's own machine use them."""

CURVE = ec.SECP384R1()
PRIVATE = 0o600
"""The mode of private keys and secrets."""

MAC_BYTES = 32

_HOST = re.compile(r"[a-z0-9-]{1,63}(\.[a-z0-9-]{1,63})*", re.IGNORECASE)


@dataclass(frozen=True)
class MadeKeys:
    """The result of `make_keys`."""

    names: tuple[str, ...]  # in the server's certificate
    authority: bool  # True if ca.crt is new
    certificate: bool  # True if server.crt is new
    clients: tuple[int, ...]  # new ones
    completed: tuple[int, ...]  # existing ones whose folder has new files; their machines need a copy
    unsigned: tuple[str, ...] = ()  # certificates that only the authority's key, which is missing, can sign


def make_keys(folder: Path, clients: int, hosts: Sequence[str]) -> MadeKeys:
    """Make the missing keys and certificates; keep existing keys, so that a federation can grow.

    A client's public key here decides: where `server/clients/N.pub` is missing, all its files are made again. An
    invalid file is replaced where nobody else depends on it; otherwise an error names it. Without the authority's key,
    certificates of clients and of the coordinator are left out and returned by name.
    """
    names = tuple(dict.fromkeys((*ALWAYS, *map(_canonical, hosts))))
    with readable(folder):
        if folder.exists() and not folder.is_dir():
            raise FederationError(f"--init: {folder} is a file, not a folder; choose another name")
        known = clients_in(folder / "server")
    new = [_ClientFiles(folder, number) for number in range(clients) if number not in known]
    kept = [_ClientFiles(folder, number) for number in sorted(known.keys() & range(clients))]
    with writing(folder):
        for client in kept:
            client.check()
        if not (folder / ".gitignore").exists():
            _write(folder / ".gitignore", "*\n")  # private keys belong in no repository
        authority = _ensure_authority(folder)
        certificate, names = _ensure_certificate(folder, names)
        coordinator = not _coordinator_is_current(folder)
        due = {client.number for client in new} | {client.number for client in kept if not client.is_certified()}
        signer = _signer(folder) if coordinator or due else None  # if its key is invalid, no client is made
        if coordinator and signer is not None:
            _make_coordinator(folder, signer)
        for client in new:
            client.make(signer)
        completed = [client.number for client in kept if client.complete(signer if client.number in due else None)]
        content = (folder / "server" / "ca.crt").read_text(encoding="ascii")
        for place in sorted(folder.glob("client-[0-9]*/")):
            _write(place / "ca.crt", content)
    unsigned = ["server/coordinator.crt"] * coordinator + [f"client-{number}/client.crt" for number in sorted(due)]
    made = MadeKeys(names, authority, certificate, tuple(client.number for client in new), tuple(completed))
    return made if signer is not None else replace(made, unsigned=tuple(unsigned))


def _ensure_authority(folder: Path) -> bool:
    """Keep `server/ca.crt`, or sign it with the authority's key, which is made for a new federation; True if signed."""
    place, key_place = folder / "server" / "ca.crt", folder / "authority" / "ca.key"
    if place.exists():
        read_certificate(place)
        return False
    if not key_place.exists():
        if (folder / "server" / "server.crt").exists():
            raise FederationError(f"{place} and {key_place} are missing; copy {place.name} from a client's keys")
        _write(key_place, _pem(ec.generate_private_key(CURVE)), PRIVATE)
    _write(place, authority_certificate(read_authority_key(key_place)))
    return True


def _ensure_certificate(folder: Path, names: tuple[str, ...]) -> tuple[bool, tuple[str, ...]]:
    """Keep or sign a server certificate for these names and those of the existing one; return whether it was signed."""
    authority, tls = folder / "server" / "ca.crt", _tls_files(folder, "server")
    had: tuple[str, ...] = ()
    with contextlib.suppress(InvalidFileError, FileNotFoundError):
        present = read_certificate(tls.certificate)
        had = host_names(present)
        good = set(names) <= set(had) and lasts(present)
        if good and is_pair(tls.certificate, tls.key) and why_not_trusted(authority, tls) is None:
            return False, had
    names = tuple(dict.fromkeys((*had, *names)))
    authority_key = folder / "authority" / "ca.key"
    if not authority_key.is_file():
        raise FederationError(f"{authority_key} is missing; it must sign a certificate for {', '.join(names)}")
    key = ec.generate_private_key(CURVE)
    certificate = Authority.open(authority, authority_key).sign_server(key.public_key(), names)
    _write(tls.key, _pem(key), PRIVATE)  # if interrupted here they are no pair, and the next call makes both again
    _write(tls.certificate, certificate)
    return True, names


def _signer(folder: Path) -> Authority | None:
    """Return the authority, or None if its key is missing; raise FederationError if the key is invalid."""
    key = folder / "authority" / "ca.key"
    return Authority.open(folder / "server" / "ca.crt", key) if key.is_file() else None


def _tls_files(folder: Path, name: str) -> TlsFiles:
    return TlsFiles(folder / "server" / f"{name}.crt", folder / "server" / f"{name}.key")


def _coordinator_is_current(folder: Path) -> bool:
    files = _tls_files(folder, COORDINATOR)
    try:
        key = read_private(files.key)
    except (InvalidFileError, FileNotFoundError):
        return False
    return isinstance(key, ec.EllipticCurvePrivateKey) and is_current(
        files.certificate, folder / "server" / "ca.crt", COORDINATOR, key.public_key()
    )


def _make_coordinator(folder: Path, signer: Authority) -> None:
    files, key = _tls_files(folder, COORDINATOR), ec.generate_private_key(CURVE)
    _write(files.key, _pem(key), PRIVATE)  # if interrupted here they are no pair, and the next call makes both again
    _write(files.certificate, signer.sign_client(key.public_key(), COORDINATOR))


@dataclass(frozen=True)
class _ClientFiles:
    """One client's files: its own folder, and its public key and MAC key in the server's."""

    keys: Path
    number: int

    @property
    def own(self) -> Path:
        return self.keys / f"client-{self.number}"

    @property
    def public(self) -> Path:
        return self.keys / "server" / "clients" / f"{self.number}.pub"

    @property
    def mac(self) -> Path:
        return self.keys / "server" / "clients" / f"{self.number}.mac"

    def is_away(self) -> bool:
        """Return True if the folder was moved to the client's machine with all its files; it is not made again."""
        return not self.own.is_dir() and self.mac.exists()

    def check(self) -> None:
        """Raise FederationError if the server's files are invalid."""
        read_public(self.public)
        if self.mac.exists():
            read_mac_of(self.mac)

    def is_certified(self) -> bool:
        """Return True if the client needs no new certificate."""
        name = certificate_name(self.number, public_pem(self.public))
        authority = self.keys / "server" / "ca.crt"
        return self.is_away() or is_current(self.own / "client.crt", authority, name, read_public(self.public))

    def make(self, signer: Authority | None) -> None:
        """Make a key pair, and from it all other files."""
        key = ec.generate_private_key(CURVE)
        public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
        _write(self.own / "client.key", _pem(key, serialization.PrivateFormat.OpenSSH), PRIVATE)
        self.mac.unlink(missing_ok=True)  # a new pair has a new secret
        self._write_derived(key.public_key(), signer)
        # Last, since it marks the client as made: after an interruption the next call makes all files again.
        _write(self.public, public.decode() + "\n")

    def complete(self, signer: Authority | None) -> bool:
        """Write the missing files of a client that has a key pair; return True if there were any."""
        return not self.is_away() and self._write_derived(read_public(self.public), signer)

    def _write_derived(self, public: ec.EllipticCurvePublicKey, signer: Authority | None) -> bool:
        """Write the files that follow from the key pair; sign a certificate if a signer is given."""
        new_secret = not self.mac.exists()
        secret = secrets.token_hex(MAC_BYTES) + "\n" if new_secret else self.mac.read_text(encoding="ascii")
        changed = _update(self.own / "mac.key", secret)  # first: it marks the folder as one to complete
        if new_secret:
            _write(self.mac, secret, PRIVATE)
        private = _private_half(self.own / "client.key", public)
        if private is not None:
            changed |= _update(self.own / "tls.key", _pem(private))
        if signer is not None:
            name = certificate_name(self.number, pem_of(public))
            _write(self.own / "client.crt", signer.sign_client(public, name))
        return changed or signer is not None


def _private_half(file: Path, public: ec.EllipticCurvePublicKey) -> ec.EllipticCurvePrivateKey | None:
    """Return the private key in a file, or None if it is on the client's machine only, or of another pair."""
    try:
        private = read_client_key(file)
    except (InvalidFileError, FileNotFoundError):
        return None
    return private if private.public_key() == public else None


def _pem(key: ec.EllipticCurvePrivateKey, form: serialization.PrivateFormat = serialization.PrivateFormat.PKCS8) -> str:
    text: bytes = key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
    return text.decode()


def _canonical(name: str) -> str:
    """Return a host name or IP address as a certificate writes it."""
    if "%" not in name:  # an address of one interface, which no certificate can name
        with contextlib.suppress(ValueError):
            return str(ipaddress.ip_address(name))
    if _HOST.fullmatch(name):
        return name.lower()
    raise FederationError(f"--host: {name!r} is not a host name or IP address; give it without a port or interface")


def _write(file: Path, text: str, mode: int = 0o666) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(file, text, mode)


def _update(file: Path, text: str) -> bool:
    """Write a private file unless it has this content; return True if it was written."""
    if file.exists() and file.read_bytes() == text.encode():
        return False
    _write(file, text, PRIVATE)
    return True
