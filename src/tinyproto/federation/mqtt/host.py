"""MQTT on the coordinator's machine: a broker of our own, or the way to another one, and the coordinator's process."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

from tinyproto.federation.keys import ServerKeys
from tinyproto.federation.mqtt.broker import OwnBroker, mosquitto
from tinyproto.federation.mqtt.tls import other_broker, tls_context
from tinyproto.federation.processes import Leashed, listening
from tinyproto.federation.terms import MqttPlace


class MqttHost:
    """The broker and the coordinator's process; missing files and programs are reported before anything starts."""

    options = "--transport mqtt "
    """Options that `tinyproto join` needs besides the address."""

    farewell_seconds = 10.0
    """Longest time for the coordinator, after the last round, to tell clients that the federation is over."""

    def __init__(self, keys: ServerKeys, address: tuple[str, int], other: MqttPlace | None) -> None:
        self.keys = keys
        self._other = other
        self._address = address
        self._broker: OwnBroker | None = None
        self._tell: Callable[..., None] = lambda *_, **__: None
        proof = keys.for_mqtt()
        if other is None:
            mosquitto()
            listening(*address).close()
        else:
            keys.mac_keys()
            at = other_broker(other.host, other.port, other.authority, keys.authority, proof.certificate, proof.key)
            tls_context(at)

    def start(self, folder: Path, largest_frame: int, tell: Callable[..., None]) -> MqttPlace:
        """Start the broker, unless another one is used; return how the coordinator reaches it."""
        self._tell = tell
        if self._other is None:
            self._broker = OwnBroker(folder / "mqtt", self.keys, self._address, largest_frame)
            host, port = self._broker.address
            return MqttPlace(host=host, port=port)
        return self._other

    def submit(self, folder: Path) -> Leashed:
        """Start the coordinator of a run folder; the process ends with the run."""
        log = folder / "mqtt" / "coordinator.log"
        log.parent.mkdir(mode=0o700, exist_ok=True)
        command = [sys.executable, "-m", "tinyproto.federation.mqtt.coordinate", str(folder.resolve())]
        return Leashed(command, dict(os.environ), log)

    def watch(self) -> None:
        """Start the broker again if it has ended; raise FederationError if that does not help."""
        if self._broker is not None:
            self._broker.watch(self._tell)

    def close(self) -> None:
        """End what was started."""
        if self._broker is not None:
            self._broker.stop()
