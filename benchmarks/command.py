"""`tinyproto bench`: measurements of this machine."""

from __future__ import annotations

from typing import Annotated

import typer

from tinyproto.cli.options import Json, Verbose, names, positive
from tinyproto.errors import Interrupted

bench = typer.Typer(
    name="bench",
    no_args_is_help=True,
    help="Measure this machine: rounds by trainer, aggregation at scale, many clients, values on the wire.",
    rich_markup_mode="markdown",
)


@bench.callback()
def root() -> None:
    """Measure this machine: rounds by trainer, aggregation at scale, many clients, values on the wire."""


@bench.command()
def round(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[CONFIG] [KEY=VALUE]...",
            help="A config file and config keys to set; without a file, made-up images of CIFAR-10's shape.",
            show_default=False,
        ),
    ] = None,
    trainers: Annotated[
        str, typer.Option(help="Trainers to compare, by comma; NAME*N has its clients in N worker processes.")
    ] = "eager",
    rounds: Annotated[
        int, typer.Option(parser=positive("--rounds"), metavar="INTEGER", help="Rounds that count, after the first.")
    ] = 5,
    naive: Annotated[
        str | None,
        typer.Option(
            help="Dotted name of the baseline; a checkout's benchmarks/naive if left out; none leaves it out."
        ),
    ] = None,
    samples: Annotated[
        int, typer.Option(parser=positive("--samples"), metavar="INTEGER", help="How many images to make up.")
    ] = 2000,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Compare trainers, and the round as published libraries write it, in turns on this machine.

    Shows seconds per phase, steps per second, how busy the device was, memory, and the ratio to the baseline; then
    class means and the three rules from given features.

    Examples:

    - tinyproto bench round quickstart 'algorithms=[tinyproto_ft]'
    - tinyproto bench round --trainers 'eager,eager*2' --rounds 3 --json
    """
    from benchmarks.round import bench_round
    from tinyproto.cli.terminal import Output

    bench_round(arguments or [], trainers, rounds, naive, samples, Output(json=json, verbose=verbose))


@bench.command()
def scale(
    clients: Annotated[str, typer.Option(metavar="N,N", help="Numbers of clients.")] = "200,2000",
    participation: Annotated[float, typer.Option(help="Share of the clients that take part in a round.")] = 0.05,
    participants: Annotated[
        int | None,
        typer.Option(
            parser=positive("--participants"),
            metavar="N",
            help="How many take part where all sizes have the same number.",
            show_default="the share of the smallest size",
        ),
    ] = None,
    rounds: Annotated[int, typer.Option(parser=positive("--rounds"), metavar="N", help="Rounds of each case.")] = 3,
    samples: Annotated[
        int, typer.Option(parser=positive("--samples"), metavar="N", help="Samples a client, on average.")
    ] = 30,
    algorithm: Annotated[str, typer.Option(help="An algorithm's name.")] = "tinyproto_ft",
    networks: Annotated[
        str | None,
        typer.Option(
            metavar="A,B", help="Networks; client i has network i modulo their number.", show_default="the paper's four"
        ),
    ] = None,
    image_size: Annotated[
        int, typer.Option(parser=positive("--image-size"), metavar="N", help="Height and width of an image.")
    ] = 32,
    memory: Annotated[
        str, typer.Option(help="What clients may take in memory: the config's train.client_memory.")
    ] = "200MB",
    closing: Annotated[
        bool, typer.Option("--closing", help="Also the closing exchange, which evaluates every client once.")
    ] = False,
    json: Json = False,
) -> None:
    """Measure a round as the number of clients grows: seconds by phase, memory, bytes to and from disk.

    Every size is played with the same number of participants and with the same share of them, on synthetic images, each
    case in a process of its own. A round should cost what its participants cost, however many clients there are.

    Examples:

    - tinyproto bench scale
    - tinyproto bench scale --clients 100,400 --networks small_cnn_a,small_cnn_b --json
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
        networks=PAPER if networks is None else names(networks),
        image_size=image_size,
        memory=memory,
        closing=closing,
    )
    try:
        show_scale(settings, Output(json=json))
    except KeyboardInterrupt:
        raise Interrupted("the measurement was not finished") from None


@bench.command()
def aggregate(
    uploads: Annotated[int, typer.Option(help="How many uploads are taken in.")] = 1_000_000,
    classes: Annotated[int, typer.Option(help="K.")] = 100,
    held: Annotated[int, typer.Option(help="Classes that a client holds, so rows per upload.")] = 46,
    cps_dim: Annotated[int, typer.Option(help="s, values per row.")] = 50,
    proto_dim: Annotated[int, typer.Option(help="d, of which s are sent.")] = 500,
    shards: Annotated[int, typer.Option(help="Edge aggregators, whose sums are merged in a tree.")] = 1,
    json: Json = False,
) -> None:
    """Take in the uploads of a TinyProto-FP round on one core: decode, validate, fold into sums.

    The defaults are a million clients on CIFAR-100. Says gigabytes of payload and uploads per second of processor time,
    peak memory, the share of each stage and the rate of the readable way, and holds the sums to the exact ones.

    Examples:

    - tinyproto bench aggregate
    - tinyproto bench aggregate --uploads 20000 --shards 8 --json
    """
    from benchmarks.aggregate import AggregateSettings, show_aggregate
    from tinyproto.cli.terminal import Output

    show_aggregate(AggregateSettings(uploads, classes, held, cps_dim, proto_dim, shards), Output(json=json))


@bench.command()
def codec(
    passes: Annotated[
        int, typer.Option(parser=positive("--passes"), metavar="N", help="Of which the best counts.")
    ] = 7,
    megabytes: Annotated[
        int, typer.Option(parser=positive("--megabytes"), metavar="N", help="Of float32 that a pass goes through.")
    ] = 32,
    json: Json = False,
) -> None:
    """Measure values on the wire: float32, float16, bfloat16, int8 and int4, rounded to nearest and stochastically.

    Says gigabytes of float32 per second that one core encodes and decodes at 1 MB and 16 MB, microseconds of whole
    frames of 46 x 50 and 100 x 500 values, and bytes of a row.

    Examples:

    - tinyproto bench codec
    - tinyproto bench codec --passes 3 --json
    """
    from benchmarks.codec import CodecSettings, show_codec
    from tinyproto.cli.terminal import Output

    show_codec(CodecSettings(passes, float(megabytes)), Output(json=json))


@bench.command()
def device(
    networks: Annotated[
        str | None, typer.Option(metavar="A,B", help="Networks to train.", show_default="the paper's four")
    ] = None,
    samples: Annotated[
        int, typer.Option(parser=positive("--samples"), metavar="N", help="Training samples of the client.")
    ] = 2250,
    steps: Annotated[
        int, typer.Option(parser=positive("--steps"), metavar="N", help="Steps that are timed, of a round's.")
    ] = 3,
    passes: Annotated[
        int, typer.Option(parser=positive("--passes"), metavar="N", help="Of the exchange; the best counts.")
    ] = 7,
    json: Json = False,
) -> None:
    """Measure what a round of TinyProto-FT costs a client besides training: compress, scale, round, encode, and back.

    One client of CIFAR-100's federation on one core, 46 of 100 classes, d = 500, s = 50. The exit status is 1 where
    that takes 1 % or more of the quickest network's round.

    Examples:

    - tinyproto bench device
    - tinyproto bench device --networks resnet8 --steps 1 --json
    """
    from benchmarks.codec import show_device
    from benchmarks.device import DeviceSettings
    from benchmarks.scale import PAPER
    from tinyproto.cli.terminal import Output

    chosen = PAPER if networks is None else names(networks)
    show_device(DeviceSettings(chosen, samples=samples, steps=steps, passes=passes), Output(json=json))
