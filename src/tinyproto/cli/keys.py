"""`tinyproto serve --init`: certificates and keys, and what to copy where."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tinyproto.cli.terminal import Output
from tinyproto.flower.certificates import make_keys
from tinyproto.report.words import counted

AUTHORITY = {
    "certified again": "; the same authority with another ca.crt, beside which clients' own stay good",
    "new": "; a new authority: each client needs the new ca.crt",
}


def init_keys(folder: Path, clients: int, hosts: Sequence[str], output: Output) -> None:
    """Make what is not there yet, and say what belongs on which machine."""
    made = make_keys(folder, clients, hosts)
    output.say(f"{folder}/server      for this machine: a certificate for {', '.join(made.names)}")
    here = next((number for number in range(clients) if number not in made.elsewhere), "N")
    copied = f"scp -r {folder}/client-{here} DEVICE:tinyproto/keys/"
    output.say(f"{folder}/client-N    for client N and nobody else, such as: {copied}")
    output.say(f"{folder}/authority   makes more certificates; keep it where no other machine reads it")
    whose = f" (client {', '.join(map(str, made.clients))})" if 0 < len(made.clients) < clients else ""
    words = f"{counted(len(made.clients), 'new key')}{whose}; {'a new' if made.certificate else 'the same'} certificate"
    output.say(f"{words}{AUTHORITY.get(made.authority, '')}")
    if made.copied:
        output.say(f"ca.crt is written anew for: {', '.join(made.copied)}")
    if made.names_lost:
        output.say("no certificate of before could be read: --host adds the names that clients know this machine by")
    if made.elsewhere:
        output.say(
            f"not here: the private key of client {', '.join(map(str, made.elsewhere))}; where one is lost, remove "
            f"{folder}/server/clients/N.pub and give this command again"
        )
    output.result({"folder": str(folder), "names": list(made.names), "new_clients": list(made.clients),
                   "new_certificate": made.certificate, "new_authority": made.authority in ("first", "new"),
                   "copied": list(made.copied), "elsewhere": list(made.elsewhere)})  # fmt: skip
