"""Why the other end of a TLS connection was not reached, in words, and what waiting cannot change."""

from __future__ import annotations

import socket
import ssl
from pathlib import Path

from tinyproto.errors import FederationError

_OTHER_NAME, _OTHER_ADDRESS, _NOT_YET_VALID, _EXPIRED = 62, 64, 9, 10  # OpenSSL's codes


def why_unreachable(
    error: Exception, address: tuple[str, int], authority: Path | None, option: str = "--server"
) -> str:  # fmt: skip
    """Return why nobody answers at an address, for now; raise FederationError for what waiting does not change.

    The authority is the file with its certificate; None stands for the system's authorities. `option` is where the
    address comes from: with --broker, the other end's certificate is not the federation's.
    """
    host, port = address
    where = f"{host}:{port}"
    if isinstance(error, ssl.SSLCertVerificationError):
        words = _objection(error, where, host, authority) if option == "--server" else _others(error, where, authority)
        raise FederationError(words) from error
    if isinstance(error, ssl.SSLEOFError):
        return "it closed the connection"
    if isinstance(error, TimeoutError):
        return "no answer"
    if isinstance(error, ssl.SSLError):
        raise FederationError(f"{where} answers without TLS; check that {option} has the right address") from error
    if isinstance(error, socket.gaierror):
        return f"the host name {host} is unknown"
    return getattr(error, "strerror", None) or str(error)


def _others(error: ssl.SSLCertVerificationError, where: str, authority: Path | None) -> str:
    """Return what is wrong with the certificate of a broker that is not the coordinator's own."""
    if error.verify_code in (_OTHER_NAME, _OTHER_ADDRESS, _NOT_YET_VALID, _EXPIRED):
        return f"the certificate of the broker {where} is not valid: {error.verify_message}"
    known = "an authority that this system knows" if authority is None else f"the authority in {authority}"
    return f"the certificate of the broker {where} is not from {known}; name its authority with --broker-ca"


def _objection(error: ssl.SSLCertVerificationError, where: str, host: str, authority: Path | None) -> str:
    """Return what is wrong with the coordinator's certificate."""
    if error.verify_code in (_OTHER_NAME, _OTHER_ADDRESS):
        return (
            f"the certificate of {where} does not name {host}; on the coordinator's machine "
            f"`tinyproto serve --init KEYS --clients N --host {host}` adds it"
        )
    if error.verify_code in (_NOT_YET_VALID, _EXPIRED):
        return (
            f"the certificate of {where} is not valid now ({error.verify_message}); check the clocks, or renew it on "
            "the coordinator's machine with `tinyproto serve --init KEYS --clients N`"
        )
    return f"{where} is not in this federation: its certificate is not from the authority in {authority}"
