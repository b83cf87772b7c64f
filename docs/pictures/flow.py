"""Draw the data flow of one round: what stays on a client, what travels, what the server does with it.

Run from the root of the repository:  .venv/bin/python docs/pictures/flow.py
"""

from __future__ import annotations

from pathlib import Path

PICTURE = Path(__file__).parent / "flow.svg"

WIDTH, HEIGHT = 900, 560
INK, QUIET, CLIENT, SERVER, WIRE = "#1f2937", "#4b5563", "#0e7490", "#6d28d9", "#b45309"
TITLE = (
    "One round. The server sends each client a frame with one row of s values per class. The client reconstructs the "
    "global prototypes and evaluates by its own head, the nearest global and the nearest local prototype. It trains "
    "its network and takes class means of features as local prototypes. It multiplies each by its sample count, keeps "
    "the s dimensions of the class, and sends a frame with those rows. The server checks every frame and scales the "
    "rows in order of client id. It sums them (FP) or fits trainable prototypes to them (FT), which gives the next "
    "global rows. Images, labels, networks and masks never travel."
)

CLIENT_BOXES = (
    (150, "reconstruct", "K × s rows to K × d global prototypes"),
    (215, "evaluate", "own head · nearest global · nearest local"),
    (280, "train", "cross-entropy + λ · distance to the global"),
    (345, "local prototypes", "class means of features, Kᵢ × d"),
    (410, "scale and compress", "× nᵢⱼ, keep the s dimensions of the class"),
)
SERVER_BOXES = (
    (410, "check", "version, checksum, round, client, values"),
    (345, "scale", "× μ: back to the size of a prototype"),
    (280, "merge or fit", "FP: sum per class · FT: fit to every upload"),
    (215, "global rows", "K × s, for every class sent so far"),
    (150, "broadcast", "the rows to every client"),
)
BASES = "FedProto and FedTGP: the same with s = d, no nᵢⱼ and no μ. Local: nothing travels."
RECORD = "Record of the round: accuracy by three rules, loss, bytes (rounds.jsonl); clock (timings.jsonl)"
LEFT, RIGHT, BOX_WIDTH, BOX_HEIGHT = 50, 570, 280, 46


def text(left: float, top: float, words: str, colour: str = INK, *, size: int = 13) -> str:
    """Return one line of words centred at `left`; large ones are bold."""
    weight = "bold" if size > 13 else "normal"
    look = f'fill="{colour}" font-size="{size}" font-weight="{weight}" text-anchor="middle"'
    return f'<text x="{left}" y="{top}" {look}>{words}</text>'


def box(left: int, top: int, name: str, words: str, colour: str) -> str:
    """Return one step: its name and a description."""
    middle = left + BOX_WIDTH / 2
    frame = (
        f'<rect x="{left}" y="{top}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="6" fill="#ffffff" '
        f'stroke="{colour}" stroke-width="1.5"/>'
    )
    return frame + text(middle, top + 19, name, colour, size=14) + text(middle, top + 37, words, size=12)


def arrow(path: str, colour: str) -> str:
    """Return a line with an arrowhead."""
    return f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="2" marker-end="url(#head-{colour[1:]})"/>'


def panel(left: int, name: str, words: str, colour: str) -> str:
    """Return one side of the federation."""
    return (
        f'<rect x="{left - 20}" y="70" width="{BOX_WIDTH + 40}" height="404" rx="10" fill="{colour}" '
        f'fill-opacity="0.08" stroke="{colour}" stroke-opacity="0.4"/>'
        + text(left + BOX_WIDTH / 2, 98, name, colour, size=16)
        + text(left + BOX_WIDTH / 2, 120, words, QUIET, size=12)
    )


def column(boxes: tuple[tuple[int, str, str], ...], left: int, colour: str) -> list[str]:
    """Return steps above each other, joined by arrows."""
    middle, parts = left + BOX_WIDTH // 2, []
    for (top, name, words), (after, *_) in zip(boxes, (*boxes[1:], boxes[-1]), strict=True):
        parts.append(box(left, top, name, words, colour))
        if after > top:
            parts.append(arrow(f"M {middle} {top + BOX_HEIGHT} V {after - 4}", colour))
        elif after < top:
            parts.append(arrow(f"M {middle} {top} V {after + BOX_HEIGHT + 4}", colour))
    return parts


def draw() -> str:
    """Return the picture, on a white background so that it is readable on a dark page."""
    heads = "".join(
        f'<marker id="head-{colour[1:]}" viewBox="0 0 8 8" refX="6" refY="4" markerWidth="6" markerHeight="6" '
        f'orient="auto"><path d="M 0 0 L 8 4 L 0 8 z" fill="{colour}"/></marker>'
        for colour in (CLIENT, SERVER, WIRE)
    )
    gap_left, gap_right = LEFT + BOX_WIDTH, RIGHT
    middle = (gap_left + gap_right) / 2
    parts = [
        f"<title>{TITLE}</title><defs>{heads}</defs>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" rx="12" fill="#ffffff"/>',
        text(WIDTH / 2, 40, "One round of TinyProto", size=18),
        panel(LEFT, "client i, one of M", "its images and its network stay here", CLIENT),
        panel(RIGHT, "server", "sees no images and no network", SERVER),
        *column(CLIENT_BOXES, LEFT, CLIENT),
        *column(SERVER_BOXES, RIGHT, SERVER),
        arrow(f"M {gap_right} 173 H {gap_left + 5}", WIRE),
        text(middle, 152, "frame down", WIRE, size=14),
        text(middle, 194, "header + K × s values", size=12),
        text(middle, 212, "(round 1: header only)", QUIET, size=12),
        arrow(f"M {gap_left} 433 H {gap_right - 5}", WIRE),
        text(middle, 396, "frame up", WIRE, size=14),
        text(middle, 416, "header + Kᵢ × s values", size=12),
        text(middle, 454, "+ metrics", QUIET, size=12),
        text(middle, 290, "every frame is", size=12),
        text(middle, 308, "encoded and measured:", size=12),
        text(middle, 330, "parameters, payload, wire", WIRE, size=12),
        text(WIDTH / 2, 506, BASES),
        text(WIDTH / 2, 532, RECORD, QUIET),
    ]
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" role="img">'
    )
    return "\n".join([head, *parts, "</svg>", ""])


if __name__ == "__main__":
    PICTURE.write_text(draw(), encoding="utf-8")
