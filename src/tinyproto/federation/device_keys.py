"""A client's files for MQTT, checked with the standard library alone.

A device's listener stays small in memory, so this module imports neither `cryptography` nor torch.
"""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tinyproto.errors import FederationError

LOST_AUTHORITY = "copy the coordinator's server/ca.crt; no key has to change"
"""The remedy for a client's ca.crt."""

_MAC = re.compile(rb"[0-9a-fA-F]{64}\s*")
_NO_PAIR = {"KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH", "NO_CERTIFICATE_ASSIGNED"}
"""OpenSSL's reasons where a key is valid, but of another certificate."""


@dataclass(frozen=True)
class DeviceKeys:
    """The files that a client's machine needs for MQTT, and the secret for message authentication codes."""

    authority: Path
    certificate: Path
    key: Path
    mac: bytes  # 32 bytes, shared with the coordinator

    @classmethod
    def open(cls, folder: Path, client: int) -> DeviceKeys:
        """Open a client's folder; raise FederationError if a file is missing or invalid, or key and certificate differ.

        Whether the broker accepts the certificate is not checked: the TLS handshake tells.
        """
        again = f"run `tinyproto serve --init` again and copy client-{client} once more"
        remedies = {"client.crt": again, "tls.key": _how_to_convert(again), "mac.key": again, "ca.crt": LOST_AUTHORITY}
        certificate, key, mac, authority = existing(folder, remedies)
        for file in (authority, certificate):
            _check_certificate(file, remedies[file.name])
        _check_pair(certificate, key, again)
        return cls(authority, certificate, key, read_mac(mac, again))


@contextmanager
def readable(folder: Path) -> Iterator[None]:
    """Turn the error of a folder that this user may not read into a FederationError."""
    try:
        yield
    except PermissionError as error:
        raise FederationError(
            f"{error.filename or folder} cannot be read by this user; change the owner or mode of its folder"
        ) from error


def existing(folder: Path, remedies: Mapping[str, str]) -> list[Path]:
    """Return the files of these names in a folder; raise FederationError with the remedy of the first missing one."""
    files = [(folder / name).resolve() for name in remedies]
    for file, remedy in zip(files, remedies.values(), strict=True):
        if not file.is_file():
            raise FederationError(f"{file} is missing; {remedy}")
        if not os.access(file, os.R_OK):
            raise FederationError(f"{file} cannot be read by this user; change its owner or mode")
    return files


def read_mac(file: Path, remedy: str) -> bytes:
    """Read the secret that a client shares with the coordinator; raise FederationError if the file holds none."""
    try:
        content = file.read_bytes()
    except OSError as error:
        raise FederationError(f"{file} cannot be read: {error.strerror or error}") from error
    if not _MAC.fullmatch(content):
        raise FederationError(f"{file} is not a valid MAC key, which has 64 hexadecimal digits; {remedy}")
    return bytes.fromhex(content.decode())


def _how_to_convert(again: str) -> str:
    """Return the remedy for tls.key, which a device can also make itself from client.key."""
    return f"{again}, or make it from client.key: cp client.key tls.key; ssh-keygen -p -N '' -m PKCS8 -f tls.key"


def _check_certificate(file: Path, remedy: str) -> None:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(file)
    except ssl.SSLError as error:
        raise FederationError(f"{file} is not a valid certificate; {remedy}") from error


def _check_pair(certificate: Path, key: Path, remedy: str) -> None:
    try:
        # Without a password a locked key would ask for one on the terminal.
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(certificate, key, password="")
    except ssl.SSLError as error:
        if error.reason in _NO_PAIR:
            raise FederationError(f"{key} is not the key of {certificate}; {remedy}") from error
        raise FederationError(f"{key} is not a valid private key, or is locked with a password; {remedy}") from error
