"""A client's way in: is the coordinator there, is it the right one, and why did a SuperNode end?"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable
from pathlib import Path

from tinyproto.errors import FederationError

REACH_SECONDS = 10.0
LOOK_SECONDS = 2.0
BLIP_SECONDS = 5.0
"""A line that is dead for less is not spoken of."""


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
        raise FederationError(
            f"{authority} is no certificate of an authority; it is to be a copy of the coordinator's server/ca.crt"
        ) from error
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


class Line:
    """A connected SuperNode's line to the coordinator, which it tries for ever to mend when it breaks.

    Its log tells of tries that failed, but those have other reasons, too: a request that was slow, an app that looked
    for its own SuperNode. So where they go on for a while, the coordinator itself is looked for.
    """

    def __init__(self, said: Callable[[], str], look_for_it: Callable[[], object]) -> None:
        self._said = said
        self._look_for_it = look_for_it
        self._settled = 0  # how much of the log is explained
        self._next_look: float | None = None
        self._failing_since: float | None = None
        self._dead: str | None = None

    def why_dead(self, now: float) -> str | None:
        """Why nobody answers; None while somebody does, as far as is known."""
        if self._next_look is None or now >= self._next_look:
            self._next_look = now + LOOK_SECONDS
            self._look(now)
        return self._dead

    def _look(self, now: float) -> None:
        said = self._said()
        if not is_cut_off(said[self._settled :]):
            self._failing_since = self._dead = None
        elif self._failing_since is None:
            self._failing_since = now
        elif self._dead is None and now - self._failing_since >= BLIP_SECONDS:
            try:
                self._look_for_it()
            except AwayError as reason:
                self._dead = str(reason)
            else:
                self._settled, self._failing_since = len(said), None


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
