"""The `tinyproto` command: its verbs, and the one place where errors become a sentence and an exit status."""

from __future__ import annotations

import sys
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated

import typer

import tinyproto
from tinyproto.cli.data import data
from tinyproto.cli.encoding import PLAIN, is_output_broken
from tinyproto.cli.interrupt import ending_at_once, importing
from tinyproto.cli.options import ConfigFile, Json, Overrides, Quiet, Verbose, positive
from tinyproto.errors import ConfigError, Interrupted, TinyProtoError

USER_ERROR = 2

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

    Start with **tinyproto run quickstart**, a built-in config. Your own starts with two lines,
    **models: [small_cnn_a]** and **algorithms: [local, tinyproto_ft]**.
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
    prototypes.safetensors, summary.json and checkpoints, from which **tinyproto resume** goes on. With
    keep_models=true it holds every client's trained network, too.

    Examples:

    - tinyproto run quickstart
    - tinyproto run quickstart name=short train.rounds=10 'algorithms=[local,fedproto]'
    - tinyproto run quickstart name=three 'seeds=[0,1,2]'
    - tinyproto run quickstart name=kept keep_models=true
    """
    with ending_at_once("nothing was recorded yet"):
        with importing():
            from tinyproto.cli.run import run_config
            from tinyproto.cli.terminal import Output
        run_config(config, overrides or [], runs, overwrite, Output(json=json, quiet=quiet, verbose=verbose))


@app.command()
def resume(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, such as runs/quickstart.")],
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Go on with a run that was interrupted or killed, from its newest checkpoint.

    It ends as it would have ended undisturbed; on a CPU, rounds.jsonl is the same byte for byte. A damaged checkpoint
    is named, and the one before takes its place. A run that has already ended only shows its table again and remakes
    report.html.
    """
    with ending_at_once("nothing was changed"):
        with importing():
            from tinyproto.cli.run import resume_run
            from tinyproto.cli.terminal import Output
        resume_run(folder, Output(json=json, quiet=quiet, verbose=verbose))


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
    from tinyproto.cli.info import list_models
    from tinyproto.cli.terminal import Output
    from tinyproto.models import ModelShape

    list_models(ModelShape((channels, image_size, image_size), proto_dim, num_classes), Output(json=json))


@app.command()
def serve(
    config: Annotated[
        Path | None,
        typer.Argument(
            metavar="CONFIG",
            help="A config file, the built-in federation, or with --resume a run folder.",
            show_default=False,
        ),
    ] = None,
    overrides: Overrides = None,
    keys: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="The folder that --init made.", show_default="keys; with --resume that of before"
        ),
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Where clients reach it; 0.0.0.0 is every network it is in.",
            show_default="127.0.0.1:8443; with --resume that of before",
        ),
    ] = None,
    runs: Annotated[Path, typer.Option(help="Where run folders go.")] = Path("runs"),
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the run folder if it exists.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on after the last round that was concluded.")] = False,
    init: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Make certificates and keys, and stop.", show_default="none"),
    ] = None,
    clients: Annotated[
        int | None,
        typer.Option(parser=positive("--clients"), metavar="N", help="With --init: keys for so many clients."),
    ] = None,
    host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="With --init: a name or address that clients know this machine by.",
            show_default="localhost and 127.0.0.1, always",
        ),
    ] = None,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Coordinate a real federation over the network; clients take part with **tinyproto join**.

    It runs on Flower, which wants an environment of its own (docs/federation.md says how), under TLS, for clients
    whose key is registered. The network reaches what clients need and nothing else. Rounds go on when clients vanish,
    and wait when too few are there. The run folder **runs/NAME** is like that of **tinyproto run**.

    Examples:

    - tinyproto serve --init keys --clients 3 --host coordinator.example.org
    - tinyproto serve federation.yaml --listen 0.0.0.0:8443
    - tinyproto serve runs/federation --resume
    """
    from tinyproto.cli.terminal import Output
    from tinyproto.federation.flower import require_flower

    require_flower()
    output = Output(json=json, quiet=quiet, verbose=verbose)
    if init is None and (clients is not None or host):
        raise ConfigError(
            "--clients and --host belong to --init; a config's federation.clients says how many there are"
        )
    if init is not None:
        if config is not None or keys is not None or listen is not None or overwrite or resume:
            raise ConfigError(
                "--init only makes certificates and keys; leave out CONFIG, --keys, --listen, --overwrite and --resume"
            )
        if clients is None:
            raise ConfigError("--init needs --clients: how many clients get a key")
        from tinyproto.cli.serve import init_keys

        init_keys(init, clients, host or [], output)
        return
    if config is None:
        raise ConfigError("name a CONFIG, such as the built-in federation, or make keys with --init")
    if overwrite and resume:
        raise ConfigError("--resume goes on with what is there, --overwrite replaces it; leave out one of them")
    from tinyproto.cli.serve import ServeOptions, serve_config

    try:
        serve_config(ServeOptions(config, tuple(overrides or ()), runs, keys, listen, overwrite, resume), output)
    except KeyboardInterrupt:
        raise Interrupted("--resume goes on after the last round that was concluded") from None


@app.command()
def join(
    server: Annotated[str, typer.Option(metavar="HOST:PORT", help="Where the coordinator is.")],
    client_id: Annotated[int, typer.Option(min=0, metavar="N", help="This client's number.")],
    model: Annotated[str, typer.Option(metavar="NAME", help="Its network: a registered name, or package.module:name.")],
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="Its samples: a folder with train/CLASS and test/CLASS, or an .npz file.",
            show_default=False,
        ),
    ] = None,
    share: Annotated[
        Path | None,
        typer.Option(
            metavar="CONFIG",
            help="To try things out: its share of the dataset that this config splits.",
            show_default=False,
        ),
    ] = None,
    image_size: Annotated[
        int | None,
        typer.Option(
            parser=positive("--image-size"),
            metavar="N",
            help="Height and width that images of a folder are brought to.",
            show_default="as they are",
        ),
    ] = None,
    keys: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Its keys, from the coordinator.", show_default="keys/client-N")
    ] = None,
    folder: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where it keeps its state.", show_default="clients/client-N")
    ] = None,
    device: Annotated[str, typer.Option(metavar="NAME", help="cpu, cuda, cuda:N or auto.")] = "cpu",
    give_up: Annotated[
        int | None,
        typer.Option(
            parser=positive("--give-up"),
            metavar="MINUTES",
            help="End when the coordinator is away for so long. A federation that is over looks like one that is away; "
            "who did its last round waits 10 minutes at most.",
            show_default="wait for ever",
        ),
    ] = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Be a client of a real federation, with its own samples and its own network, until that is over.

    It may come before the coordinator; Ctrl-C ends it, and the same command goes on from the state in its folder. What
    is wrong with its samples, its network's name or its device is said before it waits for anybody.

    Examples:

    - tinyproto join --server coordinator.example.org:8443 --client-id 0 --data images --model small_cnn_a
    - tinyproto join --server localhost:8443 --client-id 1 --share federation --model small_cnn_b
    """
    from tinyproto.federation.flower import require_flower

    require_flower()
    from tinyproto.cli.join import JoinOptions, join_federation
    from tinyproto.cli.terminal import Output

    options = JoinOptions(
        client_id, keys or Path("keys") / f"client-{client_id}", data, share, image_size, model, device,
        folder or Path("clients") / f"client-{client_id}", give_up,
    )  # fmt: skip
    try:
        join_federation(server, options, Output(json=json, quiet=quiet))
    except KeyboardInterrupt:
        raise Interrupted(f"client {client_id}: the same command goes on") from None


@app.command()
def doctor(json: Json = False) -> None:
    """Say what this machine offers: versions, devices, threads, extras, and where data is found."""
    from tinyproto.cli.info import examine
    from tinyproto.cli.terminal import Output

    examine(Output(json=json))


def main() -> None:
    """Entry point: an error a user can cause is one sentence on stderr and exit status 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # a terminal without Unicode shows ? instead of failing
            stream.reconfigure(errors=PLAIN)
    try:
        try:
            app()
        finally:
            sys.stdout.flush()
    except Interrupted as stopped:
        print(f"tinyproto: interrupted; {stopped}", file=sys.stderr)
        sys.exit(stopped.status)
    except TinyProtoError as error:
        print(f"tinyproto: error: {error}", file=sys.stderr)
        sys.exit(USER_ERROR)
    except OSError as error:  # of what verbs read and write they speak themselves
        if not is_output_broken(error):
            raise
        print(f"tinyproto: error: cannot write the output: {error.strerror or error}", file=sys.stderr)
        sys.exit(USER_ERROR)


if __name__ == "__main__":
    main()
