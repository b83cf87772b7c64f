"""`python -m paper`: run the paper's cells, report on them, and write the configs and the page made from records."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from tinyproto.cli.options import Json, Quiet, Verbose
from tinyproto.cli.terminal import run_app
from tinyproto.errors import ConfigError

RECORDS = Path("paper") / "records"


class _TargetFirst(TyperGroup):
    """`python -m paper table1` means `python -m paper run table1`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Insert `run` unless a command or the help is asked for."""
        known = (*self.commands, "--help", "-h")
        return super().parse_args(ctx, args if args and args[0] in known else ["run", *args])


app = typer.Typer(
    name="paper",
    cls=_TargetFirst,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def root() -> None:
    """Repeat the experiments of the TinyProto paper.

    Start with **python -m paper --list**. **python -m paper TARGET** is short for **python -m paper run TARGET**.
    Run it in the root of the repository.
    """


@app.command()
def run(
    target: Annotated[
        str | None, typer.Argument(metavar="TARGET", help="A table or a figure; see --list.", show_default=False)
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY=VALUE",
            show_default=False,
            help="Config keys that do not change results: train.parallel_cells, train.device, train.trainer, ...",
        ),
    ] = None,
    dataset: Annotated[list[str] | None, typer.Option(metavar="NAMES", help="Datasets.", show_default="all")] = None,
    configs: Annotated[list[str] | None, typer.Option(metavar="NAMES", help="Configs.", show_default="all")] = None,
    algorithms: Annotated[
        list[str] | None, typer.Option(metavar="NAMES", help="Algorithms.", show_default="all")
    ] = None,
    seeds: Annotated[
        list[str] | None, typer.Option(metavar="NUMBERS", help="Seeds.", show_default="those of the configs")
    ] = None,
    rounds: Annotated[
        int | None,
        typer.Option(min=1, metavar="T", help="Number of rounds.", show_default="that of the configs"),
    ] = None,
    preset: Annotated[
        str | None, typer.Option(metavar="NAME", help="Another preset.", show_default="that of the configs")
    ] = None,
    max_minutes: Annotated[
        float | None,
        typer.Option(min=0, help="Stop after this many minutes, with checkpoints.", show_default="no limit"),
    ] = None,
    data_root: Annotated[Path, typer.Option("--data", help="The folder that holds the datasets.")] = Path("data"),
    results: Annotated[Path, typer.Option(help="The folder of records, read and written.")] = RECORDS,
    runs: Annotated[Path, typer.Option(help="The folder of cells in progress.")] = Path("runs"),
    list_: Annotated[
        bool, typer.Option("--list", help="List the targets, or a target's cells and their progress, and stop.")
    ] = False,
    plan: Annotated[
        bool, typer.Option("--plan", help="List the jobs of the next GPU session in their order, and stop.")
    ] = False,
    import_: Annotated[
        list[Path] | None,
        typer.Option(
            "--import",
            metavar="RUN",
            show_default=False,
            help="Write records of a run folder's finished cells that are cells of the paper, and stop.",
        ),
    ] = None,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Run the cells of a table or a figure that have no record yet, and write a record of each.

    A cell is an algorithm of a config with a seed, mostly 300 rounds. It is done if a run folder anywhere below
    **paper/records** has the same config, seed and rounds. Cells in progress are kept in **runs/paper** and resume from
    their checkpoints. As many run at once as the GPU takes. Each record is written when its cell ends, to
    **paper/records/CONFIG/ALGORITHM-SEED**.

    After Ctrl-C, SIGTERM, SIGHUP, --max-minutes or a kill, the same command resumes. Lists are separated by commas.

    Examples:

    - python -m paper --list
    - python -m paper table1 --dataset cifar100 --list
    - python -m paper table1 --dataset cifar100 --seeds 0 --max-minutes 60
    - python -m paper table1 --dataset cifar100 --algorithms fedproto,tinyproto_ft --preset sound
    - python -m paper table3 --configs table3_alpha05
    - python -m paper --import runs/table1_cifar100
    - python -m paper --plan
    """
    if import_ and (target is not None or list_):
        raise ConfigError("--import writes records of whole run folders; leave out TARGET and --list")
    if plan and (target is not None or list_ or import_):
        raise ConfigError("--plan lists all jobs; leave out TARGET, --list and --import")
    if target is None and not import_ and not list_ and not plan:
        raise ConfigError("name a TARGET, such as table1; `python -m paper --list` lists them all")
    from paper.command import Asked, import_runs, list_cells, list_experiments, list_plan, run_target
    from tinyproto.cli.terminal import Output

    output = Output(json=json, quiet=quiet, verbose=verbose)
    if import_:
        import_runs(import_, results, output)
    elif plan:
        list_plan(results, output)
    elif target is None:
        list_experiments(output)
    else:
        asked = Asked.parse(target, dataset, configs, algorithms, seeds, rounds, preset, data_root, overrides)
        if list_:
            list_cells(asked, results, runs, output)
        else:
            run_target(asked, results, runs, max_minutes, output)


@app.command()
def report(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="RUN...", help="Run folders, or folders of run folders.", show_default=RECORDS.as_posix()
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="The file to write.", show_default="RUN/report.html, ./report.html for several"),
    ] = None,
    figures: Annotated[
        Path | None, typer.Option(help="A folder for every figure as .svg and .csv.", show_default="none")
    ] = None,
    class_id: Annotated[
        int | None,
        typer.Option("--class", min=0, help="The class to draw.", show_default="the class most clients hold"),
    ] = None,
    client_id: Annotated[
        int | None,
        typer.Option("--client", min=0, help="The client to draw.", show_default="the one with the most classes"),
    ] = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Write the page of **tinyproto report** with a chapter on the paper: its numbers next to those of the runs.

    Without RUN it reports on all records.

    Examples:

    - python -m paper report
    - python -m paper report paper/records runs/mine --out paper.html --figures figures
    """
    from paper.page.chapter import paper_chapter
    from tinyproto.cli.report import report_runs
    from tinyproto.cli.terminal import Output
    from tinyproto.report.figures.prototypes import Shown

    output = Output(json=json, quiet=quiet)
    report_runs(paths or [RECORDS], out, figures, Shown(class_id, client_id), output, paper_chapter)


@app.command()
def docs() -> None:
    """Write paper/configs, and the part of docs/reference/paper.md that is made from paper/records."""
    from paper.experiments import write_configs
    from paper.page.markdown import write_page

    write_configs(Path())
    write_page(Path())


def main() -> None:
    """Run the command; an error that a user can cause is one sentence on stderr and exit status 2."""
    run_app(app, "python -m paper")


if __name__ == "__main__":
    main()
