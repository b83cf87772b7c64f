"""The command `python -m benchmarks`: one verb per measurement, run from the repository's root."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tinyproto.cli.options import Json, Verbose
from tinyproto.cli.terminal import run_app
from tinyproto.errors import Interrupted

FORWARDED = {"allow_extra_args": True, "ignore_unknown_options": True}
"""The settings of a verb that parses its options itself, because they take several values each."""

app = typer.Typer(
    name="benchmarks",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def root() -> None:
    """Measure tinyproto on this machine, or repeat one of its studies.

    round, scale, aggregate, codec, device, peers and transports measure speed. soak tests reliability. attacks,
    networks, communication and participation train many small federations and write their tables to results/.
    """


@app.command()
def round(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[CONFIG] [KEY=VALUE]...",
            help="A config file and config keys to set; without a file, synthetic images of CIFAR-10's shape.",
            show_default=False,
        ),
    ] = None,
    trainers: Annotated[
        str, typer.Option(help="Trainers to compare, separated by commas; NAME*N uses N worker processes.")
    ] = "eager",
    rounds: Annotated[int, typer.Option(min=1, metavar="INTEGER", help="Rounds to time, after a first one.")] = 5,
    naive: Annotated[
        str | None,
        typer.Option(help="Dotted name of the baseline, or none.", show_default="benchmarks.naive"),
    ] = None,
    samples: Annotated[int, typer.Option(min=1, metavar="INTEGER", help="Number of synthetic images.")] = 2000,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Compare trainers with each other and with a round as published libraries write it.

    Show seconds per phase, steps per second, device utilisation, memory, and the ratio to the baseline; then class
    means and the three rules from given features.

    Examples:

    - python -m benchmarks round configs/quickstart.yaml 'algorithms=[tinyproto_ft]'
    - python -m benchmarks round --trainers 'eager,eager*2' --rounds 3 --json
    """
    from benchmarks.round import show_round
    from tinyproto.cli.terminal import Output

    show_round(arguments or [], trainers, rounds, naive, samples, Output(json=json, verbose=verbose))


@app.command()
def scale(
    clients: Annotated[str, typer.Option(metavar="N,N", help="Numbers of clients.")] = "200,2000",
    participation: Annotated[float, typer.Option(help="Share of the clients that take part in a round.")] = 0.05,
    participants: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Participants in the cases with the same number at all sizes.",
            show_default="the share of the smallest size",
        ),
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, metavar="N", help="Rounds of each case.")] = 3,
    samples: Annotated[int, typer.Option(min=1, metavar="N", help="Average samples per client.")] = 30,
    algorithm: Annotated[str, typer.Option(help="An algorithm's name.")] = "tinyproto_ft",
    networks: Annotated[
        str | None,
        typer.Option(
            metavar="A,B", help="Networks; client i has network i modulo their number.", show_default="the paper's four"
        ),
    ] = None,
    image_size: Annotated[int, typer.Option(min=1, metavar="N", help="Height and width of an image.")] = 32,
    memory: Annotated[str, typer.Option(help="Memory for clients: the config's train.client_memory.")] = "200MB",
    closing: Annotated[
        bool, typer.Option("--closing", help="Also time the closing exchange, which evaluates each client once.")
    ] = False,
    json: Json = False,
) -> None:
    """Measure a round as the number of clients grows: seconds by phase, memory, bytes to and from disk.

    Run each size with the same number of participants and with the same share of them, on synthetic images, each case
    in a process of its own. The cost of a round should depend on its participants, not on the number of clients.

    Examples:

    - python -m benchmarks scale
    - python -m benchmarks scale --clients 100,400 --networks small_cnn_a,small_cnn_b --json
    """
    from benchmarks.scale import PAPER, ScaleSettings, show_scale, sizes
    from tinyproto.cli.terminal import Output

    settings = ScaleSettings(
        clients=sizes(clients),
        participation=participation,
        participants=participants,
        rounds=rounds,
        samples=samples,
        algorithm=algorithm,
        networks=PAPER if networks is None else _names(networks),
        image_size=image_size,
        memory=memory,
        closing=closing,
    )
    try:
        show_scale(settings, Output(json=json))
    except KeyboardInterrupt:
        raise Interrupted("the measurement is incomplete") from None


@app.command()
def aggregate(
    uploads: Annotated[int, typer.Option(help="Number of uploads to aggregate.")] = 1_000_000,
    classes: Annotated[int, typer.Option(help="K, the number of classes.")] = 100,
    held: Annotated[int, typer.Option(help="Classes that a client holds: rows per upload.")] = 46,
    cps_dim: Annotated[int, typer.Option(help="s, values per row.")] = 50,
    proto_dim: Annotated[int, typer.Option(help="d, of which s are sent.")] = 500,
    shards: Annotated[int, typer.Option(help="Edge aggregators, whose sums are merged in a tree.")] = 1,
    json: Json = False,
) -> None:
    """Aggregate the uploads of a TinyProto-FP round on one core: decode, validate, fold into sums.

    The defaults are a million clients on CIFAR-100. Show gigabytes of payload and uploads per second of processor time,
    peak memory, the share of each stage and the rate of the readable way. Compare the sums with the exact ones; the
    exit status is 1 if they differ by more than the stated bound.

    Examples:

    - python -m benchmarks aggregate
    - python -m benchmarks aggregate --uploads 20000 --shards 8 --json
    """
    from benchmarks.aggregate import AggregateSettings, show_aggregate
    from tinyproto.cli.terminal import Output

    show_aggregate(AggregateSettings(uploads, classes, held, cps_dim, proto_dim, shards), Output(json=json))


@app.command()
def codec(
    passes: Annotated[int, typer.Option(min=1, metavar="N", help="Passes; the best counts.")] = 7,
    megabytes: Annotated[int, typer.Option(min=1, metavar="N", help="Megabytes of float32 per pass.")] = 32,
    json: Json = False,
) -> None:
    """Measure values on the wire: float32, float16, bfloat16, int8 and int4, rounded to nearest and stochastically.

    Show gigabytes of float32 per second that one core encodes and decodes at 1 MB and 16 MB, microseconds of whole
    frames of 46 x 50 and 100 x 500 values, and bytes of a row.

    Examples:

    - python -m benchmarks codec
    - python -m benchmarks codec --passes 3 --json
    """
    from benchmarks.codec import CodecSettings, show_codec
    from tinyproto.cli.terminal import Output

    show_codec(CodecSettings(passes, float(megabytes)), Output(json=json))


@app.command()
def device(
    networks: Annotated[
        str | None, typer.Option(metavar="A,B", help="Networks to train.", show_default="the paper's four")
    ] = None,
    samples: Annotated[int, typer.Option(min=1, metavar="N", help="Training samples of the client.")] = 2250,
    steps: Annotated[int, typer.Option(min=1, metavar="N", help="Training steps to time.")] = 3,
    passes: Annotated[int, typer.Option(min=1, metavar="N", help="Passes of the exchange; the best counts.")] = 7,
    json: Json = False,
) -> None:
    """Measure the cost of TinyProto-FT for a client besides training: compress, scale, round, encode, and back.

    One client of CIFAR-100's federation on one core, 46 of 100 classes, d = 500, s = 50. The exit status is 1 if the
    exchange takes 1 % or more of the fastest network's round.

    Examples:

    - python -m benchmarks device
    - python -m benchmarks device --networks resnet8 --steps 1 --json
    """
    from benchmarks.device import DeviceSettings, show_device
    from benchmarks.scale import PAPER
    from tinyproto.cli.terminal import Output

    chosen = PAPER if networks is None else _names(networks)
    show_device(DeviceSettings(chosen, samples=samples, steps=steps, passes=passes), Output(json=json))


@app.command()
def peers(
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    rounds: Annotated[int, typer.Option(min=1, metavar="N", help="Rounds to time, after a first one.")] = 9,
    trainers: Annotated[
        str | None,
        typer.Option(
            help="Our trainers, separated by commas; NAME*N uses N worker processes.", show_default="eager and stacked"
        ),
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="Folder with CIFAR-10.", show_default="synthetic images of its shape")
    ] = None,
    clients: Annotated[int, typer.Option(min=1, metavar="N", help="Clients, of 50 training samples each.")] = 1000,
    participants: Annotated[int, typer.Option(min=1, metavar="N", help="Clients that take part in a round.")] = 50,
    record: Annotated[Path | None, typer.Option(help="File for the JSON value, besides what is printed.")] = None,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Compare FedAvg rounds per second with pfl-research, if it is installed: same network, clients and batches.

    The exit status is 1 if a contender does not learn or accuracies differ by more than noise.

    Examples:

    - python -m benchmarks peers --device cpu
    - python -m benchmarks peers --device cuda --rounds 20 --json
    """
    from benchmarks.peers.command import show_peers
    from benchmarks.peers.work import Work
    from tinyproto.cli.terminal import Output

    work = Work(clients, participants, data=None if data is None else str(data), device=device)
    if not show_peers(work, trainers, rounds, record, Output(json=json, verbose=verbose)):
        raise typer.Exit(1)


@app.command(context_settings=FORWARDED, add_help_option=False)
def soak(context: typer.Context) -> None:
    """Test reliability for up to 20 minutes: kills, damaged frames, long runs, full disks, races, a lost broker."""
    from benchmarks.soak.command import main

    raise typer.Exit(main(context.args))


@app.command(context_settings=FORWARDED, add_help_option=False)
def transports(context: typer.Context) -> None:
    """Compare Flower and MQTT: bytes at the socket, seconds, memory; then many clients, many rounds, packets."""
    from benchmarks.transports.command import main

    raise typer.Exit(main(context.args))


@app.command(context_settings=FORWARDED, add_help_option=False)
def attacks(context: typer.Context) -> None:
    """Measure the effect of hostile clients on honest ones, by attack, defence and method (results/attacks)."""
    from benchmarks.attacks import main

    main(context.args)


@app.command(context_settings=FORWARDED, add_help_option=False)
def networks(context: typer.Context) -> None:
    """Measure TinyProto-FT at its defaults on nine ordinary networks (results/networks)."""
    from benchmarks.networks import main

    main(context.args)


@app.command(context_settings=FORWARDED, add_help_option=False)
def communication(context: typer.Context) -> None:
    """Measure methods against silence where communication has a chance (results/communication)."""
    from benchmarks.communication import main

    main(context.args)


@app.command(context_settings=FORWARDED, add_help_option=False)
def participation(context: typer.Context) -> None:
    """Measure accuracy against participation, with and without dropouts (results/participation)."""
    from benchmarks.participation import main

    main(context.args)


def _names(text: str) -> tuple[str, ...]:
    """Split a list at its commas."""
    return tuple(name.strip() for name in text.split(","))


def main() -> None:
    """Run the command; an error that a user can cause is one sentence on stderr and exit status 2."""
    run_app(app, "benchmarks")


if __name__ == "__main__":
    main()
