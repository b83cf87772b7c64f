"""`tinyproto predict` and `tinyproto export`: use a network that a run kept, or that a device trained."""

from __future__ import annotations

import glob
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from tinyproto.cli.options import Json
from tinyproto.cli.terminal import Output, plain_table
from tinyproto.errors import DataError
from tinyproto.report.words import counted

if TYPE_CHECKING:
    from tinyproto.trained import Prediction, TrainedClient

Trained = Annotated[
    Path,
    typer.Argument(
        metavar="PATH",
        help="A run folder with kept networks, the folder of `tinyproto join`, or a file client-N.safetensors.",
        show_default=False,
    ),
]
ClientNumber = Annotated[
    int | None, typer.Option("--client", min=0, metavar="N", help="The client of a run.", show_default=False)
]
Label = Annotated[
    str | None,
    typer.Option(
        "--algorithm", "--label", metavar="LABEL", help="The algorithm, if the run has several.", show_default=False
    ),
]
Seed = Annotated[int | None, typer.Option(metavar="N", help="The seed, if the run has several.", show_default=False)]


def predict(
    path: Trained,
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILES", help="Images, folders of them, patterns such as '*.png', tables (.csv) or .npy arrays."
        ),
    ],
    client: ClientNumber = None,
    label: Label = None,
    seed: Seed = None,
    json: Json = False,
) -> None:
    """Classify images with a trained client: by its head, by global and by its own prototypes.

    The run needs **keep_models=true**; a device needs nothing. Images are converted and resized to the network's
    input. The score of the head is its softmax. The score of a prototype rule is minus the distance to the nearest
    prototype. The highest score wins; compare scores of one rule only.

    Examples:

    - tinyproto predict runs/kept --client 3 photo.png
    - tinyproto predict runs/kept --client 3 --algorithm tinyproto_ft --seed 0 photos --json
    - tinyproto predict clients/client-0 'photos/*.png'
    - tinyproto predict runs/pets --client 0 new.csv
    """
    import torch

    from tinyproto.trained import load_client

    output = Output(json=json)
    found = list(_named(files))
    trained = load_client(path, client, label=label, seed=seed)
    batches = [trained.inputs.batch(file) for file in found]
    names = [name for file, batch in zip(found, batches, strict=True) for name in _rows(file, len(batch))]
    features = trained.features(torch.cat(batches))
    by_rule = {rule: trained.decide(features, rule) for rule in trained.rules}
    output.say(_title(trained))
    output.result(_values(trained, names, by_rule))
    if not output.wants_json:
        table = plain_table()
        for name in ("input", *(part for rule in by_rule for part in (rule, "score"))):
            table.add_column(name, justify="right" if name == "score" else "left")
        for row, name in enumerate(names):
            words = [word for one in by_rule.values() for word in (one.classes[row], f"{_best(one, row):.3g}")]
            table.add_row(escape(name), *map(escape, words))
        output.console.print(table)
    for reason in _missing(trained).values():
        output.say(reason)


def export(
    path: Trained,
    client: ClientNumber = None,
    label: Label = None,
    seed: Seed = None,
    format_: Annotated[str, typer.Option("--format", metavar="NAME", help="onnx, or torch for torch.export.")] = "onnx",
    rule: Annotated[str, typer.Option(metavar="NAME", help="head, global or local.")] = "global",
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FILE", help="The file to write.", show_default="client-N.onnx or .pt2"),
    ] = None,
    json: Json = False,
) -> None:
    """Write a trained client as one file that takes raw inputs and answers with a score for each class.

    Normalisation, network and prototypes are inside. The input is a batch of any size, as stored: uint8 for images. The
    highest score wins; the scores are those of **tinyproto predict**. The file is checked against our own answers
    before it gets its name. ONNX needs the extra **export**; to run such a file a device needs onnxruntime only.

    Examples:

    - tinyproto export runs/kept --client 3 -o client.onnx
    - tinyproto export clients/client-0 --format torch --rule head
    """
    from tinyproto.trained import load_client
    from tinyproto.trained.export import FORMATS, export_client

    output = Output(json=json)
    trained = load_client(path, client, label=label, seed=seed)
    output.say(_title(trained))
    file = out or Path(f"client-{trained.facts['client']}{FORMATS.get(format_, '')}")
    done = export_client(trained, file, format_, rule)
    output.say(
        f"{file}: {done.bytes / 1000:,.0f} kB, rule {rule}, {len(trained.classes)} classes, "
        f"{done.milliseconds:.2g} ms per input on one core; scores differ from ours by {done.difference:.1g} at most"
    )
    output.result({**done._asdict(), "file": str(file), "rule": rule, "classes": trained.classes})


def _title(trained: TrainedClient) -> str:
    facts = trained.facts
    when = f"after {counted(facts['rounds'], 'round')}" if "rounds" in facts else f"seed {facts['seed']}"
    return f"client {facts['client']}, {facts['network']}, {facts['label']}, {when}: {trained.path}"


def _missing(trained: TrainedClient) -> dict[str, str]:
    """Return why the client lacks rules."""
    from tinyproto.engine.measure import RULES

    return {rule: trained.why_not(rule) for rule in RULES if rule not in trained.rules}


def _best(found: Prediction, row: int) -> float:
    return float(found.scores[row, found.labels[row]]) + 0.0  # not −0


def _rows(file: str, count: int) -> list[str]:
    """Name the inputs of a file: by the file alone, or by row if it has several."""
    return [file] if count == 1 else [f"{file}, row {row + 1}" for row in range(count)]


def _values(trained: TrainedClient, names: Sequence[str], by_rule: dict[str, Prediction]) -> dict[str, Any]:
    def one(row: int) -> dict[str, Any]:
        return {
            rule: {"class": found.classes[row], "label": int(found.labels[row]), "score": _best(found, row)}
            for rule, found in by_rule.items()
        }

    facts = ("client", "label", "seed", "network", "dataset")
    return {
        **{name: trained.facts.get(name) for name in facts},
        "file": str(trained.path),
        "missing": _missing(trained),
        "predictions": [{"input": name, **one(row)} for row, name in enumerate(names)],
    }


def _named(given: Sequence[str]) -> Iterator[str]:
    """Yield the files that paths, folders and patterns name; raise DataError if one of them names none."""
    from tinyproto.data.sources.image_folder import SUFFIXES, images_below

    for words in given:
        path = Path(words).expanduser()
        if path.is_dir():
            found = [str(path / name) for name in images_below(path)]
            if not found:
                raise DataError(f"{path} has no images ({', '.join(SUFFIXES)})")
        elif path.exists() or not glob.has_magic(words):
            found = [str(path)]
        else:
            found = sorted(glob.glob(str(path), recursive=True))  # noqa: PTH207
            if not found:
                raise DataError(f"no file matches {words}")
        yield from found
