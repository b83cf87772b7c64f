"""The roster of a federation: nodes that accepted the terms, by client id, and nodes that were refused."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from tinyproto.federation.journal import Journal
from tinyproto.federation.refusals import WORDS

Clock = Callable[[], float]


@dataclass
class Roster:
    """Maps client ids to nodes.

    If the coordinator knows the clients' public keys, a client id belongs to its key, and an id without a key cannot
    take part. Otherwise it belongs to the node that claimed it first, for as long as that node is online.
    """

    num_clients: int
    journal: Journal
    clock: Clock
    patience: float  # seconds until a node that was refused or silent is asked again
    keys: Mapping[int, bytes] = field(default_factory=dict)
    nodes: dict[int, int] = field(default_factory=dict)  # by client id
    online: dict[int, bytes] = field(default_factory=dict)  # public keys by node
    asked: dict[int, float] = field(default_factory=dict)  # time of the last hello, by node without a client id
    reasons: dict[int, str] = field(default_factory=dict)  # last refusal, by node
    stalls: dict[int, int] = field(default_factory=dict)  # times that a node did not send its sizes

    @property
    def members(self) -> Collection[int]:
        """Return the client ids that may take part."""
        return self.keys or range(self.num_clients)

    @property
    def present(self) -> list[int]:
        """Return the client ids that are online, sorted."""
        return sorted(client for client, node in self.nodes.items() if node in self.online)

    def missing(self) -> Collection[int]:
        """Return the client ids that may take part and are not online."""
        return sorted(set(self.members) - set(self.present))

    def owner(self, node: int) -> int | None:
        """Return the client whose key a node has; without known keys, the client at the node."""
        if not self.keys:
            return next((client for client, held in self.nodes.items() if held == node), None)
        return next((client for client, key in self.keys.items() if key == self.online.get(node)), None)

    def see(self, online: Mapping[int, bytes]) -> list[int]:
        """Update which nodes are online; return those to say hello to. A node that comes back is greeted again."""
        left = [client for client, node in self.nodes.items() if node not in online and node in self.online]
        for client in left:
            self.journal.tell("left", client=client, reason="it is offline")
        freed = {node for node, reason in self.reasons.items() if left and reason == WORDS["taken"]}
        self.asked = {node: when for node, when in self.asked.items() if node in online and node not in freed}
        for node in online:
            if node not in self.online:
                self.forget(node)
        self.online = dict(online)
        now, known = self.clock(), set(self.nodes.values())
        due = [node for node in online if node not in known and self._is_due(node, now)]
        self.asked |= dict.fromkeys(due, now)
        return sorted(due)

    def forget(self, node: int) -> None:
        """Greet this node again: it was offline, or does not know the federation."""
        self.asked.pop(node, None)
        self.nodes = {client: held for client, held in self.nodes.items() if held != node}

    def claim(self, node: int, client: object) -> int | None:
        """Give a client id to a node that accepted the terms and return the id; None if it may not have that id."""
        if not isinstance(client, int) or isinstance(client, bool) or not 0 <= client < self.num_clients:
            self.refuse(node, None, WORDS["member"])
            return None
        key, holder = self.keys.get(client), self.nodes.get(client)
        if self.keys and self.online.get(node) != key:
            owner = self.owner(node)
            whose = "is not in this federation" if owner is None else f"belongs to client {owner}"
            self.refuse(node, client, f"it claims to be client {client}, but its key {whose}")
            return None
        if key is None and holder not in (None, node) and holder in self.online:
            self.refuse(node, client, WORDS["taken"])
            return None
        self.forget(node)
        self.reasons.pop(node, None)
        self.nodes[client] = node
        self.journal.tell("joined", client=client, node=node)
        return client

    def refuse(self, node: int, client: int | None, reason: str) -> None:
        """Keep a node out until it is asked again; if keys are known, its key names the client."""
        client = self.owner(node) if self.keys else client
        self.forget(node)
        self.asked[node] = self.clock()
        if self.reasons.get(node) != reason:  # it is asked again and again; repeats are not told
            self.journal.tell("refused", client=client, node=node, reason=reason)
        self.reasons[node] = reason

    def stalled(self, node: int) -> None:
        """Note that a node accepted the terms and sent no sizes; the pause before the next hello doubles each time."""
        self.stalls[node] = self.stalls.get(node, 0) + 1

    def _is_due(self, node: int, now: float) -> bool:
        pause = self.patience * 2 ** max(self.stalls.get(node, 0) - 1, 0)
        return node not in self.asked or now - self.asked[node] >= pause
