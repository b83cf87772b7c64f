"""Clients that answer at once with bodies that were made before: `python -m benchmarks.transports.light_member`.

One line of JSON on the standard input says which clients, where the broker is, and the bodies. The process ends when
all clients have heard that the federation is over. It imports no torch: hundreds of clients fit into it.
"""

from __future__ import annotations

import json
import select
import ssl
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paho.mqtt import client as paho

from tinyproto.federation.mqtt.connection import KEEP_ALIVE_SECONDS
from tinyproto.federation.mqtt.messages import Topics, from_json, is_json, to_json, with_counts
from tinyproto.wire.frame import Header, Kind, pack, peek

TOPICS = Topics()


class LightMember:
    """One client without data or network."""

    def __init__(self, client: int, port: int, keys: Path, bodies: Mapping[Kind, bytes]) -> None:
        self.client = client
        self.is_over = False
        self._bodies = bodies
        self._digest = b""
        self._counts = {"up": 0, "down": 0}
        self.link = paho.Client(paho.CallbackAPIVersion.VERSION2, f"client-{client}", protocol=paho.MQTTv5)
        context = ssl.create_default_context(cafile=str(keys / "ca.crt"))
        context.load_cert_chain(keys / "client.crt", keys / "tls.key")
        self.link.tls_set_context(context)
        self.link.on_connect = lambda *_: self.link.subscribe([(TOPICS.down(client), 1), (TOPICS.everyone, 1)])
        self.link.on_subscribe = lambda *_: self._say(to_json(here=f"light-{client}", nonce="0", fresh=1))
        self.link.on_message = lambda _, __, message: self.hear(message.payload)
        self.link.connect("localhost", port, KEEP_ALIVE_SECONDS)

    def hear(self, content: bytes) -> None:
        """Answer a message of the coordinator."""
        self._counts["down"] += len(content)
        if not is_json(content):
            asked = peek(content)
            header = Header(asked.kind.answer, asked.round_number, self.client, self._digest)
            self._say(with_counts(pack(header, self._bodies[header.kind]), self._counts))
            return
        values = from_json(content)
        self.is_over = self.is_over or "over" in values
        if "terms" in values:
            terms = json.loads(values["terms"])
            self._digest = bytes.fromhex(terms["digest"])
            accepted: dict[str, Any] = {"client-id": self.client, "federation": terms["federation"], "nonce": "0"}
            self._say(to_json(**accepted))

    def _say(self, content: bytes) -> None:
        self._counts["up"] += len(content)
        self.link.publish(TOPICS.up(self.client), content, qos=1)

    def read(self) -> None:
        """Take in what has arrived, and write what is waiting."""
        self.link.loop_read()
        while isinstance(opened := self.link.socket(), ssl.SSLSocket) and opened.pending():
            self.link.loop_read()
        while self.link.want_write() and self.link.socket() is not None:
            self.link.loop_write()


def main() -> None:
    """Run the clients until all have heard that the federation is over."""
    said = json.loads(sys.stdin.readline())
    bodies = {Kind[name]: bytes.fromhex(body) for name, body in said["bodies"].items()}
    waiting, members = select.poll(), dict[int, LightMember]()
    for client in said["clients"]:
        member = LightMember(client, said["port"], Path(said["keys"]) / f"client-{client}", bodies)
        member.read()
        members[member.link.socket().fileno()] = member
        waiting.register(member.link.socket(), select.POLLIN)
        for ready, _ in waiting.poll(0):  # the first ones have been asked already
            members[ready].read()
    while not all(member.is_over for member in members.values()):
        for ready, _ in waiting.poll():
            members[ready].read()


if __name__ == "__main__":
    main()
