"""The `tinyproto` command: its verbs, and the one place where errors become a sentence and an exit status.

Nothing heavy is imported here, so that --help is quick: each verb imports what it needs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import tinyproto
from tinyproto.cli.data import data
from tinyproto.cli.federate import join, serve
from tinyproto.cli.options import ConfigFile, Json, Live, Overrides, Quiet, Runs, Verbose
from tinyproto.cli.predict import export, predict
from tinyproto.cli.terminal import Output, run_app
from tinyproto.errors import ConfigError
from tinyproto.report.formats import FigureFormat, TableFormat

app = typer.Typer(
    name="tinyproto",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(data)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tinyproto {tinyproto.__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Federated learning in which each client keeps its own network and only small class prototypes travel.

    Start with **tinyproto run quickstart**, a built-in config. A config of your own needs two lines:
    **models: [small_cnn_a]** and **algorithms: [local, tinyproto_ft]**.
    """


@app.command()
def run(
    config: ConfigFile,
    overrides: Overrides = None,
    runs: Runs = Path("runs"),
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the run folder if it exists.")] = False,
    live: Live = False,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Simulate a federation with every algorithm and seed of a config.

    Shows progress, then a table with the accuracy and the cost of each algorithm. Open **runs/NAME/report.html** in a
    browser. The run folder also holds the resolved config, the environment, who holds what, rounds.jsonl,
    timings.jsonl, prototypes.safetensors, summary.json and the checkpoints that **tinyproto resume** starts from. With
    keep_models=true it also holds the trained network of each client.

    Examples:

    - tinyproto run quickstart
    - tinyproto run quickstart name=short train.rounds=10 'algorithms=[local,fedproto]'
    - tinyproto run quickstart name=three 'seeds=[0,1,2]'
    - tinyproto run quickstart name=kept keep_models=true
    - tinyproto run quickstart name=watched --live
    """
    from tinyproto.cli.run import run_config

    run_config(config, overrides or [], runs, overwrite, Output(json=json, quiet=quiet, verbose=verbose), live=live)


@app.command()
def resume(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, such as runs/quickstart.")],
    live: Live = False,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Resume an interrupted or killed run from its latest checkpoint.

    The results are those of an uninterrupted run; on a CPU, rounds.jsonl is identical byte for byte. If a checkpoint is
    damaged, it is reported and the previous one is used. For a completed run, the table is shown again and report.html
    is rewritten.
    """
    from tinyproto.cli.run import resume_run

    resume_run(folder, Output(json=json, quiet=quiet, verbose=verbose), live=live)


@app.command()
def report(
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="RUN...", help="Run folders, or folders that contain run folders.", show_default=False),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", help="The file to write.", show_default="RUN/report.html; ./report.html for several runs"
        ),
    ] = None,
    table: Annotated[
        TableFormat | None,
        typer.Option(help="Instead of the page, print the table of results for a paper.", show_default=False),
    ] = None,
    figures: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write every figure into this folder, with its data.", show_default="none"),
    ] = None,
    format_: Annotated[
        FigureFormat | None,
        typer.Option(
            "--format", help="The format of the figures; PDF and PNG need the extra figures.", show_default="svg"
        ),
    ] = None,
    class_id: Annotated[
        int | None,
        typer.Option("--class", min=0, help="The class to draw.", show_default="held by most clients"),
    ] = None,
    client_id: Annotated[
        int | None,
        typer.Option("--client", min=0, help="The client to draw.", show_default="with the most classes"),
    ] = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Write one self-contained HTML page about the accuracy and the cost of runs.

    It shows a verdict in words, a table, accuracy over rounds and over bytes, accuracy per client, who holds what, and
    heatmaps of prototypes. Runs that differ only in seeds are merged; other runs on the same data are shown side by
    side.

    Examples:

    - tinyproto report runs/quickstart
    - tinyproto report runs/a runs/b --out comparison.html --figures figures
    - tinyproto report runs/quickstart --table latex -o table.tex
    - tinyproto report runs/quickstart --figures figures --format pdf
    """
    from tinyproto.cli.report import print_table, report_runs
    from tinyproto.report.figures.prototypes import Shown

    if format_ is not None and figures is None:
        raise ConfigError(f"--format {format_.value} needs --figures, the folder to write the figures to")
    if table is not None:
        if json or figures is not None:
            raise ConfigError(f"--table {table.value} prints a table only; leave out --json and --figures")
        print_table(paths, out, table, Output(json=True, quiet=quiet))  # words go to standard error
        return
    report_runs(
        paths,
        out,
        figures,
        Shown(class_id, client_id),
        Output(json=json, quiet=quiet),
        format_=format_ or FigureFormat.SVG,
    )


@app.command()
def models(
    num_classes: Annotated[int, typer.Option(min=1, max=100_000, metavar="K", help="Number of classes.")] = 100,
    proto_dim: Annotated[int, typer.Option(min=1, max=100_000, metavar="D", help="Prototype dimension.")] = 500,
    image_size: Annotated[int, typer.Option(min=1, max=100_000, metavar="N", help="Image height and width.")] = 32,
    channels: Annotated[int, typer.Option(min=1, max=100_000, metavar="C", help="Image channels.")] = 3,
    json: Json = False,
) -> None:
    """List the networks that a config can name, with parameters, feature width and multiply-accumulates."""
    from tinyproto.cli.info import list_models
    from tinyproto.models import ModelShape

    list_models(ModelShape((channels, image_size, image_size), proto_dim, num_classes), Output(json=json))


app.command()(serve)
app.command()(join)


@app.command()
def doctor(json: Json = False) -> None:
    """Show versions, devices, threads, and where data is found."""
    from tinyproto.cli.info import examine

    examine(Output(json=json))


app.command()(predict)
app.command()(export)


def main() -> None:
    """Run the command."""
    run_app(app, "tinyproto")


if __name__ == "__main__":
    main()
