"""The process that trains for a listener, `python -m tinyproto.cli.member_process`: a client's messages over a pipe."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch

from tinyproto.cli.client_folder import JoinOptions
from tinyproto.cli.device import checked, write_join_file
from tinyproto.cli.terminal import Output
from tinyproto.errors import TinyProtoError
from tinyproto.federation.member import respond
from tinyproto.subprocesses import Parcel, open_service, receive, send

FRAME = "frame"


def main() -> None:
    """Answer requests until the input ends."""
    requests, answers = open_service(sys.exit)
    torch.set_num_threads(1)
    while (request := receive(requests)) is not None:
        send(answers, _prepare(request.head) if "prepare" in request.head else _respond(request))


def _prepare(head: dict[str, Any]) -> Parcel:
    """Check a client's data, network and device, and write its join.json; answer with the error, if any."""
    said = head["prepare"]
    paths = {key: None if said[key] is None else Path(said[key]) for key in ("keys", "data", "share", "folder")}
    options = JoinOptions(**{**said, **paths})
    try:
        write_join_file(options.folder, checked(options, Output(json=True, quiet=head["quiet"])))
    except TinyProtoError as error:
        return Parcel({"error": str(error)})
    return Parcel({})


def _respond(request: Parcel) -> Parcel:
    """Respond to a coordinator's message; frames travel beside the other values."""
    values = dict(request.head["values"])
    if request.blobs:
        values[FRAME] = request.blobs[0]
    reply = respond(Path(request.head["folder"]), request.head["client"], values)
    frame = reply.pop(FRAME, None)
    return Parcel({"values": reply}, [frame] if isinstance(frame, bytes) else [])


if __name__ == "__main__":
    main()
