"""A broker's address, how this end proves to it who it is, and the TLS sockets to it, which count their bytes."""

from __future__ import annotations

import math
import os
import socket
import ssl
import struct
from dataclasses import dataclass
from pathlib import Path

from tinyproto.errors import FederationError

OTHER = "--broker"
"""The option for a broker that is not the coordinator's own."""

_BYTES_SENT, _BYTES_RESENT, _BYTES_RECEIVED = 200, 208, 128  # in Linux's struct tcp_info


@dataclass(frozen=True)
class Broker:
    """A broker, and how this end proves to it who it is."""

    host: str
    port: int
    authority: Path | None  # None: the system's authorities
    certificate: Path | None = None
    key: Path | None = None
    username: str | None = None
    password: str | None = None
    option: str = "--server"  # of the command line that named it

    @property
    def words(self) -> str:
        """Return HOST:PORT."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def other_broker(
    host: str, port: int, authority: str | None, ours: Path, certificate: Path, key: Path
) -> Broker:  # fmt: skip
    """Return a broker that is not the coordinator's own.

    `authority` is the file with its authority's certificate, or `system`; None is our own authority. With
    TINYPROTO_MQTT_USERNAME and TINYPROTO_MQTT_PASSWORD in the environment, these replace our certificate.
    """
    trusted = ours if authority is None else None if authority == "system" else Path(authority)
    user, password = _variable("TINYPROTO_MQTT_USERNAME"), _variable("TINYPROTO_MQTT_PASSWORD")
    if user is None:
        return Broker(host, port, trusted, certificate, key, option=OTHER)
    return Broker(host, port, trusted, username=user, password=password, option=OTHER)


def _variable(name: str) -> str | None:
    """Return a variable of the environment; raise FederationError for a value that MQTT cannot carry."""
    value = os.environ.get(name)
    try:
        fits = value is None or len(value.encode()) < 2**16
    except UnicodeEncodeError:
        fits = False
    if not fits:
        raise FederationError(f"{name} is no UTF-8 text of at most 65535 bytes; correct it")
    return value


class CountingSocket(ssl.SSLSocket):
    """A TLS socket that remembers why it failed, and what it counted when it is closed."""

    failure: str | None = None
    most: float = math.inf
    """Bytes of the largest packet that is received."""

    _last: dict[str, int] | None = None

    def recv(self, buflen: int = 1024, flags: int = 0) -> bytes:
        """Receive bytes; `buflen` is what is left of a packet, by its announced length."""
        if buflen > self.most:
            self.failure = f"a packet of {buflen} bytes was announced, but packets have at most {self.most}"
            raise OSError(self.failure)
        try:
            return super().recv(buflen, flags)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError as error:
            self.failure = error.reason or str(error)
            raise
        except OSError as error:
            self.failure = error.strerror or str(error)
            raise

    def close(self) -> None:
        """Close it."""
        self.counted()
        super().close()

    def counted(self) -> dict[str, int]:
        """Return the bytes of TCP's payload since it was opened, as Linux counts them."""
        try:
            info = self.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
            sent, resent, received = (
                struct.unpack_from("=Q", info, place)[0] for place in (_BYTES_SENT, _BYTES_RESENT, _BYTES_RECEIVED)
            )
            self._last = {"up": sent - resent, "down": received}
        except (AttributeError, OSError, struct.error):  # only Linux counts
            pass
        return self._last or {"up": 0, "down": 0}


def tls_context(broker: Broker) -> ssl.SSLContext:
    """Return the context for connections to this broker; raise FederationError if its authority's file is invalid."""
    try:
        context = ssl.create_default_context(cafile=None if broker.authority is None else str(broker.authority))
    except (ssl.SSLError, OSError) as error:
        raise FederationError(f"{broker.authority} is not a valid certificate of an authority: {error}") from error
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if broker.certificate is not None:  # it was checked with its key
        context.load_cert_chain(broker.certificate, broker.key)
    context.sslsocket_class = CountingSocket
    return context
