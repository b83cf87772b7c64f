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
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tinyproto.errors import FederationError
from tinyproto.federation.files import writing
from tinyproto.federation.key_files import (
    DamagedError,
    as_flower_tells,
    is_pair,
    names_and_end,
    read_authority_key,
    read_certificate,
    vouches_for,
    write,
    write_private,
)

ALWAYS = ("localhost", "127.0.0.1")
"""Names that every server's certificate is good for: the processes on the coordinator's own machine use them."""

AUTHORITY_DAYS, SERVER_DAYS = 3650, 825
RENEWED_DAYS = 30
"""A server's certificate that is good for less than that is made anew."""

BACKDATED = datetime.timedelta(hours=1)
"""Clocks differ."""

CURVE = ec.SECP384R1()
_LOST = {
    "client.key": "the coordinator has it from tinyproto serve --init, which makes another once "
    "server/clients/N.pub is removed there",
    "ca.crt": "it is a copy of the coordinator's server/ca.crt, and no key has to change for it",
}
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
        remedies = dict.fromkeys(("ca.crt", "server.crt", "server.key"), "tinyproto serve --init makes it")
        authority, certificate, key = _existing(inner, remedies)
        return cls(folder, authority, certificate, key, _clients_in(inner))

    def of(self, clients: Collection[int]) -> ServerKeys:
        """The same with these clients only."""
        return replace(self, clients={client: self.clients[client] for client in clients})

    def check(self) -> None:
        """Whether a server can use them: a pair, of this authority, and another key for each client."""
        read_certificate(self.authority)
        if not is_pair(self.certificate, self.key):
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
        return {client: as_flower_tells(file).hex() for client, file in self.clients.items()}


@dataclass(frozen=True)
class ClientKeys:
    """What a client's machine needs."""

    authority: Path
    key: Path

    @classmethod
    def open(cls, folder: Path) -> ClientKeys:
        """Those in a client's folder."""
        key, authority = _existing(folder, _LOST)
        return cls(authority, key)


Authority = Literal["first", "same", "certified again", "new"]
"""Certified again: by its own key, so that copies of the lost certificate stay good. New: they do not."""


@dataclass(frozen=True)
class MadeKeys:
    """What `make_keys` found to do."""

    authority: Authority
    copied: tuple[str, ...]  # folders of clients whose ca.crt was missing or another
    names: tuple[str, ...]  # that the server's certificate is good for
    certificate: bool  # whether that is new
    names_lost: bool  # whether clients may know it by names that no certificate tells any more
    clients: tuple[int, ...]  # new ones
    elsewhere: tuple[int, ...]  # those whose private key is not in the folder


def make_keys(folder: Path, clients: int, hosts: Sequence[str]) -> MadeKeys:
    """Make what is not there yet; keys that are there are kept, so that a federation can grow.

    A client is known by its public key here, whatever machine has the private one. Where `server/clients/N.pub` is
    missing, because the client is new or its key was taken back, both halves are made anew. A file that is damaged is
    replaced where that costs nobody anything, and named where it would.
    """
    names = tuple(dict.fromkeys((*ALWAYS, *map(_canonical, hosts))))
    if folder.exists() and not folder.is_dir():
        raise FederationError(f"--init: {folder} is a file, and a folder is to be made; choose another name")
    known = _clients_in(folder / "server")
    for number in sorted(known.keys() & range(clients)):
        as_flower_tells(known[number])
    with writing(folder):
        if not (folder / ".gitignore").exists():
            write(folder / ".gitignore", b"*\n")  # private keys belong in no repository
        authority = _have_authority(folder, begun=bool(known))
        copied = _copy_authority(folder)
        had, certificate, names = _have_certificate(folder, names)
        new = tuple(number for number in range(clients) if number not in known)
        for number in new:
            _make_client(folder, number)
    elsewhere = tuple(number for number in range(clients) if not (folder / f"client-{number}" / "client.key").exists())
    return MadeKeys(authority, copied, names, certificate, bool(known) and not had, new, elsewhere)


def _have_authority(folder: Path, *, begun: bool) -> Authority:
    """Have `server/ca.crt`: that which is there, a client's copy, another by the same key; else all is new."""
    place, key_place = folder / "server" / "ca.crt", folder / "authority" / "ca.key"
    certificate = folder / "server" / "server.crt"
    if place.exists():
        read_certificate(place)
        return "same"
    for copy in sorted(folder.glob("client-*/ca.crt")):
        with contextlib.suppress(DamagedError):
            if vouches_for(copy, certificate) or (key_place.exists() and is_pair(copy, key_place)):
                write(place, copy.read_bytes())
                return "same"
    if key_place.exists():
        _certify(place, read_authority_key(key_place))
        return "new" if vouches_for(place, certificate) is False else "certified again"
    key = ec.generate_private_key(CURVE)
    write_private(key_place, _pem(key))
    _certify(place, key)
    return "new" if begun else "first"


def _certify(place: Path, key: ec.EllipticCurvePrivateKey) -> None:
    """Write the authority's certificate of itself."""
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
    write(place, certificate.public_bytes(serialization.Encoding.PEM))


def _copy_authority(folder: Path) -> tuple[str, ...]:
    """Bring ca.crt into the folders of clients that are here, where it is missing or another: their names."""
    content = (folder / "server" / "ca.crt").read_bytes()
    copied = []
    for place in sorted(folder.glob("client-[0-9]*")):
        copy = place / "ca.crt"
        if place.is_dir() and not (copy.exists() and copy.read_bytes() == content):
            write(copy, content)
            copied.append(place.name)
    return tuple(copied)


def _have_certificate(folder: Path, names: tuple[str, ...]) -> tuple[bool, bool, tuple[str, ...]]:
    """Have a server's certificate for these names and those of before.

    Whether there was one that could be read, whether it is new, and what it is good for.
    """
    server = folder / "server"
    keys = ServerKeys(folder, server / "ca.crt", server / "server.crt", server / "server.key", {})
    had: tuple[str, ...] = ()
    with contextlib.suppress(DamagedError, FileNotFoundError):
        had, until = names_and_end(keys.certificate)
        left = until - datetime.datetime.now(datetime.UTC)
        lasts = set(names) <= set(had) and left >= datetime.timedelta(days=RENEWED_DAYS)
        if lasts and is_pair(keys.certificate, keys.key) and _why_not_trusted(keys) is None:
            return True, False, had
    names = tuple(dict.fromkeys((*had, *names)))
    authority_key = folder / "authority" / "ca.key"
    if not authority_key.is_file():
        raise FederationError(f"{authority_key} is not there; a certificate for {', '.join(names)} cannot be made")
    signer = read_authority_key(authority_key)
    if not is_pair(keys.authority, authority_key):
        raise FederationError(f"{authority_key} is not the key of {keys.authority}")
    key = ec.generate_private_key(CURVE)
    certificate = (
        _certificate(_common_name(names[-1]), read_certificate(keys.authority).subject, key.public_key(), SERVER_DAYS)
        .add_extension(x509.SubjectAlternativeName([_subject_name(name) for name in names]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
        .sign(signer, hashes.SHA384())
    )
    write_private(keys.key, _pem(key))  # cut off after this they are no pair, and are made again
    write(keys.certificate, certificate.public_bytes(serialization.Encoding.PEM))
    return bool(had), True, names


def _make_client(folder: Path, number: int) -> None:
    key = ec.generate_private_key(CURVE)
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    write(folder / f"client-{number}" / "ca.crt", (folder / "server" / "ca.crt").read_bytes())
    write_private(folder / f"client-{number}" / "client.key", private)
    # Last: with it the client counts as made, so what is cut off before is made anew.
    write(folder / "server" / "clients" / f"{number}.pub", public + b"\n")


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    text: bytes = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return text


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


def _canonical(name: str) -> str:
    """A host as a certificate tells it."""
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        if _HOST.fullmatch(name):
            return name.lower()
        raise FederationError(
            f"--host: {name!r} is neither a host name nor an IP address; no port belongs to it"
        ) from None
    if getattr(address, "scope_id", None):
        raise FederationError(
            f"--host: {name!r} is an address on one machine's own interface, of which no certificate can speak; give "
            "a name, or an address without %"
        )
    return str(address)


def _subject_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and str(int(text)) == text


def _clients_in(server: Path) -> dict[int, Path]:
    files = sorted((server / "clients").glob("*.pub"))
    return {int(file.stem): file for file in files if _is_number(file.stem)}


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


def _existing(folder: Path, remedies: Mapping[str, str]) -> list[Path]:
    files = [(folder / name).resolve() for name in remedies]
    for file, remedy in zip(files, remedies.values(), strict=True):
        if not file.is_file():
            raise FederationError(f"{file} is not there; {remedy}")
        if not os.access(file, os.R_OK):
            raise FederationError(f"{file} cannot be read by this user")
    return files
