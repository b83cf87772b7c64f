"""A coordinator and its clients on machines of their own, over MQTT."""

from __future__ import annotations

from pathlib import Path

import pytest

import support_mosquitto  # noqa: F401  # isort: skip
from support_federation import eventually
from support_machines import COORDINATOR, MACHINES, allowed, assert_completes, connected_machines, start_federation

pytestmark = [
    pytest.mark.mqtt,
    pytest.mark.mqtt_slow,
    pytest.mark.skipif(not allowed(), reason="this user may make no network namespaces"),
]


def test_the_commands_of_the_page_federate_four_machines(tmp_path: Path) -> None:
    with connected_machines(tmp_path) as machines:
        serve, joins = start_federation(machines, "8883", "--transport", "mqtt")
        eventually(lambda: all("is connected" in join.said for join in joins), 90, serve.said)
        assert machines["device0"].knock(COORDINATOR, "8883") == "open"
        assert machines["coordinator"].knock(MACHINES["device0"], "8883") == "Connection refused"
        assert_completes(serve, joins)
