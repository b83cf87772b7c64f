"""Options that several verbs share."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from tinyproto.errors import ConfigError


class TransportName(Enum):
    """The transports of a federation."""

    FLOWER = "flower"
    MQTT = "mqtt"


PREFIX = "tinyproto/"
"""The start of our topics at a broker that is not ours."""


def is_over_mqtt(
    transport: TransportName | None, broker: str | None, authority: str | None, topic: str | None
) -> bool:  # fmt: skip
    """Return True if the options choose MQTT; raise ConfigError if they contradict each other."""
    if broker is None and (authority is not None or topic is not None):
        raise ConfigError("--broker-ca and --topic go with --broker")
    if broker is not None and transport is TransportName.FLOWER:
        raise ConfigError("--broker is for MQTT; leave out --transport flower")
    if topic is not None and (set(topic) & set("#+$") or len(topic) > 200 or not topic.isprintable()):
        raise ConfigError("--topic is the start of topic names: printable, without #, + and $, such as site7/")
    return broker is not None or transport is TransportName.MQTT


def _authority(name: str | None) -> str | None:
    """Return a file's absolute path, since --resume may come from another folder; raise ConfigError if it is missing.

    `system` and None stay as they are.
    """
    if name is None or name == "system":
        return name
    if not Path(name).is_file():
        raise ConfigError(f"--broker-ca: {name} is missing; name a file with the authority's certificate, or system")
    return str(Path(name).absolute())


def _folder(path: Path) -> Path:
    """Return the path; raise ConfigError if it, or a part of it, is a file."""
    for place in (path, *path.parents):
        if place.is_file():
            raise ConfigError(f"--runs: {place} is a file; name a folder, in which run folders are created")
    return path


ConfigFile = Annotated[
    Path,
    typer.Argument(metavar="CONFIG", help="A config file, or a built-in one such as quickstart.", show_default=False),
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="KEY=VALUE", help="Config keys to set, such as train.rounds=10.", show_default=False),
]
Runs = Annotated[Path, typer.Option(help="The folder to create run folders in.", callback=_folder)]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON; other output goes to standard error.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]
Live = Annotated[
    bool, typer.Option("--live", help="Follow the run on a page for this machine's browser; prints its address.")
]
Transport = Annotated[
    TransportName | None,
    typer.Option(help="What carries the messages; see docs/how-to/transports.md.", show_default="flower"),
]
OtherBroker = Annotated[
    str | None,
    typer.Option(metavar="HOST:PORT", help="Over MQTT, with a broker that serve does not start.", show_default="none"),
]
BrokerAuthority = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="With --broker: its authority's certificate, or system.",
        show_default="that of the keys",
        callback=_authority,
    ),
]
Topic = Annotated[
    str | None, typer.Option(metavar="PREFIX", help="With --broker: the start of all topics.", show_default=PREFIX)
]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Print a line per round.")]
