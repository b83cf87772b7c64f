"""A handshake of TLS with keys as a federation has them."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from pathlib import Path

from tinyproto.federation.flower.connection import reach
from tinyproto.federation.keys import ServerKeys


def shake_hands(server: ServerKeys, host: str, authority: Path) -> None:
    """A client's handshake with a server that has these keys."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(server.certificate, server.key)
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            opened, _ = listening.accept()
            with opened, contextlib.suppress(OSError):  # of which TLS's errors are some
                context.wrap_socket(opened, server_side=True).close()

        thread = threading.Thread(target=answer)
        thread.start()
        try:
            reach((host, listening.getsockname()[1]), authority)
        finally:
            thread.join()
