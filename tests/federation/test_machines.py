"""A coordinator and its clients on machines of their own, over Flower."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("flwr")

from support_federation import commands, eventually
from support_machines import COORDINATOR, allowed, assert_completes, connected_machines, start_federation

pytestmark = [
    pytest.mark.flower,
    pytest.mark.flower_slow,
    pytest.mark.skipif(not allowed(), reason="this user may make no network namespaces"),
]


def test_the_commands_of_the_tutorial_federate_four_machines(tmp_path: Path) -> None:
    with connected_machines(tmp_path) as machines:
        serve, joins = start_federation(machines, "8443")
        eventually(lambda: all("is connected" in join.said for join in joins), 90, serve.said)
        (superlink,) = [
            command for command in commands(serve.all()) if "bin/flower-superlink" in command and "-I" not in command
        ]
        port = superlink.split("--port ")[1].split()[0]
        assert machines["coordinator"].knock("127.0.0.1", port) == "open"
        assert machines["device0"].knock(COORDINATOR, port) == "Connection refused"
        assert machines["device0"].knock(COORDINATOR, "8443") == "open"
        assert_completes(serve, joins)
