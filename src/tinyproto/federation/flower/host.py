"""Flower on the coordinator's machine: its SuperLink on the loopback, and the gate before it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from tinyproto.errors import FederationError
from tinyproto.federation.flower.gate import Gate, OpenGate
from tinyproto.federation.flower.processes import SuperLink
from tinyproto.federation.keys import ServerKeys
from tinyproto.federation.processes import Leashed, listening


class FlowerHost:
    """Flower's processes; the address is taken at once, so that an address in use is told before anything starts."""

    options = ""
    """Options that `tinyproto join` needs besides the address."""

    farewell_seconds = 0.0
    """Flower's server app need not end by itself: its clients notice that nobody listens."""

    def __init__(self, keys: ServerKeys, address: tuple[str, int]) -> None:
        self.keys = keys
        self._stack = ExitStack()
        self._opened = self._stack.enter_context(listening(*address))
        self._superlink: SuperLink | None = None

    def start(self, folder: Path, largest_frame: int, tell: Callable[..., None]) -> None:
        """Start a SuperLink, register the clients' keys, and open the gate."""
        superlink = self._superlink = SuperLink(folder / "flower", self.keys)
        self._stack.callback(superlink.stop)
        superlink.wait_until_up()
        superlink.register()
        gate = OpenGate(Gate(superlink.address, self.keys, largest_frame), self.keys, self._opened, tell)
        self._stack.callback(gate.close)

    def submit(self, folder: Path) -> Leashed:
        """Start the coordinator of a run folder; the process ends with the run."""
        assert self._superlink is not None
        return self._superlink.submit(folder)

    def watch(self) -> None:
        """Raise FederationError if the SuperLink has ended."""
        assert self._superlink is not None
        if self._superlink.status is not None:
            raise FederationError(f"Flower's SuperLink ended; its log is {self._superlink.log}")

    def close(self) -> None:
        """End what was started."""
        self._stack.close()
