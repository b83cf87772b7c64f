"""The `tinyproto` command: its verbs, and the one place where errors become a sentence and an exit status.

Nothing heavy is imported here, so that --help is quick: each verb imports what it needs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import tinyproto
from tinyproto.cli.data import data
from tinyproto.cli.options import ConfigFile, Json, Live, Overrides, Quiet, Runs, Verbose
from tinyproto.cli.predict import export, predict
from tinyproto.cli.terminal import Output, run_app
from tinyproto.errors import ConfigError, Interrupted
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


@app.command()
def serve(
    config: Annotated[
        Path | None,
        typer.Argument(
            metavar="CONFIG",
            help="A config file, the built-in config federation, or with --resume a run folder.",
            show_default=False,
        ),
    ] = None,
    overrides: Overrides = None,
    keys: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="The folder made by --init.", show_default="keys; with --resume the previous one"
        ),
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="The address to listen on; 0.0.0.0 is every network interface.",
            show_default="127.0.0.1:8443; with --resume the previous one",
        ),
    ] = None,
    runs: Runs = Path("runs"),
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the run folder if it exists.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Resume after the last completed round.")] = False,
    init: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Make certificates and keys in this folder, then exit.", show_default="none"),
    ] = None,
    clients: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="With --init: the number of clients."),
    ] = None,
    host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="With --init: a name or address by which clients reach this machine.",
            show_default="localhost and 127.0.0.1 are always included",
        ),
    ] = None,
    live: Live = False,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Coordinate a real federation over the network; clients take part with **tinyproto join**.

    It runs on Flower, which needs an environment of its own (see docs/start/federation.md), and accepts clients with a
    registered key over TLS. Only the services that clients need are open to the network. Rounds continue when clients
    disappear, and wait when too few are connected. The run folder **runs/NAME** is like that of **tinyproto run**.

    Examples:

    - tinyproto serve --init keys --clients 3 --host coordinator.example.org
    - tinyproto serve federation.yaml --listen 0.0.0.0:8443
    - tinyproto serve runs/federation --resume
    """
    from tinyproto.federation.flower import require_flower

    require_flower()
    output = Output(json=json, quiet=quiet, verbose=verbose)
    if init is None and (clients is not None or host):
        raise ConfigError(
            "--clients and --host need --init; without it, federation.clients in the config is the number of clients"
        )
    if init is not None:
        if config is not None or keys is not None or listen is not None or overwrite or resume or live:
            raise ConfigError(
                "--init only makes certificates and keys; leave out CONFIG, --keys, --listen, --overwrite, --resume "
                "and --live"
            )
        if clients is None:
            raise ConfigError("--init needs --clients, the number of clients to make keys for")
        from tinyproto.cli.serve import init_keys

        init_keys(init, clients, host or [], output)
        return
    if config is None:
        raise ConfigError("name a CONFIG, such as the built-in config federation, or make keys with --init")
    if overwrite and resume:
        raise ConfigError("--resume continues a run and --overwrite replaces it; leave out one of them")
    from tinyproto.cli.serve import ServeOptions, serve_config

    try:
        serve_config(ServeOptions(config, tuple(overrides or ()), runs, keys, listen, overwrite, resume, live), output)
    except KeyboardInterrupt:
        raise Interrupted("--resume continues after the last completed round") from None


@app.command()
def join(
    client_id: Annotated[int, typer.Option(min=0, metavar="N", help="The number of this client.")],
    model: Annotated[str, typer.Option(metavar="NAME", help="The network: a registered name, or package.module:name.")],
    server: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="The coordinator's address.", show_default=False)
    ] = None,
    offline: Annotated[
        Path | None,
        typer.Option(
            metavar="CONFIG",
            help="Instead of --server: train alone by this config, with `anchors` or `local`.",
            show_default=False,
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="The samples: a folder with train/CLASS and test/CLASS, an .npz file, or a .csv or .parquet table.",
            show_default=False,
        ),
    ] = None,
    share: Annotated[
        Path | None,
        typer.Option(
            metavar="CONFIG",
            help="For a trial: use this client's share of the dataset that this config splits.",
            show_default=False,
        ),
    ] = None,
    image_size: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Resize the images of a folder to this height and width.",
            show_default="no resizing",
        ),
    ] = None,
    keys: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="The folder with this client's keys.", show_default="keys/client-N"),
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="The folder for this client's state.", show_default="clients/client-N"),
    ] = None,
    device: Annotated[str, typer.Option(metavar="NAME", help="cpu, cuda, cuda:N or auto.")] = "cpu",
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Take part in a real federation as a client, with samples and a network of your own, until it ends.

    The client may start before the coordinator. Ctrl-C ends it; the same command resumes from the state in its folder.
    Data, model and device are checked before connecting. A finished federation looks the same as an unreachable one,
    so after its last round a client waits at most 10 minutes.

    Examples:

    - tinyproto join --server coordinator.example.org:8443 --client-id 0 --data images --model small_cnn_a
    - tinyproto join --server localhost:8443 --client-id 1 --share federation --model small_cnn_b
    - tinyproto join --offline anchors.yaml --client-id 0 --data images --model small_cnn_a
    """
    from tinyproto.cli.device import JoinOptions, train_alone
    from tinyproto.federation.flower import require_flower

    if (server is None) == (offline is None):
        raise ConfigError("give either --server, the coordinator's address, or --offline, a config to train by alone")

    options = JoinOptions(
        client_id, keys or Path("keys") / f"client-{client_id}", data, share, image_size, model, device,
        folder or Path("clients") / f"client-{client_id}",
    )  # fmt: skip
    output = Output(json=json, quiet=quiet)
    try:
        if offline is not None:
            train_alone(offline, options, output)
        if server is not None:
            require_flower()
            from tinyproto.cli.join import join_federation

            join_federation(server, options, output)
    except KeyboardInterrupt:
        raise Interrupted(f"client {client_id} resumes with the same command") from None


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
