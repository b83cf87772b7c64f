"""Certificates and keys: the federation's own authority, the server's certificate, and one key pair for each client.

`make_keys` writes one folder for each machine, so that a whole folder is copied:

    authority/ca.key                              signs certificates; keep it away from every machine of the federation
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

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tinyproto.errors import FederationError
from tinyproto.federation.journal import writing
from tinyproto.tracking.run_folder import write_atomic

ALWAYS = ("localhost", "127.0.0.1")
"""Names in every server certificate; processes on the coordinator's own machine use them."""

AUTHORITY_DAYS, SERVER_DAYS = 3650, 825
RENEWED_DAYS = 30
"""A server certificate with fewer days left is renewed."""

BACKDATED = datetime.timedelta(hours=1)
"""Tolerance for clocks that differ."""

CURVE = ec.SECP384R1()
PRIVATE = 0o600
"""The mode of private keys."""

_MISSING_ON_CLIENT = {
    "client.key": "the coordinator has it from `tinyproto serve --init`; if it is lost, remove server/clients/N.pub "
    "there and run that command again",
    "ca.crt": "copy the coordinator's server/ca.crt; no key has to change",
}
_HOST = re.compile(r"[a-z0-9-]{1,63}(\.[a-z0-9-]{1,63})*", re.IGNORECASE)


class InvalidFileError(FederationError):
    """A file does not hold the kind of key or certificate that its name says."""

    def __init__(self, file: Path, kind: str) -> None:
        again = {
            "client.key": "ask the coordinator for a new key",
            "ca.key": "start again with a new folder of keys",
        }.get(file.name, "remove it and run `tinyproto serve --init`")
        super().__init__(f"{file} is not a valid {kind}; restore it from a copy, or {again}")


@dataclass(frozen=True)
class ServerKeys:
    """The files that the coordinator's machine needs."""

    folder: Path  # as the user named it
    authority: Path
    certificate: Path
    key: Path
    clients: dict[int, Path]  # public keys

    @classmethod
    def open(cls, folder: Path) -> ServerKeys:
        """Open a folder that `make_keys` wrote, or its part `server`; raise FederationError if a file is missing."""
        inner = folder / "server" if (folder / "server").is_dir() else folder
        remedies = dict.fromkeys(("ca.crt", "server.crt", "server.key"), "`tinyproto serve --init` makes it")
        authority, certificate, key = _existing(inner, remedies)
        return cls(folder, authority, certificate, key, _clients_in(inner))

    def only(self, clients: Collection[int]) -> ServerKeys:
        """Return the same keys restricted to these clients."""
        return replace(self, clients={client: self.clients[client] for client in clients})

    def check(self) -> None:
        """Raise FederationError unless certificate, key and authority belong together and client keys differ."""
        read_certificate(self.authority)
        if not _is_pair(self.certificate, self.key):
            raise FederationError(
                f"{self.key} is not the key of {self.certificate}; `tinyproto serve --init` replaces both"
            )
        reason = _why_not_trusted(self)
        if reason is not None:
            raise FederationError(f"{self.certificate} is not trusted under {self.authority}: {reason}")
        seen: dict[str, int] = {}
        for client, key in self.public_keys().items():
            other = seen.setdefault(key, client)
            if other != client:
                raise FederationError(
                    f"{self.clients[other]} and {self.clients[client]} are the same key; each client needs its own"
                )

    def public_keys(self) -> dict[int, str]:
        """Return the clients' public keys (PEM) in hexadecimal, by client id."""
        return {client: public_pem(file).hex() for client, file in self.clients.items()}


@dataclass(frozen=True)
class ClientKeys:
    """The files that a client's machine needs."""

    authority: Path
    key: Path

    @classmethod
    def open(cls, folder: Path) -> ClientKeys:
        """Open a client's folder; raise FederationError if a file is missing or the key is invalid."""
        key, authority = _existing(folder, _MISSING_ON_CLIENT)
        try:
            private = serialization.load_ssh_private_key(key.read_bytes(), password=None)
        except (ValueError, TypeError, UnsupportedAlgorithm) as error:
            raise InvalidFileError(key, "private key") from error
        if not isinstance(private, ec.EllipticCurvePrivateKey):
            raise InvalidFileError(key, "ECDSA key")
        return cls(authority, key)


@dataclass(frozen=True)
class MadeKeys:
    """The result of `make_keys`."""

    names: tuple[str, ...]  # in the server's certificate
    authority: bool  # True if ca.crt is new
    certificate: bool  # True if server.crt is new
    clients: tuple[int, ...]  # new ones


def make_keys(folder: Path, clients: int, hosts: Sequence[str]) -> MadeKeys:
    """Make the missing keys and certificates; keep existing keys, so that a federation can grow.

    A client's public key here decides: where `server/clients/N.pub` is missing, both halves are made again. An invalid
    file is replaced where nobody else depends on it; otherwise an error names it.
    """
    names = tuple(dict.fromkeys((*ALWAYS, *map(_canonical, hosts))))
    if folder.exists() and not folder.is_dir():
        raise FederationError(f"--init: {folder} is a file, not a folder; choose another name")
    known = _clients_in(folder / "server")
    for number in sorted(known.keys() & range(clients)):
        public_pem(known[number])
    with writing(folder):
        if not (folder / ".gitignore").exists():
            _write(folder / ".gitignore", "*\n")  # private keys belong in no repository
        authority = _ensure_authority(folder)
        certificate, names = _ensure_certificate(folder, names)
        new = tuple(number for number in range(clients) if number not in known)
        for number in new:
            _make_client(folder, number)
        content = (folder / "server" / "ca.crt").read_text(encoding="ascii")
        for place in sorted(folder.glob("client-[0-9]*/")):
            _write(place / "ca.crt", content)
    return MadeKeys(names, authority, certificate, new)


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
    _certify(place, _read_authority_key(key_place))
    return True


def _certify(place: Path, key: ec.EllipticCurvePrivateKey) -> None:
    """Write the authority's self-signed certificate."""
    name = _common_name("tinyproto federation")
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
    _write(place, certificate.public_bytes(serialization.Encoding.PEM).decode())


def _ensure_certificate(folder: Path, names: tuple[str, ...]) -> tuple[bool, tuple[str, ...]]:
    """Keep or sign a server certificate for these names and those of the existing one; return whether it was signed."""
    server = folder / "server"
    keys = ServerKeys(folder, server / "ca.crt", server / "server.crt", server / "server.key", {})
    had: tuple[str, ...] = ()
    with contextlib.suppress(InvalidFileError, FileNotFoundError):
        had, until = _names_and_end(keys.certificate)
        left = until - datetime.datetime.now(datetime.UTC)
        lasts = set(names) <= set(had) and left >= datetime.timedelta(days=RENEWED_DAYS)
        if lasts and _is_pair(keys.certificate, keys.key) and _why_not_trusted(keys) is None:
            return False, had
    names = tuple(dict.fromkeys((*had, *names)))
    authority_key = folder / "authority" / "ca.key"
    if not authority_key.is_file():
        raise FederationError(f"{authority_key} is missing; it must sign a certificate for {', '.join(names)}")
    signer = _read_authority_key(authority_key)
    if not _is_pair(keys.authority, authority_key):
        raise FederationError(f"{authority_key} is not the key of {keys.authority}; restore the one that is")
    key = ec.generate_private_key(CURVE)
    certificate = (
        _certificate(_common_name(names[-1]), read_certificate(keys.authority).subject, key.public_key(), SERVER_DAYS)
        .add_extension(x509.SubjectAlternativeName([_subject_name(name) for name in names]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
        .sign(signer, hashes.SHA384())
    )
    _write(keys.key, _pem(key), PRIVATE)  # if interrupted here they are no pair, and the next call makes both again
    _write(keys.certificate, certificate.public_bytes(serialization.Encoding.PEM).decode())
    return True, names


def _make_client(folder: Path, number: int) -> None:
    key = ec.generate_private_key(CURVE)
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    _write(folder / f"client-{number}" / "client.key", _pem(key, serialization.PrivateFormat.OpenSSH), PRIVATE)
    # Last, since it marks the client as made: after an interruption the next call makes both again.
    _write(folder / "server" / "clients" / f"{number}.pub", public.decode() + "\n")


def _pem(key: ec.EllipticCurvePrivateKey, form: serialization.PrivateFormat = serialization.PrivateFormat.PKCS8) -> str:
    text: bytes = key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
    return text.decode()


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
    """Return a host name or IP address as a certificate writes it."""
    if "%" not in name:  # an address of one interface, which no certificate can name
        with contextlib.suppress(ValueError):
            return str(ipaddress.ip_address(name))
    if _HOST.fullmatch(name):
        return name.lower()
    raise FederationError(f"--host: {name!r} is not a host name or IP address; give it without a port or interface")


def _subject_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _clients_in(server: Path) -> dict[int, Path]:
    """Return the public keys by client id; skip files whose name is not a plain number."""
    stems = {file.stem: file for file in sorted((server / "clients").glob("*.pub"))}
    return {int(stem): file for stem, file in stems.items() if re.fullmatch("0|[1-9][0-9]*", stem)}


def _why_not_trusted(keys: ServerKeys) -> str | None:
    """Run the TLS handshake of a process on the coordinator's machine in memory; return its error, if any."""
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
            raise FederationError(f"{file} is missing; {remedy}")
        if not os.access(file, os.R_OK):
            raise FederationError(f"{file} cannot be read by this user; change its owner or mode")
    return files


def read_certificate(file: Path) -> x509.Certificate:
    """Read a certificate; raise InvalidFileError if the file holds none."""
    try:
        return x509.load_pem_x509_certificate(file.read_bytes())
    except ValueError as error:
        raise InvalidFileError(file, "certificate") from error


def _read_private(file: Path) -> PrivateKeyTypes:
    try:
        return serialization.load_pem_private_key(file.read_bytes(), password=None)
    except TypeError as error:
        raise FederationError(f"{file} is locked with a password; replace it by an unlocked one") from error
    except (ValueError, UnsupportedAlgorithm) as error:
        raise InvalidFileError(file, "private key") from error


def _read_authority_key(file: Path) -> ec.EllipticCurvePrivateKey:
    key = _read_private(file)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise FederationError(f"{file} was not made by `tinyproto serve --init`; restore the key that was")
    return key


def _is_pair(certificate: Path, key: Path) -> bool:
    return bool(read_certificate(certificate).public_key() == _read_private(key).public_key())


def _names_and_end(certificate: Path) -> tuple[tuple[str, ...], datetime.datetime]:
    """Return the host names in a certificate, and the end of its validity."""
    loaded = read_certificate(certificate)
    try:
        names = loaded.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return (), loaded.not_valid_after_utc
    hosts = (name for name in names if isinstance(name, x509.DNSName | x509.IPAddress))
    return tuple(str(name.value).lower() for name in hosts), loaded.not_valid_after_utc


def public_pem(file: Path) -> bytes:
    """Return a client's public key as PEM; raise FederationError if the file holds no ECDSA public key."""
    try:
        key = serialization.load_ssh_public_key(file.read_bytes())
    except OSError as error:
        raise FederationError(f"{file} cannot be read: {error.strerror or error}") from error
    except (ValueError, UnsupportedAlgorithm) as error:
        raise FederationError(
            f"{file} is not a valid public key; restore that of client {file.stem}, or remove the file, and `tinyproto "
            "serve --init` makes a new pair"
        ) from error
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise FederationError(f"{file} is not an ECDSA key; make one with ssh-keygen -t ecdsa -b 384")
    pem: bytes = key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    return pem


def _write(file: Path, text: str, mode: int = 0o666) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(file, text, mode)
