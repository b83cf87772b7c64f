"""X.509 certificates and private keys: sign them, read them from files, and check that they belong together."""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID, ObjectIdentifier

from tinyproto.errors import FederationError

AUTHORITY_DAYS, SERVER_DAYS, CLIENT_DAYS = 3650, 825, 3650
RENEWED_DAYS = 30
"""A certificate with fewer days left is renewed."""

BACKDATED = datetime.timedelta(hours=1)
"""Tolerance for clocks that differ."""


class InvalidFileError(FederationError):
    """A file does not hold the kind of key or certificate that its name says."""

    def __init__(self, file: Path, kind: str) -> None:
        again = {
            "client.key": "ask the coordinator for a new key",
            "ca.key": "start again with a new folder of keys",
        }.get(file.name, "remove it and run `tinyproto serve --init`")
        super().__init__(f"{file} is not a valid {kind}; restore it from a copy, or {again}")


@dataclass(frozen=True)
class TlsFiles:
    """A certificate and its private key."""

    certificate: Path
    key: Path


@dataclass(frozen=True)
class Authority:
    """The authority's certificate and private key, which sign other certificates."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @classmethod
    def open(cls, certificate: Path, key: Path) -> Authority:
        """Read both files; raise FederationError if they are no pair or the certificate has expired."""
        private, loaded = read_authority_key(key), read_certificate(certificate)
        if loaded.public_key() != private.public_key():
            raise FederationError(f"{key} is not the key of {certificate}; restore the one that is")
        if loaded.not_valid_after_utc <= _now():
            raise FederationError(
                f"{certificate} has expired; remove it, and `tinyproto serve --init` signs another, of which each "
                "client needs a copy"
            )
        return cls(loaded, private)

    def sign_server(self, key: ec.EllipticCurvePublicKey, names: Sequence[str]) -> str:
        """Return a server's certificate (PEM) for these host names; the last one is its common name."""
        subjects = x509.SubjectAlternativeName([_subject_name(name) for name in names])
        until = _now() + datetime.timedelta(days=SERVER_DAYS)
        return self._sign(key, names[-1], until, ExtendedKeyUsageOID.SERVER_AUTH, subjects)

    def sign_client(self, key: ec.EllipticCurvePublicKey, name: str) -> str:
        """Return a client's certificate (PEM), which ends no later than the authority's."""
        until = min(_now() + datetime.timedelta(days=CLIENT_DAYS), self.certificate.not_valid_after_utc)
        return self._sign(key, name, until, ExtendedKeyUsageOID.CLIENT_AUTH)

    def _sign(
        self,
        key: ec.EllipticCurvePublicKey,
        name: str,
        until: datetime.datetime,
        usage: ObjectIdentifier,
        *more: x509.ExtensionType,
    ) -> str:
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key())
        unsigned = _certificate(_common_name(name), self.certificate.subject, key, until).add_extension(
            x509.BasicConstraints(ca=False, path_length=None), critical=True
        )
        for extension in (*more, x509.ExtendedKeyUsage([usage]), issuer):
            unsigned = unsigned.add_extension(extension, critical=False)
        return _certificate_pem(unsigned.sign(self.key, hashes.SHA384()))


def authority_certificate(key: ec.EllipticCurvePrivateKey) -> str:
    """Return an authority's self-signed certificate (PEM)."""
    name = _common_name("tinyproto federation")
    usage = x509.KeyUsage(
        digital_signature=False, content_commitment=False, key_encipherment=False, data_encipherment=False,
        key_agreement=False, key_cert_sign=True, crl_sign=True, encipher_only=False, decipher_only=False,
    )  # fmt: skip
    signed = (
        _certificate(name, name, key.public_key(), _now() + datetime.timedelta(days=AUTHORITY_DAYS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA384())
    )
    return _certificate_pem(signed)


def _certificate(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, until: datetime.datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(_now() - BACKDATED)
        .not_valid_after(until)
    )


def _certificate_pem(certificate: x509.Certificate) -> str:
    text: bytes = certificate.public_bytes(serialization.Encoding.PEM)
    return text.decode()


def _common_name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])


def _subject_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


def read_certificate(file: Path) -> x509.Certificate:
    """Read a certificate; raise InvalidFileError if the file holds none."""
    try:
        return x509.load_pem_x509_certificate(file.read_bytes())
    except ValueError as error:
        raise InvalidFileError(file, "certificate") from error


def read_private(file: Path) -> PrivateKeyTypes:
    """Read a private key (PEM); raise FederationError if it is invalid or locked with a password."""
    try:
        return serialization.load_pem_private_key(file.read_bytes(), password=None)
    except TypeError as error:
        raise FederationError(f"{file} is locked with a password; replace it by an unlocked one") from error
    except (ValueError, UnsupportedAlgorithm) as error:
        raise InvalidFileError(file, "private key") from error


def read_client_key(file: Path) -> ec.EllipticCurvePrivateKey:
    """Read a client's private key, which has OpenSSH's format; raise InvalidFileError if it is no ECDSA key."""
    try:
        key = serialization.load_ssh_private_key(file.read_bytes(), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise InvalidFileError(file, "private key") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise InvalidFileError(file, "ECDSA key")
    return key


def read_authority_key(file: Path) -> ec.EllipticCurvePrivateKey:
    """Read the authority's private key; raise FederationError if it is another kind of key."""
    key = read_private(file)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise FederationError(f"{file} was not made by `tinyproto serve --init`; restore the key that was")
    return key


def read_public(file: Path) -> ec.EllipticCurvePublicKey:
    """Read a client's public key; raise FederationError if the file holds no ECDSA public key."""
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
    return key


def is_pair(certificate: Path, key: Path) -> bool:
    """Return True if the private key is that of the certificate."""
    return bool(read_certificate(certificate).public_key() == read_private(key).public_key())


def lasts(certificate: x509.Certificate) -> bool:
    """Return True unless a certificate has expired or ends soon."""
    return bool(certificate.not_valid_after_utc >= _now() + datetime.timedelta(days=RENEWED_DAYS))


def is_current(file: Path, authority: Path, name: str, key: ec.EllipticCurvePublicKey) -> bool:
    """Return True if a file holds a certificate of this name and key that lasts and that the authority signed."""
    signer = read_certificate(authority)
    try:
        found = read_certificate(file)
        found.verify_directly_issued_by(signer)
    except (InvalidFileError, FileNotFoundError, ValueError, TypeError, InvalidSignature):
        return False
    # Signing again cannot extend a certificate that ends together with its authority's.
    long_enough = lasts(found) or found.not_valid_after_utc >= signer.not_valid_after_utc
    return bool(long_enough and found.subject == _common_name(name) and found.public_key() == key)


def host_names(certificate: x509.Certificate) -> tuple[str, ...]:
    """Return the host names and IP addresses in a certificate."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return ()
    hosts = (name for name in names if isinstance(name, x509.DNSName | x509.IPAddress))
    return tuple(str(name.value).lower() for name in hosts)


def why_not_trusted(authority: Path, server: TlsFiles, client: TlsFiles | None = None) -> str | None:
    """Run the TLS handshake of a process on the coordinator's machine in memory; return its error, if any.

    With a client's certificate the handshake is mutual.
    """
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    try:
        listening = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        listening.load_cert_chain(server.certificate, server.key)
        connecting = ssl.create_default_context(cafile=str(authority))
        if client is not None:
            listening.verify_mode = ssl.CERT_REQUIRED
            listening.load_verify_locations(authority)
            connecting.load_cert_chain(client.certificate, client.key)
        near = connecting.wrap_bio(to_client, to_server, server_hostname="127.0.0.1")
        far = listening.wrap_bio(to_server, to_client, server_side=True)
        for end in (near, far, near, far):
            with contextlib.suppress(ssl.SSLWantReadError):
                end.do_handshake()
    except ssl.SSLCertVerificationError as error:
        return error.verify_message
    except ssl.SSLError as error:
        return error.reason or str(error)
    return None
