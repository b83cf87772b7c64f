"""The certificates and keys that a machine reads, from the folders that `key_making.make_keys` wrote."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tinyproto.errors import FederationError
from tinyproto.federation.certificates import (
    TlsFiles,
    is_pair,
    read_certificate,
    read_client_key,
    read_public,
    why_not_trusted,
)
from tinyproto.federation.device_keys import LOST_AUTHORITY, existing, read_mac, readable

COORDINATOR = "coordinator"
"""The common name of the certificate with which the coordinator connects to its own broker."""

_MISSING_ON_CLIENT = {
    "client.key": "the coordinator has it from `tinyproto serve --init`; if it is lost, remove server/clients/N.pub "
    "there and run that command again",
    "ca.crt": LOST_AUTHORITY,
}
_MADE_BY_INIT = "`tinyproto serve --init` makes it"


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
        remedies = dict.fromkeys(("ca.crt", "server.crt", "server.key"), _MADE_BY_INIT)
        with readable(folder):
            inner = _server_folder(folder)
            authority, certificate, key = existing(inner, remedies)
            return cls(folder, authority, certificate, key, clients_in(inner))

    def only(self, clients: Collection[int]) -> ServerKeys:
        """Return the same keys restricted to these clients."""
        return replace(self, clients={client: self.clients[client] for client in clients})

    def check(self) -> None:
        """Raise FederationError unless certificate, key and authority belong together and client keys differ."""
        read_certificate(self.authority)
        if not is_pair(self.certificate, self.key):
            raise FederationError(
                f"{self.key} is not the key of {self.certificate}; `tinyproto serve --init` replaces both"
            )
        reason = why_not_trusted(self.authority, TlsFiles(self.certificate, self.key))
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

    def client_names(self) -> dict[int, str]:
        """Return the common names of the clients' certificates, by client id."""
        return {client: certificate_name(client, public_pem(file)) for client, file in self.clients.items()}

    def mac_keys(self) -> dict[int, bytes]:
        """Return the secrets shared with the clients, by client id; raise FederationError if one is missing."""
        return {
            client: read_mac_of(*existing(file.parent, {f"{client}.mac": _MADE_BY_INIT}))
            for client, file in self.clients.items()
        }

    def for_mqtt(self) -> TlsFiles:
        """Return the certificate with which the coordinator connects to its broker; raise FederationError if invalid.

        The server's certificate must have passed `check`.
        """
        remedies = dict.fromkeys(("coordinator.crt", "coordinator.key"), _MADE_BY_INIT)
        files = TlsFiles(*existing(_server_folder(self.folder), remedies))
        if not is_pair(files.certificate, files.key):
            raise FederationError(
                f"{files.key} is not the key of {files.certificate}; `tinyproto serve --init` replaces both"
            )
        reason = why_not_trusted(self.authority, TlsFiles(self.certificate, self.key), files)
        if reason is not None:
            raise FederationError(
                f"{files.certificate} is not trusted under {self.authority}: {reason}; `tinyproto serve --init` makes "
                "a new one"
            )
        return files


@dataclass(frozen=True)
class ClientKeys:
    """The files that a client's machine needs."""

    authority: Path
    key: Path

    @classmethod
    def open(cls, folder: Path) -> ClientKeys:
        """Open a client's folder; raise FederationError if a file is missing or the key is invalid."""
        key, authority = existing(folder, _MISSING_ON_CLIENT)
        read_client_key(key)
        return cls(authority, key)


def certificate_name(client: int, public_pem: bytes) -> str:
    """Return the common name of a client's certificate; it is bound to the key, so a replaced key loses its rights."""
    return f"{client}-{hashlib.sha256(public_pem).hexdigest()[:16]}"


def _server_folder(folder: Path) -> Path:
    return folder / "server" if (folder / "server").is_dir() else folder


def clients_in(server: Path) -> dict[int, Path]:
    """Return the public keys by client id; skip files whose name is not a plain number."""
    stems = {file.stem: file for file in sorted((server / "clients").glob("*.pub"))}
    return {int(stem): file for stem, file in stems.items() if re.fullmatch("0|[1-9][0-9]*", stem)}


def public_pem(file: Path) -> bytes:
    """Return a client's public key as PEM; raise FederationError if the file holds no ECDSA public key."""
    return pem_of(read_public(file))


def pem_of(key: ec.EllipticCurvePublicKey) -> bytes:
    """Return a public key as PEM."""
    pem: bytes = key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    return pem


def read_mac_of(file: Path) -> bytes:
    """Read `N.mac`, the coordinator's copy of a client's secret; raise FederationError if it is invalid."""
    return read_mac(
        file, f"restore it from client {file.stem}, or remove it, and `tinyproto serve --init` makes another"
    )
