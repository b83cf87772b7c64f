"""Flower's entry point on the coordinator, which `flwr run` starts once for a federation, and its transport.

The run config's `folder` is the run folder; `serve.json` in it, which `tinyproto serve` writes, holds the config.
Without `tinyproto serve`, the run config's `config` names a config file, and `overrides` changes keys of it, as in
`train.rounds=3 seeds=[1]`; a folder that already holds a federation is resumed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import httpx
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp

from tinyproto.config import load_config
from tinyproto.federation.channel import UNREADABLE, Incoming, Outgoing
from tinyproto.federation.coordinator import Coordinator
from tinyproto.federation.flower import RECORD
from tinyproto.federation.journal import telling_failure
from tinyproto.federation.terms import ServeFile, new_token
from tinyproto.tracking.run_folder import is_federation

FAILURES = {
    1: "Flower could not load its app",
    2: "its app failed",
    3: "Flower gave up the message",
    4: "its reply expired",
    5: "its node went offline",
    8: "its app crashed",
}
"""Flower's error codes in words."""

AWAY = {3, 4, 5}
"""Error codes that are nobody's refusal."""

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the federation; write an error into `progress.jsonl` before the process fails."""
    folder = Path(str(context.run_config["folder"]))
    with telling_failure(folder):
        if context.run_config.get("config"):
            _prepare(folder, Path(str(context.run_config["config"])), str(context.run_config.get("overrides", "")))
        Coordinator(folder, GridTransport(grid)).run()


def _prepare(folder: Path, config: Path, overrides: str) -> None:
    """Write serve.json for a new federation, or to resume the one in the folder."""
    resolved = load_config(config, overrides.split()).resolved()
    resume = is_federation(folder)
    token = ServeFile.read(folder).federation if resume else new_token()
    folder.mkdir(parents=True, exist_ok=True)
    ServeFile(config=resolved, federation=token, resume=resume).write(folder)


class GridTransport:
    """Carries messages over Flower's Grid: pushed and pulled, never waited for one by one."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid

    def nodes(self) -> dict[int, bytes]:
        """Return the nodes that are online, with their public keys."""
        return {int(node.node_id): bytes(node.public_key) for node in self.grid.get_nodes()}

    def send(self, messages: Sequence[Outgoing], lifetime: float) -> list[str | None]:
        """Push messages; return each one's id, None if Flower did not take it."""
        pushed = [
            Message(RecordDict({RECORD: ConfigRecord(values)}), dst_node_id=node, message_type="query", ttl=lifetime)
            for node, values in messages
        ]
        identities = [identity or None for identity in self.grid.push_messages(pushed)]
        return identities if len(identities) == len(pushed) else [None] * len(pushed)

    def replies(self, identities: Collection[str]) -> Iterator[tuple[str, Incoming]]:
        """Pull the replies to messages.

        Each message is pulled on its own: Flower hands out a reply once, and an unreadable one would take those that
        are pulled with it along.
        """
        return ((identity, reply) for identity in identities for reply in self._replies(identity))

    def _replies(self, identity: str) -> list[Incoming]:
        """Pull the replies to one message; UNREADABLE stands for one that is not a readable reply to it."""
        try:
            replies = list(self.grid.pull_messages([identity]))
        except (httpx.HTTPError, OSError):
            return []  # the network failed; the next call tries again
        except Exception:  # a client may upload anything, and Flower raises whatever comes of that
            return [UNREADABLE]
        return [_incoming(reply, identity) for reply in replies]


def _incoming(reply: object, identity: str) -> Incoming:
    """Return a reply's values or Flower's error; UNREADABLE if it is not a complete reply to that message.

    Flower's own errors name no node, so only the id of the message says which client a reply concerns.
    """
    if not isinstance(reply, Message) or reply.metadata.reply_to_message_id != identity:
        return UNREADABLE
    if reply.has_error():
        code = int(reply.error.code)
        return Incoming({}, FAILURES.get(code, "Flower reports an error"), code in AWAY)
    if not reply.has_content():
        return UNREADABLE
    record = reply.content.get(RECORD)
    return Incoming(dict(record) if isinstance(record, ConfigRecord) else {})
