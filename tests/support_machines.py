"""Machines of their own for a coordinator and its clients: network namespaces with a switch between them."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from support_federation import CONFIG, NETWORKS, Running

COORDINATOR = "10.77.0.1"
MACHINES = {"coordinator": COORDINATOR, "device0": "10.77.0.2", "device1": "10.77.0.3", "device2": "10.77.0.4"}
KNOCK = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], int(sys.argv[2])), 3)
except OSError as error:
    print(error.strerror)
else:
    print("open")
"""


def ip(*arguments: str) -> bool:
    done = subprocess.run(["ip", *arguments], capture_output=True, check=False)
    return done.returncode == 0


def allowed() -> bool:
    """Return True if this user may make network namespaces."""
    if shutil.which("ip") is None or os.geteuid() != 0:
        return False
    name = f"tp{os.getpid()}"
    made = ip("netns", "add", name) and ip("-n", name, "link", "add", "probe", "type", "bridge")
    ip("netns", "del", name)
    return made


class Machine:
    """A host of its own: its network, and a folder in which commands are typed."""

    def __init__(self, name: str, folder: Path) -> None:
        self.namespace = f"tp{os.getpid()}-{name}"
        self.folder = folder / name
        self.folder.mkdir()

    def command(self, *words: str) -> list[str]:
        return ["ip", "netns", "exec", self.namespace, *words]

    def type(self, *words: str) -> Running:
        """A `tinyproto` command."""
        return Running(self.folder, "out", *words, inside=self.command())

    def knock(self, host: str, port: str) -> str:
        return subprocess.run(
            self.command(sys.executable, "-c", KNOCK, host, port), capture_output=True, text=True, check=True
        ).stdout.strip()


@contextlib.contextmanager
def connected_machines(folder: Path) -> Iterator[dict[str, Machine]]:
    """Yield machines by name, each connected to the switch; what runs on them ends with them."""
    made = {name: Machine(name, folder) for name in MACHINES}
    switch = f"tp{os.getpid()}-switch"
    try:
        assert ip("netns", "add", switch)
        assert ip("-n", switch, "link", "add", "bridge", "type", "bridge")
        assert ip("-n", switch, "link", "set", "bridge", "up")
        for number, (name, machine) in enumerate(made.items()):
            assert ip("netns", "add", machine.namespace)
            assert ip(
                "-n", machine.namespace, "link", "add", "eth0", "type", "veth", "peer", f"port{number}", "netns", switch
            )
            assert ip("-n", switch, "link", "set", f"port{number}", "master", "bridge", "up")
            assert ip("-n", machine.namespace, "addr", "add", f"{MACHINES[name]}/24", "dev", "eth0")
            assert ip("-n", machine.namespace, "link", "set", "eth0", "up")
            assert ip("-n", machine.namespace, "link", "set", "lo", "up")
        yield made
    finally:
        for namespace in (switch, *(machine.namespace for machine in made.values())):
            for process in subprocess.run(
                ["ip", "netns", "pids", namespace], capture_output=True, text=True, check=False
            ).stdout.split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(process), signal.SIGKILL)
            ip("netns", "del", namespace)


def start_federation(machines: dict[str, Machine], port: str, *transport: str) -> tuple[Running, list[Running]]:
    """Type what docs/how-to/deploy.md shows: make and copy keys, then serve on one machine and join on the others."""
    home = machines["coordinator"]
    (home.folder / "federation.yaml").write_text(CONFIG.format(rounds=2, quorum=1.0, deadline=60))
    init = home.type("serve", "--init", "keys", "--clients", "3", "--host", COORDINATOR)
    assert init.wait(60) == 0, init.said
    serve = home.type("serve", "federation.yaml", *transport, "--listen", f"0.0.0.0:{port}")
    joins = []
    for client, network in enumerate(NETWORKS):
        device = machines[f"device{client}"]
        shutil.copytree(home.folder / "keys" / f"client-{client}", device.folder / "keys" / f"client-{client}")
        shutil.copy(home.folder / "federation.yaml", device.folder)
        joins.append(
            device.type(
                "join", *transport, "--server", f"{COORDINATOR}:{port}", "--client-id", str(client), "--share",
                "federation.yaml", "--model", network,
            )
        )  # fmt: skip
    return serve, joins


def assert_completes(serve: Running, joins: list[Running]) -> None:
    """Wait for the end of the federation; all end well, and nothing is left running."""
    assert serve.wait(240) == 0, serve.said
    for join in joins:
        assert join.wait(90) == 0, join.said
    for running in (serve, *joins):
        running.assert_nothing_left()
    assert "round 2 of 2: 3 clients" in serve.said
