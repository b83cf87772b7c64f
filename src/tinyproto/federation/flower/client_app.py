"""Flower's entry point on a client: `flower-supernode` runs it for every message, in a process of its own.

The node config says which client this is (`client-id`) and where its folder lies (`folder`). In Flower's simulation,
which knows no such keys, the client id is the partition's and the folder is `client-N` in the run config's `clients`.

What goes wrong travels as a short code; the sentence, or the traceback of a bug, goes to `progress.jsonl` in the
client's folder and to stderr.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from tinyproto.errors import TinyProtoError
from tinyproto.federation.flower.socket_bytes import read_counts
from tinyproto.federation.journal import Journal
from tinyproto.federation.member import Member
from tinyproto.federation.refusal import NOTICE, RECORD, Refusal, Values, plain, read_notice
from tinyproto.wire.frame import unpack

app = ClientApp()


@app.query("hello")
def hello(message: Message, context: Context) -> Message:
    """Accept a federation's terms, or refuse them."""

    def accept(member: Member, asked: ConfigRecord, journal: Journal) -> Values:
        federation = member.hello(str(asked["terms"]))
        journal.tell("joined", federation=federation)
        return {"client-id": member.client, "federation": federation}

    return _reply(message, context, accept)


@app.query("notice")
def notice(message: Message, context: Context) -> Message:
    """The coordinator says why it does without this client."""

    def note(member: Member, asked: ConfigRecord, journal: Journal) -> Values:  # noqa: ARG001
        code, words = plain(asked["code"]), plain(asked["words"])
        if "kind" in asked:
            journal.tell("refused", **read_notice(asked))
        else:
            journal.tell("refused", code=code, reason=f"the coordinator says: {words}")
        return {}

    return _reply(message, context, note)


@app.query("frame")
@app.train()
@app.evaluate()
def frame(message: Message, context: Context) -> Message:
    """Answer a frame."""

    def answer(member: Member, asked: ConfigRecord, journal: Journal) -> Values:
        if f"{NOTICE}words" in asked:  # of an answer before this one
            told = {name.removeprefix(NOTICE): value for name, value in asked.items() if name.startswith(NOTICE)}
            journal.tell("refused", **read_notice(told))
        received = asked["frame"]
        assert isinstance(received, bytes)
        reply = member.answer(str(asked["federation"]), received)
        header, _ = unpack(reply)
        facts = {"round": header.round_number, "rounds": member.rounds, "kind": header.kind.name.lower()}
        journal.tell("answered", **facts, bytes=len(reply))
        if header.round_number > member.rounds:
            journal.tell("finished", rounds=member.rounds)
        return {"frame": reply}

    return _reply(message, context, answer)


def _reply(message: Message, context: Context, work: Callable[[Member, ConfigRecord, Journal], Values]) -> Message:
    """Whatever happens, a reply: what the work gives, or a code."""
    values: Values = {"error": "failed"}
    folder: Path | None = None
    try:
        client, folder = _who(context)
        journal = Journal(folder / "progress.jsonl")
        try:
            values = work(Member(folder, client), message.content[RECORD], journal)
        except Refusal as refusal:
            journal.tell("refused", code=refusal.code, reason=str(refusal))
            values = {"error": refusal.code, "client-id": client}
        except TinyProtoError as error:
            journal.tell("failed", reason=str(error))
            values = {"error": "failed", "client-id": client}
        except Exception:
            journal.tell("failed", reason=traceback.format_exc())
            raise
    except Exception:
        traceback.print_exc()
    counted = {} if folder is None else _sockets(folder)
    return Message(RecordDict({RECORD: ConfigRecord({**values, **counted})}), reply_to=message)


def _who(context: Context) -> tuple[int, Path]:
    """The client's id and folder."""
    node = context.node_config
    if "folder" in node:
        return int(node["client-id"]), Path(str(node["folder"]))
    client = int(node["partition-id"])
    return client, Path(str(context.run_config["clients"])) / f"client-{client}"


def _sockets(folder: Path) -> Values:
    """Bytes at this client's socket so far, where `tinyproto join` counts them."""
    try:
        return {f"socket-{way}": count for way, count in read_counts(folder / "socket.json").items()}
    except (OSError, ValueError, KeyError, TypeError):
        return {}
