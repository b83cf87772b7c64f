"""The `tinyproto` command: its verbs, and the one place where errors become a sentence and an exit status."""

from __future__ import annotations

import sys
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated

import typer

import tinyproto
from tinyproto.cli.data import data
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
    config: Annotated[
        Path,
        typer.Argument(metavar="CONFIG", help="A config file, such as configs/quickstart.yaml.", show_default=False),
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help="Config keys to set, dotted.", show_default=False),
    ] = None,
    runs: Annotated[Path, typer.Option(help="Where run folders go.")] = Path("runs"),
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the run folder if it exists.")] = False,
) -> None:
    """Simulate a federation: every algorithm and seed of a config.

    Shows progress, then a table of what each algorithm reached and what it cost. The run folder **runs/NAME** holds
    the resolved config, the environment, rounds.jsonl, timings.jsonl, prototypes.safetensors, summary.json and
    checkpoints, from which **tinyproto resume** goes on.

    Examples:

    - tinyproto run configs/quickstart.yaml
    - tinyproto run configs/quickstart.yaml name=short train.rounds=10 'algorithms=[local,fedproto]'
    - tinyproto run configs/quickstart.yaml name=three 'seeds=[0,1,2]'
    """
    from tinyproto.cli.run import run_config

    try:
        run_config(config, overrides or [], runs, overwrite)
    except KeyboardInterrupt:
        raise Interrupted("nothing was recorded yet") from None


@app.command()
def resume(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, such as runs/quickstart.")],
) -> None:
    """Go on with a run that was interrupted or killed, from its newest checkpoint.

    It ends as it would have ended undisturbed; on a CPU, rounds.jsonl is the same byte for byte. A run that has
    already ended only shows its table again.
    """
    from tinyproto.cli.run import resume_run

    try:
        resume_run(folder)
    except KeyboardInterrupt:
        raise Interrupted("nothing was changed") from None


@app.command()
def doctor() -> None:
    """Say what this machine offers: versions, devices, threads, extras, and where data is found."""
    from tinyproto.cli.doctor import examine

    examine()


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
