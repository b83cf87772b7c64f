"""Why one end refuses the other.

A client that does not do what it was asked sends a short code; its sentence stays where it is. A coordinator that
refuses a client's answer sends that client a notice: a code, the kind of answer, the round, and the reason in words.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

from tinyproto.errors import TinyProtoError
from tinyproto.wire.frame import Kind

Code = Literal[
    "protocol", "terms", "path", "digest", "classes", "shape", "member", "model", "data", "taken", "unknown", "frame",
    "stale", "no-space", "state", "failed",
]  # fmt: skip

WORDS: Mapping[str, str] = {
    "protocol": "it speaks another version of the protocol; install the same release of tinyproto on both ends",
    "terms": "it cannot read the federation's terms; install the same release of tinyproto on both ends",
    "path": "the terms name a dotted path, and no client imports what a coordinator names",
    "digest": "its digest of the federation differs: algorithm, classes, prototype and CPS dimension, masks, value "
    "types or, where networks are averaged, its network",
    "classes": "its data has other classes than the federation",
    "shape": "its images have another shape than the federation's",
    "member": "its client id is none of the federation's",
    "model": "its network does not fit the federation, or is another than the one it began with",
    "data": "its data cannot be read, or holds nothing to train on",
    "taken": "another node that is online has its client id, or its key belongs to another client id",
    "unknown": "it does not know this federation yet, or no longer",
    "frame": "it refused the frame",
    "stale": "it has done a later round already",
    "no-space": "it has no space left to keep its state",
    "state": "its state on disk cannot be read",
    "failed": "it failed; its own log says why",
}
"""What each code means, as the coordinator says it of a client."""

_DATA = "once the data is mended the coordinator asks again, without a restart"
_ENDS = "the coordinator asks again after a while, should one of the ends have changed"
REMEDIES: Mapping[str, str] = {
    "protocol": _ENDS,
    "terms": _ENDS,
    "path": _ENDS,
    "digest": _ENDS,
    "classes": _DATA,
    "shape": f"{_DATA}; --image-size needs one",
    "data": _DATA,
    "state": "the coordinator asks again after a while, without a restart",
    "member": "start it again with the --client-id that the coordinator gave it",
    "model": "start it again with a --model that fits",
    "taken": "start it again with the --client-id that its --keys are for",
}
"""What a client's owner can do about a code; those that mend themselves, or say it already, are left out."""

NEEDS_A_RESTART = frozenset({"member", "model", "taken"})
"""What only another command line mends; waiting to be asked again would be in vain."""


ADVICE: Mapping[str, str] = {
    "diverged": "Check this client's samples and labels. If they are right, the coordinator's owner can lower "
    "train.learning_rate or the algorithm's proto_weight.",
    "malformed": "Install the same release of tinyproto on both ends.",
    "other": "Ask the coordinator's owner.",
}
"""What a client's owner can do after a coordinator's notice, by its code."""

MOST_WORDS = 300
"""Characters of a notice's reason."""

_DIVERGED = re.compile(r"NaN|infinity|norm|diverge|not a number|absurd")
_ANSWERS = {kind.answer.name.lower() for kind in (Kind.HELLO, Kind.TRAIN, Kind.EVALUATE)}


class Refusal(TinyProtoError):  # noqa: N818
    """A client's no: the code goes to the coordinator, the sentence into the client's own log."""

    def __init__(self, code: Code, sentence: str) -> None:
        super().__init__(sentence)
        self.code = code


def words(code: object) -> str:
    """A code from the network in our own words, whatever it is."""
    return WORDS.get(code, WORDS["failed"]) if isinstance(code, str) else WORDS["failed"]


def notice(kind: Kind, round_number: int, reason: str) -> Values:
    """Return what the coordinator tells a client whose answer to a frame of this kind it refused."""
    own = reason.rpartition(", refused: ")[2]  # what stands before it says whose frame it is, which the client knows
    code = "diverged" if _DIVERGED.search(own) else "malformed"
    return {"code": code, "kind": kind.answer.name.lower(), "round": round_number, "words": plain(own)}


def read_notice(values: Mapping[str, object]) -> dict[str, Any]:
    """Return the facts of a notice for the client's journal, whatever the network made of it."""
    code, kind, number = values.get("code"), values.get("kind"), values.get("round")
    what = kind if kind in _ANSWERS else "answer"
    return {
        "code": code if code in ADVICE else "other",
        "round": number if isinstance(number, int) and number > 0 else None,
        "reason": f"the coordinator refused this client's {what}: {plain(values.get('words', ''))}",
    }


def plain(text: object, most: int = MOST_WORDS) -> str:
    """Return text from the network as one line that is safe to print: without control characters, and not too long."""
    shown = "".join(sign if sign.isprintable() else " " for sign in str(text)[: 4 * most])
    line = " ".join(shown.split())
    return line if len(line) <= most else f"{line[: most - 1]}…"


RECORD = "tinyproto"
NOTICE = "refused-"
"""How the values of a notice begin where one travels beside a frame; a client that knows none passes over them."""

Values = dict[str, int | float | str | bytes]
"""What such a record may hold."""
