"""Codes, sentences and notices that say why one end refuses the other.

A client that cannot do what it was asked sends a short code; the sentence stays on its machine. A coordinator that
refuses a client's answer sends that client a notice: a code, the kind of answer, the round, and the reason in words.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from tinyproto.errors import DivergedError, TinyProtoError, WireError
from tinyproto.wire.frame import Kind

if TYPE_CHECKING:
    from tinyproto.federation.journal import Journal

Code = Literal[
    "protocol", "terms", "path", "digest", "classes", "shape", "member", "model", "data", "taken", "unknown", "frame",
    "stale", "no-space", "state", "failed", "unreadable",
]  # fmt: skip

WORDS: Mapping[str, str] = {
    "protocol": "it uses another version of the protocol; install the same release of tinyproto on both ends",
    "terms": "it cannot read the federation's terms; install the same release of tinyproto on both ends",
    "path": "the terms name a dotted path, and clients import nothing that a coordinator names",
    "digest": "its digest of the federation differs: algorithm, classes, prototype and CPS dimension, masks, value "
    "types or, where networks are averaged, its network",
    "classes": "its data has other classes than the federation",
    "shape": "its inputs have another shape or type than the federation's",
    "member": "its client id is not in this federation",
    "model": "its network does not fit the federation, or differs from the one it started with",
    "data": "its data cannot be read, or has no training samples",
    "taken": "another online node has its client id, or its key belongs to another client id",
    "unknown": "it does not know this federation",
    "frame": "it refused the frame",
    "stale": "it has already completed a later round",
    "no-space": "it has no disk space left for its state",
    "state": "its state on disk cannot be read",
    "failed": "it failed; see its own log",
    "unreadable": "its reply cannot be read",
}
"""The meaning of each code, as the coordinator says it about a client."""

_DATA = "fix the data, and the coordinator asks again without a restart"
_ENDS = "the coordinator asks again after a while, in case one of the ends has changed"
REMEDIES: Mapping[str, str] = {
    "protocol": _ENDS,
    "terms": _ENDS,
    "path": _ENDS,
    "digest": _ENDS,
    "classes": _DATA,
    "shape": f"{_DATA}; a new --image-size needs one",
    "data": _DATA,
    "state": "the coordinator asks again after a while, without a restart",
    "member": "restart it with the --client-id that the coordinator assigned",
    "model": "restart it with a --model that fits",
    "taken": "restart it with the --client-id that its --keys are for",
}
"""The next step for a client's owner, by code; codes that resolve themselves or already say it are left out."""

NEEDS_A_RESTART = frozenset({"member", "model", "taken"})
"""Codes that only another command line resolves, so the client stops instead of waiting."""

ADVICE: Mapping[str, str] = {
    "diverged": "Check this client's samples and labels. If they are right, the coordinator's owner can lower "
    "train.learning_rate or the algorithm's proto_weight.",
    "malformed": "Install the same release of tinyproto on both ends.",
    "other": "Ask the coordinator's owner.",
}
"""The next step for a client's owner after a notice, by the notice's code."""

LONGEST_REASON = 300
"""Characters of a notice's reason."""

Values = dict[str, int | float | str | bytes]
"""The values of one message; every transport carries these."""

_ANSWERS = {kind.answer.name.lower() for kind in (Kind.HELLO, Kind.TRAIN, Kind.EVALUATE)}


class Refusal(TinyProtoError):  # noqa: N818
    """A client's refusal: the code goes to the coordinator, the sentence into the client's own journal."""

    def __init__(self, code: Code, sentence: str) -> None:
        super().__init__(sentence)
        self.code = code


def words(code: object) -> str:
    """Return our sentence for a code from the network, whatever its value or type."""
    return WORDS.get(code, WORDS["failed"]) if isinstance(code, str) else WORDS["failed"]


def notice(kind: Kind, round_number: int, error: WireError, prefix: str = "") -> Values:
    """Return the notice for a client whose answer to a frame of this kind was refused."""
    fault = str(error).removeprefix(prefix).rpartition(", refused: ")[2]  # without the client, who knows that
    code = "diverged" if isinstance(error, DivergedError) else "malformed"
    return {"code": code, "kind": kind.answer.name.lower(), "round": round_number, "words": printable(fault)}


def read_notice(values: Mapping[str, object]) -> dict[str, Any]:
    """Return the facts of a notice for the client's journal; any value may be missing or invalid."""
    code, kind, number = values.get("code"), values.get("kind"), values.get("round")
    what = kind if isinstance(kind, str) and kind in _ANSWERS else "answer"
    return {
        "code": code if isinstance(code, str) and code in ADVICE else "other",
        "round": number if isinstance(number, int) and number > 0 else None,
        "reason": f"the coordinator refused this client's {what}: {printable(values.get('words', ''))}",
    }


def record_notice(journal: Journal, values: Mapping[str, object]) -> None:
    """Write a coordinator's notice into the client's journal; raise KeyError if it is none."""
    if "kind" in values:
        journal.tell("refused", **read_notice(values))
        return
    code, said = printable(values["code"]), printable(values["words"])
    journal.tell("refused", code=code, reason=f"the coordinator says: {said}")


def printable(text: object, most: int = LONGEST_REASON) -> str:
    """Return text from the network as one short line without control characters."""
    shown = "".join(sign if sign.isprintable() else " " for sign in str(text)[: 4 * most])
    line = " ".join(shown.split())
    return line if len(line) <= most else f"{line[: most - 1]}…"
