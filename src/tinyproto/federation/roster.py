"""Who is here: nodes of Flower that answered the hello, by client id, and those that were refused."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from tinyproto.federation.journal import Journal
from tinyproto.federation.refusal import WORDS

Clock = Callable[[], float]


@dataclass
class Roster:
    """Maps client ids to nodes.

    Where the coordinator knows the clients' public keys, a client id belongs to its key, and one without a key to
    nobody. Else it belongs to the node
    that claimed it, as long as that is online; another node that claims it is refused until then, and asked again
    later.
    """

    num_clients: int
    journal: Journal
    clock: Clock
    patience: float  # seconds after which a node that was refused, or did not answer, is asked again
    keys: Mapping[int, bytes] = field(default_factory=dict)
    nodes: dict[int, int] = field(default_factory=dict)  # by client id
    online: dict[int, bytes] = field(default_factory=dict)  # public keys by node
    asked: dict[int, float] = field(default_factory=dict)  # when, by node that is no client yet
    reasons: dict[int, str] = field(default_factory=dict)  # why it was refused last, by node
    stalls: dict[int, int] = field(default_factory=dict)  # how often it did not tell its sizes, by node

    @property
    def present(self) -> list[int]:
        """Client ids of those who are here, in order."""
        return sorted(client for client, node in self.nodes.items() if node in self.online)

    def client_of(self, node: int) -> int | None:
        """Who is at a node."""
        return next((client for client, held in self.nodes.items() if held == node), None)

    def owner(self, node: int) -> int | None:
        """Whose key a node has, or where no keys are known, who is there."""
        if not self.keys:
            return self.client_of(node)
        return next((client for client, key in self.keys.items() if key == self.online.get(node)), None)

    def see(self, online: Mapping[int, bytes]) -> list[int]:
        """These nodes are online now; those to say hello to. Who went away is greeted anew when back."""
        left = [client for client, node in self.nodes.items() if node not in online and node in self.online]
        for client in left:
            self.journal.tell("left", client=client, reason="its node is offline")
        freed = {node for node, reason in self.reasons.items() if left and reason == WORDS["taken"]}
        self.asked = {node: when for node, when in self.asked.items() if node in online and node not in freed}
        back = [node for node in online if node not in self.online]
        for node in back:
            self.forget(node)
        self.online = dict(online)
        now, known = self.clock(), set(self.nodes.values())
        due = [node for node in online if node not in known and self._due(node, now)]
        self.asked |= dict.fromkeys(due, now)
        return sorted(due)

    def forget(self, node: int) -> None:
        """Greet this node again: it was away, or does not know the federation."""
        self.asked.pop(node, None)
        self.nodes = {client: held for client, held in self.nodes.items() if held != node}

    def claim(self, node: int, client: object) -> bool:
        """A node that accepted the terms says which client it is; whether it may be."""
        if not isinstance(client, int) or isinstance(client, bool) or not 0 <= client < self.num_clients:
            self.refuse(node, None, WORDS["member"])
            return False
        key, holder = self.keys.get(client), self.nodes.get(client)
        if self.keys and self.online.get(node) != key:  # where keys are known, none is nobody's
            owner = self.owner(node)
            whose = "none of this federation's" if owner is None else f"that of client {owner}"
            self.refuse(node, client, f"it calls itself client {client}, and its key is {whose}")
            return False
        if key is None and holder not in (None, node) and holder in self.online:
            self.refuse(node, client, WORDS["taken"])
            return False
        self.forget(node)
        self.reasons.pop(node, None)
        self.nodes[client] = node
        self.journal.tell("joined", client=client, node=node)
        return True

    def refuse(self, node: int, client: int | None, reason: str) -> None:
        """This node stays out, and is asked again later; a key says who it is, whatever it says itself."""
        client = self.owner(node) if self.keys else client
        self.forget(node)
        self.asked[node] = self.clock()
        if self.reasons.get(node) != reason:  # it is asked again and again, which need not be told
            self.journal.tell("refused", client=client, node=node, reason=reason)
        self.reasons[node] = reason

    def missing(self) -> Collection[int]:
        """Client ids of which nobody is here."""
        return sorted(set(self.members) - set(self.present))

    @property
    def members(self) -> Collection[int]:
        """Client ids that may take part."""
        return self.keys or range(self.num_clients)

    def stalled(self, node: int) -> None:
        """It accepted the terms and did not go on; each time it is asked again after twice the pause."""
        self.stalls[node] = self.stalls.get(node, 0) + 1

    def _due(self, node: int, now: float) -> bool:
        pause = self.patience * 2 ** max(self.stalls.get(node, 0) - 1, 0)
        return node not in self.asked or now - self.asked[node] >= pause
