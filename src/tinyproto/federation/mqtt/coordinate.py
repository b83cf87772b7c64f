"""The coordinator's process over MQTT, `python -m tinyproto.federation.mqtt.coordinate RUN_FOLDER`.

`serve.json` in the run folder, which `tinyproto serve` writes, holds the config, the keys' folder and the broker.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tinyproto.federation.channel import Pace
from tinyproto.federation.coordinator import Coordinator
from tinyproto.federation.journal import Journal, telling_failure
from tinyproto.federation.keys import ServerKeys
from tinyproto.federation.mqtt.broker import LARGEST_TERMS, OVERHEAD
from tinyproto.federation.mqtt.connection import COORDINATOR_KEEP_ALIVE_SECONDS, Connection
from tinyproto.federation.mqtt.messages import Seal, Topics
from tinyproto.federation.mqtt.tls import Broker, other_broker
from tinyproto.federation.mqtt.transport import LONGEST_JSON, MqttTransport
from tinyproto.federation.terms import ServeFile

LOOK_SECONDS = 0.1
"""Time between two looks at which clients are there: the transport knows, so a look costs nothing on the network."""


def main() -> None:
    """Run the federation; write an error into `progress.jsonl` before the process fails."""
    folder = Path(sys.argv[1])
    with telling_failure(folder):
        coordinate(folder)


def coordinate(folder: Path) -> None:
    """Connect to the broker that serve.json names, run the federation, and tell clients that it is over."""
    served = ServeFile.read(folder)
    assert served.mqtt is not None
    assert served.key_folder is not None
    keys = ServerKeys.open(Path(served.key_folder)).only([int(client) for client in served.keys or {}])
    proof = keys.for_mqtt()
    at = served.mqtt
    topics = Topics(at.prefix)
    broker = Broker(at.host, at.port, keys.authority, proof.certificate, proof.key)
    seals: dict[int, Seal] = {}
    if at.foreign:
        broker = other_broker(at.host, at.port, at.authority, keys.authority, proof.certificate, proof.key)
        seals = {client: Seal(secret, client) for client, secret in keys.mac_keys().items()}
    link = Connection(
        broker, f"{at.prefix}coordinator", [topics.up(client) for client in sorted(keys.clients)], begin_anew=True,
        keep_alive=COORDINATOR_KEEP_ALIVE_SECONDS if at.foreign else None,
    )  # fmt: skip
    transport = MqttTransport(
        link, served.federation, b"", served.public_keys(), topics, seals, Journal(folder / "progress.jsonl").tell
    )
    coordinator = Coordinator(folder, transport, Pace(sleep=transport.wait, look=LOOK_SECONDS))
    transport.digest = coordinator.setup.expectation.digest
    # Our own broker passes packets up to its limit on, so that a frame that is too large is refused by name.
    others = LONGEST_JSON if at.foreign else LARGEST_TERMS
    link.limit(max(coordinator.setup.expectation.largest_frame, others) + OVERHEAD)
    try:
        coordinator.run()
        transport.finish()
    finally:
        link.close(keep_session=False)


if __name__ == "__main__":
    main()
