"""The coordinator's display: a bar for the rounds, and a line for each client that joins, leaves or is refused."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich import progress as bars

from tinyproto.cli.progress import Bars
from tinyproto.cli.terminal import Output
from tinyproto.report.words import counted, derived_words, percent


class FederationProgress(Bars):
    """Shows the coordinator's events, one after another."""

    def __init__(self, output: Output, rule: str) -> None:
        super().__init__(output, "state")
        self.rule = rule
        self.over = False
        self.failure: str | None = None
        self._present: dict[int, int | None] = {}  # nodes by client, None if unknown
        self._doing = self._reached = ""
        self._rounds = 0
        self._bar: bars.TaskID | None = None

    def here(self, members: Iterable[int]) -> list[str]:
        """Say which clients are connected, which are missing, and what happens now."""
        present = sorted(self._present)
        missing = ", ".join(str(client) for client in members if client not in present)
        said = [f"{counted(len(present), 'client')} connected: {', '.join(map(str, present))}" if present else ""]
        said += [f"not connected: {missing}" if missing else "", self._doing]
        return [words for words in said if words]

    def tell(self, event: dict[str, Any]) -> None:
        """Show one event; other kinds are shown with --verbose only."""
        getattr(self, f"_{event['event']}", self._other)(event)

    def _started(self, event: dict[str, Any]) -> None:
        self._rounds = event["rounds"]
        self._bar = self.bars.add_task(event["algorithm"], total=self._rounds, completed=event["done"], state="")
        self._state("waiting for clients")
        if event["done"]:
            self.output.say(f"resuming after round {event['done']} of {self._rounds}")

    def _waiting(self, event: dict[str, Any]) -> None:
        self._present = {client: self._present.get(client) for client in event["present"]}
        self._state("waiting for clients")
        self.output.say(_waiting_words(event))

    def _joined(self, event: dict[str, Any]) -> None:
        self._present[event["client"]] = event.get("node")
        self._state(self._doing)
        self.output.say(f"client {event['client']} joined")

    def _left(self, event: dict[str, Any]) -> None:
        self._present.pop(event["client"], None)
        self._state(self._doing)
        self.output.say(f"client {event['client']} left: {event['reason']}")

    def _refused(self, event: dict[str, Any]) -> None:
        if "node" in event and self._present.get(event.get("client", -1)) == event["node"]:  # not only its answer
            del self._present[event["client"]]
            self._state(self._doing)
        self.output.say(f"{_name(event)} refused{_when(event)}: {event['reason']}")

    def _silent(self, event: dict[str, Any]) -> None:
        self.output.say(f"{_name(event)} is silent{_when(event)}: {event['reason']}")

    def _dropped(self, event: dict[str, Any]) -> None:
        dropped = counted(event["connections"], "connection")
        self.output.say(f"dropped {dropped} that did not complete TLS, the last from {event['last_from']}")

    def _damaged(self, event: dict[str, Any]) -> None:
        self.output.say(event["reason"])

    _again = _warned = _damaged

    def _round(self, event: dict[str, Any]) -> None:
        name = "closing" if event.get("closing") else f"round {event['round']}"
        asked = event.get("evaluated", []) if event.get("closing") else event["participants"]
        self._state(f"{name}: {len(asked)} asked")

    def _concluded(self, event: dict[str, Any]) -> None:
        known = {rule: value for rule, value in event["accuracy"].items() if value is not None}
        rule = self.rule if self.rule in known else next(iter(known), None)
        reached = self._reached = f"{rule} {percent(known[rule])}" if rule is not None else ""
        closing = bool(event.get("closing"))
        name = "closing" if closing else f"round {event['round']} of {self._rounds}"
        without = f", without client {', '.join(event['refused'])}" if event.get("refused") else ""
        if self._bar is not None and not closing:
            self.bars.update(self._bar, completed=event["round"])
        self._state(self._doing)
        who = "" if closing else f"{counted(len(event['participants']), 'client')}{without}, "
        if distrusted := event.get("distrusted"):
            who += f"uploads set aside, in part or entirely, of client {', '.join(distrusted)}, "
        self.output.say(f"{name}: {who}{event['seconds']:.1f} s{f', {reached}' if reached else ''}")

    def _derived(self, event: dict[str, Any]) -> None:
        self.output.say(f"derived {derived_words(event['values'])} (round {event['round']})")

    def _finished(self, event: dict[str, Any]) -> None:  # noqa: ARG002
        self.over = True

    def _failed(self, event: dict[str, Any]) -> None:
        self.failure = str(event["reason"])

    def _other(self, event: dict[str, Any]) -> None:
        if self.output.verbose:
            facts = ", ".join(f"{key} {value}" for key, value in event.items() if key not in ("time", "event"))
            self.output.say(f"{event['event']}: {facts}")

    def _state(self, doing: str) -> None:
        """Show in the bar how many clients are present, the current step, and the last accuracy."""
        self._doing = doing
        if self._bar is not None:
            words = (f"{len(self._present)} present", doing, self._reached)
            self.bars.update(self._bar, state=", ".join(filter(None, words)))


def _waiting_words(event: dict[str, Any]) -> str:
    present, needed, seconds = len(event["present"]), event["needed"], event.get("seconds")
    clients, missing = f"{counted(present, 'client')} ready", ", ".join(map(str, event["missing"]))
    if seconds is None:
        return f"{clients}, {needed} needed; missing: {missing}"
    if present >= needed:
        return f"{clients}, which is enough; waiting {seconds} s more for: {missing}"
    fewer = f", or for any {needed} after {seconds} s" if needed < present + len(event["missing"]) else ""
    return f"{clients}; waiting for: {missing}{fewer}"


def _name(event: dict[str, Any]) -> str:
    return f"client {event['client']}" if "client" in event else f"node {event.get('node')}"


def _when(event: dict[str, Any]) -> str:
    return f" in round {event['round']}" if event.get("round") else ""
