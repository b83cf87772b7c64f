"""The `tinyproto` command: its verbs, and the one place where errors become a sentence and an exit status."""

from __future__ import annotations

import sys
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated

import typer

import tinyproto
from tinyproto.cli.arguments import positive
from tinyproto.cli.bench import bench
from tinyproto.cli.data import data
from tinyproto.cli.options import ConfigFile, Json, Overrides, Quiet, Verbose
from tinyproto.errors import Interrupted, TinyProtoError

USER_ERROR = 2
INTERRUPTED = 130

app = typer.Typer(
    name="tinyproto",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)


app.add_typer(data)
app.add_typer(bench)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tinyproto {tinyproto.__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and stop.")
    ] = False,
) -> None:
    """Federated learning where every client keeps its own network and only tiny class prototypes travel.

    Start with **tinyproto run configs/quickstart.yaml**.
    """


@app.command()
def run(
    config: ConfigFile,
    overrides: Overrides = None,
    runs: Annotated[Path, typer.Option(help="Where run folders go.")] = Path("runs"),
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the run folder if it exists.")] = False,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Simulate a federation: every algorithm and seed of a config.

    Shows progress, then a table of what each algorithm reached and what it cost. The run folder **runs/NAME** holds
    report.html to look at, the resolved config, the environment, who held what, rounds.jsonl, timings.jsonl,
    prototypes.safetensors, summary.json and checkpoints, from which **tinyproto resume** goes on.

    Examples:

    - tinyproto run configs/quickstart.yaml
    - tinyproto run configs/quickstart.yaml name=short train.rounds=10 'algorithms=[local,fedproto]'
    - tinyproto run configs/quickstart.yaml name=three 'seeds=[0,1,2]'
    """
    from tinyproto.cli.run import run_config
    from tinyproto.cli.terminal import Output

    try:
        run_config(config, overrides or [], runs, overwrite, Output(json=json, quiet=quiet, verbose=verbose))
    except KeyboardInterrupt:
        raise Interrupted("nothing was recorded yet") from None


@app.command()
def resume(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, such as runs/quickstart.")],
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Go on with a run that was interrupted or killed, from its newest checkpoint.

    It ends as it would have ended undisturbed; on a CPU, rounds.jsonl is the same byte for byte. A run that has
    already ended only shows its table again and remakes report.html.
    """
    from tinyproto.cli.run import resume_run
    from tinyproto.cli.terminal import Output

    try:
        resume_run(folder, Output(json=json, quiet=quiet, verbose=verbose))
    except KeyboardInterrupt:
        raise Interrupted("nothing was changed") from None


@app.command()
def report(
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="RUN...", help="Run folders, or folders of run folders.", show_default=False),
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="The file to write.", show_default="RUN/report.html, ./report.html for several"),
    ] = None,
    figures: Annotated[
        Path | None, typer.Option(help="A folder for every figure as .svg and .csv.", show_default="none")
    ] = None,
    class_id: Annotated[
        int | None,
        typer.Option("--class", min=0, help="Whose prototypes are drawn.", show_default="the class most clients hold"),
    ] = None,
    client_id: Annotated[
        int | None,
        typer.Option("--client", min=0, help="Whose prototypes are drawn.", show_default="with the most classes"),
    ] = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Write one HTML page that shows what runs reached and cost; it needs nothing beside it.

    The verdict in words, the table, accuracy over rounds and over bytes, who holds what, accuracy per client, and
    heatmaps of prototypes. Runs that differ only in seeds are put together; other runs on the same data stand side by
    side.

    Examples:

    - tinyproto report runs/quickstart
    - tinyproto report runs/a runs/b --out comparison.html --figures figures
    """
    from tinyproto.cli.report import report_runs
    from tinyproto.cli.terminal import Output
    from tinyproto.report.figures.prototypes import Shown

    report_runs(paths, out, figures, Shown(class_id, client_id), Output(json=json, quiet=quiet))


@app.command()
def models(
    num_classes: Annotated[int, typer.Option(parser=positive("--num-classes"), metavar="K", help="Classes.")] = 100,
    proto_dim: Annotated[
        int, typer.Option(parser=positive("--proto-dim"), metavar="D", help="Width that features are pooled to.")
    ] = 500,
    image_size: Annotated[
        int, typer.Option(parser=positive("--image-size"), metavar="N", help="Height and width of an image.")
    ] = 32,
    channels: Annotated[
        int, typer.Option(parser=positive("--channels"), metavar="C", help="Channels of an image.")
    ] = 3,
    json: Json = False,
) -> None:
    """List the networks that a config can name: parameters of extractor and head, width of features, MACs."""
    from tinyproto.cli.models import list_models
    from tinyproto.cli.terminal import Output
    from tinyproto.models import ModelShape

    list_models(ModelShape((channels, image_size, image_size), proto_dim, num_classes), Output(json=json))


@app.command()
def reproduce(
    list_: Annotated[bool, typer.Option("--list", help="List the paper's tables and figures and their configs.")],
    json: Json = False,
) -> None:
    """The paper's experiments: which config gives which table or figure.

    Example:

    - tinyproto reproduce --list
    """
    from tinyproto.cli.reproduce import list_experiments
    from tinyproto.cli.terminal import Output

    if list_:
        list_experiments(Output(json=json))


@app.command()
def doctor(json: Json = False) -> None:
    """Say what this machine offers: versions, devices, threads, extras, and where data is found."""
    from tinyproto.cli.doctor import examine
    from tinyproto.cli.terminal import Output

    examine(Output(json=json))


def main() -> None:
    """Entry point: an error a user can cause is one sentence on stderr and exit status 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # a terminal without Unicode shows ? instead of failing
            stream.reconfigure(errors="replace")
    try:
        app()
    except Interrupted as stopped:
        print(f"tinyproto: interrupted; {stopped}", file=sys.stderr)
        sys.exit(INTERRUPTED)
    except TinyProtoError as error:
        print(f"tinyproto: error: {error}", file=sys.stderr)
        sys.exit(USER_ERROR)


if __name__ == "__main__":
    main()
