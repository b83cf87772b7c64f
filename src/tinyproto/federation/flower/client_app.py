"""Flower's entry point on a client: `flower-supernode` runs it for every message, in a process of its own.

The node config has the client's number (`client-id`) and folder (`folder`). Flower's simulation has no such keys: there
the client's number is the partition's, and its folder is `client-N` in the run config's `clients`.
"""

from __future__ import annotations

import traceback
from pathlib import Path

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from tinyproto.federation.flower import RECORD
from tinyproto.federation.flower.connection import read_counts
from tinyproto.federation.member import respond

app = ClientApp()


@app.query()
def reply(message: Message, context: Context) -> Message:
    """Return a reply, whatever happens, with the bytes at this client's socket where `tinyproto join` counts them."""
    try:
        client, folder = _client_and_folder(context)
        record = message.content.get(RECORD)
        values = respond(folder, client, dict(record) if isinstance(record, ConfigRecord) else {})
        values |= {f"socket-{way}": count for way, count in read_counts(folder / "socket.json").items()}
    except Exception:
        traceback.print_exc()
        values = {"error": "failed"}
    return Message(RecordDict({RECORD: ConfigRecord(values)}), reply_to=message)


def _client_and_folder(context: Context) -> tuple[int, Path]:
    node = context.node_config
    if "folder" in node:
        return int(node["client-id"]), Path(str(node["folder"]))
    client = int(node["partition-id"])
    return client, Path(str(context.run_config["clients"])) / f"client-{client}"
