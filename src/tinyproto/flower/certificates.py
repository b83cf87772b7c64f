"""Certificates and keys: an authority of the federation's own, the server's certificate, a key for each client.

`make_keys` lays them out by who needs what, so that a folder is what is copied to a machine:

    authority/ca.key                              makes more of them; kept away from every machine of the federation
    server/   ca.crt server.crt server.key clients/N.pub
    client-N/ ca.crt client.key
"""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
import os
import re
import ssl
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tinyproto.errors import FederationError
from tinyproto.flower.files import writing

ALWAYS = ("localhost", "127.0.0.1")
"""Names that every server's certificate is good for: the processes on the coordinator's own machine use them."""

AUTHORITY_DAYS, SERVER_DAYS = 3650, 825
RENEWED_DAYS = 30
"""A server's certificate that is good for less than that is made anew."""

BACKDATED = datetime.timedelta(hours=1)
"""Clocks differ."""

CURVE = ec.SECP384R1()
_LOST = (
    "the coordinator has it from tinyproto serve --init, which makes another once server/clients/N.pub is removed there"
)
_HOST = re.compile(r"[a-z0-9-]{1,63}(\.[a-z0-9-]{1,63})*", re.IGNORECASE)


@dataclass(frozen=True)
class ServerKeys:
    """What the coordinator's machine needs."""

    folder: Path  # as it was named
    authority: Path
    certificate: Path
    key: Path
    clients: dict[int, Path]  # public keys

    @classmethod
    def open(cls, folder: Path) -> ServerKeys:
        """Those in a folder that `make_keys` made, or in its part `server`."""
        inner = folder / "server" if (folder / "server").is_dir() else folder
        names = ("ca.crt", "server.crt", "server.key")
        authority, certificate, key = _existing(inner, names, "tinyproto serve --init makes it")
        clients = {int(file.stem): file for file in sorted((inner / "clients").glob("*.pub")) if file.stem.isdigit()}
        return cls(folder, authority, certificate, key, clients)

    def of(self, clients: Collection[int]) -> ServerKeys:
        """The same with these clients only."""
        return replace(self, clients={client: self.clients[client] for client in clients})

    def check(self) -> None:
        """Whether a server can use them: a pair, of this authority, and another key for each client."""
        _read_certificate(self.authority)
        if not _is_pair(self.certificate, self.key):
            raise FederationError(f"{self.key} is not the key of {self.certificate}; tinyproto serve --init mends it")
        reason = _why_not_trusted(self)
        if reason is not None:
            raise FederationError(f"{self.certificate} is not one that {self.authority} vouches for here: {reason}")
        seen: dict[str, int] = {}
        for client, told in self.public_keys().items():
            other = seen.setdefault(told, client)
            if other != client:
                raise FederationError(
                    f"{self.clients[other]} and {self.clients[client]} are the same key; each client needs its own"
                )

    def public_keys(self) -> dict[int, str]:
        """As Flower tells them of its nodes, in hexadecimal."""
        return {client: _as_flower_tells(file).hex() for client, file in self.clients.items()}


@dataclass(frozen=True)
class ClientKeys:
    """What a client's machine needs."""

    authority: Path
    key: Path

    @classmethod
    def open(cls, folder: Path) -> ClientKeys:
        """Those in a client's folder."""
        return cls(*_existing(folder, ("ca.crt", "client.key"), _LOST))


@dataclass(frozen=True)
class MadeKeys:
    """What `make_keys` found to do."""

    authority: bool  # whether it is new
    names: tuple[str, ...]  # that the server's certificate is good for
    certificate: bool  # whether that is new
    clients: tuple[int, ...]  # new ones
    elsewhere: tuple[int, ...]  # those whose private key is not in the folder


def make_keys(folder: Path, clients: int, hosts: Sequence[str]) -> MadeKeys:
    """Make what is not there yet; keys that are there are kept, so that a federation can grow.

    A client is known by its public key here, whatever machine has the private one. Where `server/clients/N.pub` is
    missing, because the client is new or its key was taken back, both halves are made anew.
    """
    names = tuple(dict.fromkeys((*ALWAYS, *hosts)))
    for name in names:
        _subject_name(name)
    if folder.exists() and not folder.is_dir():
        raise FederationError(f"--init: {folder} is a file, and a folder is to be made; choose another name")
    with writing(folder):
        if not (folder / ".gitignore").exists():
            _write(folder / ".gitignore", b"*\n")  # private keys belong in no repository
        new_authority = not (folder / "server" / "ca.crt").exists()
        if new_authority:
            _make_authority(folder)
            for copy in folder.glob("client-*/ca.crt"):
                _write(copy, (folder / "server" / "ca.crt").read_bytes())
        certificate, names = _certificate_for(folder, names, anew=new_authority)
        known = folder / "server" / "clients"
        new = tuple(number for number in range(clients) if not (known / f"{number}.pub").exists())
        for number in new:
            _make_client(folder, number)
    elsewhere = tuple(number for number in range(clients) if not (folder / f"client-{number}" / "client.key").exists())
    return MadeKeys(new_authority, names, certificate, new, elsewhere)


def _make_authority(folder: Path) -> None:
    key = ec.generate_private_key(CURVE)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "tinyproto federation")])
    usage = x509.KeyUsage(
        digital_signature=False, content_commitment=False, key_encipherment=False, data_encipherment=False,
        key_agreement=False, key_cert_sign=True, crl_sign=True, encipher_only=False, decipher_only=False,
    )  # fmt: skip
    certificate = (
        _certificate(name, name, key.public_key(), AUTHORITY_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA384())
    )
    _write_private(folder / "authority" / "ca.key", _pem(key))
    _write(folder / "server" / "ca.crt", certificate.public_bytes(serialization.Encoding.PEM))


def _certificate_for(folder: Path, names: tuple[str, ...], *, anew: bool) -> tuple[bool, tuple[str, ...]]:
    """Have a server's certificate that is good for these names: whether it is new, and what it is good for."""
    place, key_place = folder / "server" / "server.crt", folder / "server" / "server.key"
    if place.exists():
        had, until = _names_and_end(place)
        left = until - datetime.datetime.now(datetime.UTC)
        lasts = set(names) <= set(had) and left >= datetime.timedelta(days=RENEWED_DAYS)
        if lasts and not anew and key_place.exists() and _is_pair(place, key_place):
            return False, had
        names = tuple(dict.fromkeys((*had, *names)))
    authority_key = folder / "authority" / "ca.key"
    if not authority_key.is_file():
        raise FederationError(f"{authority_key} is not there; a certificate for {', '.join(names)} cannot be made")
    signer = _read_private(authority_key)
    if not isinstance(signer, ec.EllipticCurvePrivateKey):
        raise FederationError(f"{authority_key} is no key that tinyproto serve --init made")
    if not _is_pair(folder / "server" / "ca.crt", authority_key):
        raise FederationError(f"{authority_key} is not the key of {folder / 'server' / 'ca.crt'}")
    authority = _read_certificate(folder / "server" / "ca.crt")
    key = ec.generate_private_key(CURVE)
    certificate = (
        _certificate(_common_name(names[-1]), authority.subject, key.public_key(), SERVER_DAYS)
        .add_extension(x509.SubjectAlternativeName([_subject_name(name) for name in names]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
        .sign(signer, hashes.SHA384())
    )
    _write_private(key_place, _pem(key))  # cut off after this they are no pair, and are made again
    _write(place, certificate.public_bytes(serialization.Encoding.PEM))
    return True, names


def _make_client(folder: Path, number: int) -> None:
    key = ec.generate_private_key(CURVE)
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    _write(folder / f"client-{number}" / "ca.crt", (folder / "server" / "ca.crt").read_bytes())
    _write_private(folder / f"client-{number}" / "client.key", private)
    # Last: with it the client counts as made, so what is cut off before is made anew.
    _write(folder / "server" / "clients" / f"{number}.pub", public + b"\n")


def _certificate(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATED)
        .not_valid_after(now + datetime.timedelta(days=days))
    )


def _common_name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])


def _subject_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        pass
    if not _HOST.fullmatch(name):
        raise FederationError(f"--host: {name!r} is neither a host name nor an IP address; no port belongs to it")
    return x509.DNSName(name)


def _names_and_end(certificate: Path) -> tuple[tuple[str, ...], datetime.datetime]:
    loaded = _read_certificate(certificate)
    try:
        names = loaded.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return (), loaded.not_valid_after_utc
    return tuple(str(name.value) for name in names), loaded.not_valid_after_utc


def _read_certificate(file: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(file.read_bytes())
    except ValueError as error:
        raise FederationError(f"{file} is no certificate") from error


def _read_private(file: Path) -> PrivateKeyTypes:
    try:
        return serialization.load_pem_private_key(file.read_bytes(), password=None)
    except TypeError as error:
        raise FederationError(f"{file} is locked with a password, which nobody here knows") from error
    except (ValueError, UnsupportedAlgorithm) as error:
        raise FederationError(f"{file} is no private key") from error


def _is_pair(certificate: Path, key: Path) -> bool:
    return bool(_read_certificate(certificate).public_key() == _read_private(key).public_key())


def _why_not_trusted(keys: ServerKeys) -> str | None:
    """What a process on the coordinator's machine would say in the handshake, which is played in memory."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    try:
        server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        server.load_cert_chain(keys.certificate, keys.key)
        client = ssl.create_default_context(cafile=str(keys.authority))
        near = client.wrap_bio(to_client, to_server, server_hostname="127.0.0.1")
        far = server.wrap_bio(to_server, to_client, server_side=True)
        for end in (near, far, near, far):
            with contextlib.suppress(ssl.SSLWantReadError):
                end.do_handshake()
    except ssl.SSLCertVerificationError as error:
        return error.verify_message
    except ssl.SSLError as error:
        return error.reason or str(error)
    return None


def _as_flower_tells(file: Path) -> bytes:
    try:
        key = serialization.load_ssh_public_key(file.read_bytes())
    except OSError as error:
        raise FederationError(f"{file} cannot be read: {error.strerror or error}") from error
    except (ValueError, UnsupportedAlgorithm) as error:
        raise FederationError(f"{file} is no public key") from error
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise FederationError(
            f"{file} is no ECDSA key, and Flower takes no other: ssh-keygen -t ecdsa -b 384 makes one"
        )
    told: bytes = key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    return told


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    text: bytes = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return text


def _existing(folder: Path, names: Sequence[str], remedy: str) -> list[Path]:
    files = [(folder / name).resolve() for name in names]
    for file in files:
        if not file.is_file():
            raise FederationError(f"{file} is not there; {remedy}")
        if not os.access(file, os.R_OK):
            raise FederationError(f"{file} cannot be read by this user")
    return files


def _write(file: Path, content: bytes, mode: int = 0o666) -> None:
    """Whole, or as it was; nobody else may read it from the first byte on, where the mode says so."""
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_name(f".{file.name}.partial")
    partial.unlink(missing_ok=True)
    with open(partial, "xb", opener=lambda path, flags: os.open(path, flags, mode)) as stream:
        stream.write(content)
    partial.replace(file)


def _write_private(file: Path, content: bytes) -> None:
    """Only its owner may read it."""
    _write(file, content, 0o600)
