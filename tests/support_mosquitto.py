"""Import this first in tests that run a federation over MQTT: they are skipped where something is missing."""

from __future__ import annotations

import pytest

pytest.importorskip("paho", reason="paho-mqtt is not installed; the extra mqtt brings it")

from tinyproto.errors import FederationError
from tinyproto.federation.mqtt.broker import mosquitto

try:
    MOSQUITTO = mosquitto()
except FederationError:
    pytest.skip("Mosquitto is not installed", allow_module_level=True)
