"""The terms of a report, each explained where it stands: a button that shows its explanation, without a script."""

from __future__ import annotations

import re
from html import escape

from tinyproto.report.svg import written_attributes

COLUMNS = {
    "head": "Accuracy by own head: the client's network classifies as networks usually do, by its last layer.",
    "global": "Accuracy by nearest global prototype: the class whose global prototype is closest to the features.",
    "local": "Accuracy by nearest local prototype: the class whose prototype at this client is closest.",
    "Δ head": "Points of accuracy by own head over the better rule of Local, which trains each client alone.",
    "Δ global": "Points of accuracy by nearest global prototype over the better rule of Local.",
    "Δ local": "Points of accuracy by nearest local prototype over the better rule of Local.",
    "params": "Numbers sent per round, up and down, by all clients together: measured.",
    "formula": "Numbers per round by the formula in the paper's Table 2, to compare with the measured ones; – if the "
    "paper has none or the counts it needs are unknown.",
    "wire": "Bytes of whole messages: payload, header and metrics.",
    "evaluation": "Bytes per round of messages sent only to evaluate. Payload and wire do not include them.",
    "socket": "Bytes on the network per round, with encryption and everything else that a transport sends.",
    "s/round": "Seconds per round, mean over rounds and seeds.",
}
"""Columns of tables; as words of a sentence they would mean too much."""

TERMS = {
    **{
        f"preset {name}": "How points that the paper leaves open are read: sound is the default, reference repeats the "
        "runs behind the paper's tables, paper follows its text."
        for name in ("sound", "reference", "paper")
    },
    "own head": COLUMNS["head"],
    "nearest global prototype": COLUMNS["global"],
    "nearest local prototype": COLUMNS["local"],
    "payload": "Bytes of the values that are sent (prototypes, weights), up and down, without headers of messages.",
    "Pareto front": "The methods that no other method beats: none reaches more accuracy with as few bytes.",
    "CPS": "Class-wise Prototype Sparsification: each class owns s of the d dimensions of a prototype, and only those "
    "are sent.",
    "μ": "The constant by which the server undoes scaling: clients send each prototype multiplied by the number of its "
    "samples.",
    **dict.fromkeys(
        ("dead units", "Dead units"),
        "Units (dimensions) that are zero in the prototype of a class: no sample of the class activates them.",
    ),
    "Anchors": "The method anchors: clients train towards fixed global prototypes that follow from a seed and are "
    "never sent.",
    "Local": "The method local: each client trains alone. It is the baseline that federating has to beat.",
}
"""Words that are explained at their first place in a paragraph."""

_ALL = {**COLUMNS, **TERMS}
_PATTERN = re.compile("|".join(rf"(?<![\w-]){re.escape(term)}(?![\w-])" for term in sorted(TERMS, key=len)[::-1]))


def column(name: str) -> str:
    """Return a column's name as HTML, as a button if it has an explanation."""
    return _button(name) if name in _ALL else escape(name)


def explained(words: str, seen: set[str] | None = None) -> str:
    """Return plain words as HTML; each term that was not `seen` before becomes a button, `words` become code."""
    seen = set() if seen is None else seen
    parts, end = [], 0
    for found in _PATTERN.finditer(words):
        if found[0] not in seen:
            seen.add(found[0])
            parts += [escape(words[end : found.start()]), _button(found[0])]
            end = found.end()
    return re.sub(r"`([^`<]+)`", r"<code>\1</code>", "".join([*parts, escape(words[end:])]))


def explanations(body: str) -> str:
    """Return the explanations that the buttons of a page show; older browsers list them at its end."""
    used = [term for term in _ALL if f'popovertarget="{_id(term)}"' in body]
    listed = "".join(
        f"<p{written_attributes({'id': _id(term), 'popover': ''})}><b>{escape(term)}</b>: {escape(_ALL[term])}</p>"
        for term in used
    )
    return f'<section class="terms" aria-label="Terms">{listed}</section>' if used else ""


def _button(term: str) -> str:
    attributes = {"type": "button", "class": "term", "popovertarget": _id(term)}
    return f"<button{written_attributes(attributes)}>{escape(term)}</button>"


def _id(term: str) -> str:
    return f"term{list(_ALL).index(term)}"
