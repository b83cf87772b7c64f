"""A client's way in: is the coordinator there, is it the right one, and why did a SuperNode end?"""

from __future__ import annotations

import socket
import ssl
from pathlib import Path

from tinyproto.errors import FederationError

REACH_SECONDS = 10.0


class AwayError(Exception):
    """Nobody answers at the address, for now."""


class TurnedAwayError(Exception):
    """The coordinator answers, but does not take this client in, for now."""


def reach(server: tuple[str, int], authority: Path) -> dict[str, int]:
    """Shake hands with the coordinator as a SuperNode would: the bytes that took, up and down.

    What will not change by waiting is an error, what may is an AwayError.
    """
    host, port = server
    try:
        context = ssl.create_default_context(cafile=str(authority))
    except (ssl.SSLError, OSError) as error:
        raise FederationError(f"{authority} is no certificate of an authority") from error
    try:
        with socket.create_connection(server, REACH_SECONDS) as opened:
            return _shake_hands(opened, context, host)
    except ssl.SSLCertVerificationError as error:
        if error.verify_code in (62, 64):  # another host name, another IP address
            raise FederationError(
                f"{host}:{port} has a certificate for other names than {host}; on its side "
                f"`tinyproto serve --init KEYS --clients N --host {host}` adds one"
            ) from error
        if error.verify_code in (9, 10):  # not yet valid, expired
            raise FederationError(
                f"the certificate of {host}:{port} is not valid now ({error.verify_message}); look at the clocks, or "
                "on its side `tinyproto serve --init KEYS --clients N` renews one that has expired"
            ) from error
        raise FederationError(
            f"{host}:{port} is not of this federation: its certificate is not from the authority in {authority}"
        ) from error
    except ssl.SSLEOFError as error:
        raise AwayError("it hung up") from error
    except ssl.SSLError as error:
        raise FederationError(f"{host}:{port} answers, but speaks no TLS; is that the coordinator?") from error
    except socket.gaierror as error:
        raise AwayError(f"the name {host} is not known") from error
    except TimeoutError as error:
        raise AwayError("no answer") from error
    except OSError as error:
        raise AwayError(error.strerror or str(error)) from error


def _shake_hands(opened: socket.socket, context: ssl.SSLContext, host: str) -> dict[str, int]:
    received, to_send = ssl.MemoryBIO(), ssl.MemoryBIO()
    shaking = context.wrap_bio(received, to_send, server_hostname=host)
    counts = {"up": 0, "down": 0}
    while True:
        try:
            shaking.do_handshake()
            done = True
        except ssl.SSLWantReadError:
            done = False
        data = to_send.read()
        opened.sendall(data)
        counts["up"] += len(data)
        if done:
            opened.shutdown(socket.SHUT_WR)
            while data := opened.recv(65536):  # tickets for another time, which count, too
                counts["down"] += len(data)
            return counts
        data = opened.recv(65536)
        counts["down"] += len(data)
        if data:
            received.write(data)
        else:
            received.write_eof()


def is_cut_off(said: str) -> bool:
    """Whether a SuperNode, from what it wrote, tries in vain to reach the coordinator; it would do so for ever."""
    since = max(said.rfind(words) for words in ("Connection successful", "Sent successfully", "Receiving: "))
    return said.rfind("Connection attempt failed") > since


def why_it_ended(said: str, log: Path) -> Exception:
    """What made a SuperNode end, from what it wrote."""
    if "Exit Code: 305" in said and "code:" in said:
        return TurnedAwayError(
            "the coordinator does not take this key: it is not registered there, or was in use until a moment ago"
        )
    if "terminated gracefully" in said:
        return TurnedAwayError(
            "the coordinator does not accept this client's signature: its key was taken back, or a clock is wrong"
        )
    if "Exit Code: 305" in said:
        return AwayError("the connection broke")
    if "Exit Code: 302" in said:
        return FederationError("the client's key is damaged; client.key of tinyproto serve --init is needed")
    return AwayError(f"Flower's SuperNode ended; its log is {log}")
