"""One file of keys or certificates at a time: read with a sentence for what is wrong, compared, written whole."""

from __future__ import annotations

import datetime
import os
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes

from tinyproto.errors import FederationError

_DAMAGED = {
    "ca.crt": "remove it, and tinyproto serve --init puts it back",
    "ca.key": "put a copy of it in its place, or make keys in another folder",
    "server.crt": "tinyproto serve --init makes it anew",
    "server.key": "tinyproto serve --init makes it anew",
}


class DamagedError(FederationError):
    """What is in a file is not what its name says."""


def _damaged(file: Path, kind: str) -> DamagedError:
    remedy = _DAMAGED.get(file.name)  # none of one that lies elsewhere, behind a link
    return DamagedError(f"{file} is no {kind}{f'; {remedy}' if remedy else ''}")


def read_certificate(file: Path) -> x509.Certificate:
    """The one in a file."""
    try:
        return x509.load_pem_x509_certificate(file.read_bytes())
    except ValueError as error:
        raise _damaged(file, "certificate") from error


def _read_private(file: Path) -> PrivateKeyTypes:
    try:
        return serialization.load_pem_private_key(file.read_bytes(), password=None)
    except TypeError as error:
        raise FederationError(f"{file} is locked with a password, which nobody here knows") from error
    except (ValueError, UnsupportedAlgorithm) as error:
        raise _damaged(file, "private key") from error


def read_authority_key(file: Path) -> ec.EllipticCurvePrivateKey:
    """A key that signs certificates."""
    key = _read_private(file)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise FederationError(f"{file} is no key that tinyproto serve --init made")
    return key


def is_pair(certificate: Path, key: Path) -> bool:
    """Whether the key is the certificate's."""
    return bool(read_certificate(certificate).public_key() == _read_private(key).public_key())


def vouches_for(authority: Path, certificate: Path) -> bool | None:
    """Whether it has signed it; None where one of them is missing or damaged."""
    try:
        read_certificate(certificate).verify_directly_issued_by(read_certificate(authority))
    except (DamagedError, FileNotFoundError):
        return None
    except (InvalidSignature, TypeError, ValueError):
        return False
    return True


def names_and_end(certificate: Path) -> tuple[tuple[str, ...], datetime.datetime]:
    """What it is good for, and until when."""
    loaded = read_certificate(certificate)
    try:
        names = loaded.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return (), loaded.not_valid_after_utc
    told = (name for name in names if isinstance(name, x509.DNSName | x509.IPAddress))
    return tuple(str(name.value).lower() for name in told), loaded.not_valid_after_utc


def as_flower_tells(file: Path) -> bytes:
    """A client's public key."""
    try:
        key = serialization.load_ssh_public_key(file.read_bytes())
    except OSError as error:
        raise FederationError(f"{file} cannot be read: {error.strerror or error}") from error
    except (ValueError, UnsupportedAlgorithm) as error:
        raise FederationError(
            f"{file} is no public key; put that of client {file.stem} in its place, or remove it, and tinyproto serve "
            "--init makes the client a new pair"
        ) from error
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise FederationError(
            f"{file} is no ECDSA key, and Flower takes no other: ssh-keygen -t ecdsa -b 384 makes one"
        )
    told: bytes = key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    return told


def write(file: Path, content: bytes, mode: int = 0o666) -> None:
    """Whole, or as it was; nobody else may read it from the first byte on, where the mode says so."""
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_name(f".{file.name}.partial")
    partial.unlink(missing_ok=True)
    with open(partial, "xb", opener=lambda path, flags: os.open(path, flags, mode)) as stream:
        stream.write(content)
    partial.replace(file)


def write_private(file: Path, content: bytes) -> None:
    """Only its owner may read it."""
    write(file, content, 0o600)
