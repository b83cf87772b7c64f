"""The verbs of a real federation, `serve` and `join`: their options, and which of them go together.

Nothing heavy is imported here, so that --help is quick.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tinyproto.cli.options import (
    PREFIX,
    BrokerAuthority,
    Json,
    Live,
    OtherBroker,
    Overrides,
    Quiet,
    Runs,
    Topic,
    Transport,
    Verbose,
    is_over_mqtt,
)
from tinyproto.cli.terminal import Output
from tinyproto.errors import ConfigError, Interrupted


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
            show_default="127.0.0.1:8443, over MQTT 127.0.0.1:8883; with --resume the previous one",
        ),
    ] = None,
    transport: Transport = None,
    broker: OtherBroker = None,
    broker_ca: BrokerAuthority = None,
    topic: Topic = None,
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

    Clients with keys of this federation connect over TLS, through Flower or, with **--transport mqtt**, through a
    Mosquitto that is started here. docs/start/federation.md has the steps, docs/how-to/transports.md compares the two.
    Rounds continue when clients disappear, and wait when too few are connected. The run folder **runs/NAME** is like
    that of **tinyproto run**.

    Examples:

    - tinyproto serve --init keys --clients 3 --host coordinator.example.org
    - tinyproto serve federation.yaml --listen 0.0.0.0:8443
    - tinyproto serve federation.yaml --transport mqtt --listen 0.0.0.0:8883
    - tinyproto serve runs/federation --resume
    """
    from tinyproto.federation import require_transport

    over_mqtt = is_over_mqtt(transport, broker, broker_ca, topic)
    require_transport("mqtt" if over_mqtt else None if init is not None or resume else "flower")
    output = Output(json=json, quiet=quiet, verbose=verbose)
    if init is None and (clients is not None or host):
        raise ConfigError(
            "--clients and --host need --init; without it, federation.clients in the config is the number of clients"
        )
    if init is not None:
        if overwrite or resume or live or [config, keys, listen, broker] != 4 * [None]:
            raise ConfigError(
                "--init only makes certificates and keys; leave out CONFIG, --keys, --listen, --broker, --overwrite, "
                "--resume and --live"
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
    if broker is not None and listen is not None:
        raise ConfigError("--broker is a broker that runs already, and --listen starts one; leave out one of them")
    from tinyproto.cli.serve import ServeOptions, serve_config

    options = ServeOptions(
        config, tuple(overrides or ()), runs, keys, listen, overwrite, resume, live, transport, broker, broker_ca, topic
    )
    try:
        serve_config(options, output)
    except KeyboardInterrupt:
        raise Interrupted("--resume continues after the last completed round") from None


def join(
    client_id: Annotated[int, typer.Option(min=0, metavar="N", help="The number of this client.")],
    model: Annotated[str, typer.Option(metavar="NAME", help="The network: a registered name, or package.module:name.")],
    server: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="The coordinator's address.", show_default=False)
    ] = None,
    transport: Transport = None,
    broker: OtherBroker = None,
    broker_ca: BrokerAuthority = None,
    topic: Topic = None,
    once: Annotated[
        bool, typer.Option("--once", help="Over MQTT: take part in one round, then end; for a device that sleeps.")
    ] = False,
    resident: Annotated[
        bool, typer.Option("--resident", help="Over MQTT: keep the training process between rounds.")
    ] = False,
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
    - tinyproto join --server localhost:8883 --transport mqtt --client-id 2 --share federation --model small_cnn_c
    - tinyproto join --offline anchors.yaml --client-id 0 --data images --model small_cnn_a
    """
    from tinyproto.cli.client_folder import JoinOptions
    from tinyproto.federation import require_transport

    if [server, broker, offline].count(None) != 2:
        raise ConfigError(
            "give one of --server, the coordinator's address, --broker, the address of another MQTT broker, and "
            "--offline, a config to train by alone"
        )
    over_mqtt = is_over_mqtt(transport, broker, broker_ca, topic)
    if offline is not None and (transport is not None or once or resident):
        raise ConfigError("--offline trains alone; leave out --transport, --once and --resident")
    if (once or resident) and not over_mqtt:
        raise ConfigError("--once and --resident are for MQTT; add --transport mqtt")
    if once and resident:
        raise ConfigError("--once ends after a round and --resident stays; leave out one of them")
    options = JoinOptions(
        client_id, keys or Path("keys") / f"client-{client_id}", data, share, image_size, model, device,
        folder or Path("clients") / f"client-{client_id}",
    )  # fmt: skip
    output = Output(json=json, quiet=quiet)
    try:
        if offline is not None:
            from tinyproto.cli.device import train_alone

            train_alone(offline, options, output)
        elif over_mqtt:
            require_transport("mqtt")
            from tinyproto.cli.join_mqtt import MqttOptions, join_over_mqtt

            prefix = "" if broker is None else PREFIX if topic is None else topic
            address = str(broker or server)
            reached = MqttOptions(address, broker is not None, broker_ca, prefix, once, resident)
            join_over_mqtt(reached, options, output)
        else:
            require_transport("flower")
            from tinyproto.cli.join import join_federation

            join_federation(str(server), options, output)
    except KeyboardInterrupt:
        raise Interrupted(f"client {client_id} resumes with the same command") from None
