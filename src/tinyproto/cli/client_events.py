"""Print the events of a client's journal, one line each. Nothing heavy is imported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tinyproto.cli.client_folder import JoinOptions
from tinyproto.cli.terminal import Output
from tinyproto.federation.journal import Follower
from tinyproto.federation.refusals import ADVICE, NEEDS_A_RESTART, REMEDIES
from tinyproto.report.words import counted, size

CLOSING_SECONDS = 600.0
"""Longest wait for an unreachable coordinator after the last round."""


class ClientEvents:
    """Follows a client's journal, prints its events, and knows how far the client is."""

    def __init__(self, folder: Path, client: int, server: str, output: Output) -> None:
        self.client = client
        self.server = server
        self.output = output
        self.said = ""
        self.was_connected = False
        self.refused: tuple[str, str] | None = None  # code and reason, until it takes part
        self.last_round: int | None = None  # the federation's rounds, once the client has completed the last
        self.rounds: int | None = None  # the same, once the federation is over
        self.journal = Follower(folder / "progress.jsonl")

    def show(self) -> None:
        """Print the events since the last call."""
        for event in self.journal.new():
            if event["event"] == "finished":
                self.rounds = int(event["rounds"])
                continue
            self.last_round = _completed(event, self.last_round)
            before, self.refused = self.refused, None
            if event["event"] == "refused":
                self.refused = str(event.get("code")), str(event["reason"])
            if self.refused is None or (self.refused != before and self.refused[0] not in NEEDS_A_RESTART):
                self.say(_words(event))

    def read_past(self) -> None:
        """Read from the journal whether the client has already completed its last round or seen the end."""
        for event in (past := self.journal.past()):
            self.last_round = _completed(event, self.last_round)
        if past and past[-1]["event"] == "finished":
            rounds = counted(int(past[-1]["rounds"]), "round")
            self.output.say(
                f"the federation of client {self.client} is over after {rounds}; waiting for another one at "
                f"{self.server}, Ctrl-C stops"
            )

    @property
    def final_refusal(self) -> str | None:
        """Return what only another command line resolves, and how; None if there is nothing of that kind."""
        if self.refused is None or self.refused[0] not in NEEDS_A_RESTART:
            return None
        code, reason = self.refused
        return f"{reason}; {REMEDIES[code]}"

    def say(self, words: str) -> None:
        """Print a line with the client's number, since several clients may share a terminal."""
        self.said = words
        self.output.say(f"client {self.client}: {words}")

    def say_connected(self) -> None:
        """Print that the client is connected."""
        self.said, self.was_connected = "", True
        self.output.say(f"client {self.client} is connected to {self.server}")


def over_words(options: JoinOptions, server: str, rounds: int, *, missed_the_end: bool) -> str:
    """Return a client's last line."""
    end = f"the federation is over after {counted(rounds, 'round')}"
    if missed_the_end:
        end = f"{counted(rounds, 'round')} are complete and {server} is unreachable: ending without the last evaluation"
    return f"client {options.client}: {end}; its state is in {options.folder}"


def _completed(event: dict[str, Any], before: int | None) -> int | None:
    """Return the federation's rounds if the client has completed the last one by this event."""
    match event:
        case {"event": "finished"}:
            return None
        case {"event": "answered", "kind": "update", "round": completed, "rounds": rounds}:
            return int(rounds) if completed == rounds else None
    return before


def _words(event: dict[str, Any]) -> str:
    """Return the line to print for an event of the client's journal."""
    match event.get("event"):
        case "joined":
            return f"joined federation {event['federation'][:8]}"
        case "answered":
            return f"round {event['round']}: answered with {size(event['bytes'])} ({event['kind']})"
        case "refused" if event.get("code") in ADVICE:
            when = f"round {event['round']}: " if "round" in event else ""
            return f"{when}{str(event['reason']).rstrip('.')}. What to do: {ADVICE[event['code']]}"
        case "refused":
            remedy = REMEDIES.get(str(event.get("code")))
            return f"refused: {event['reason']}{f'; {remedy}' if remedy else ''}"
    return f"failed: {str(event.get('reason', event)).strip().splitlines()[-1]}"
