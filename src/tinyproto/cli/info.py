"""`tinyproto doctor` and `tinyproto models`: this machine, and the networks that a config can name."""

from __future__ import annotations

import os
import platform
from dataclasses import asdict, replace
from typing import Any

import torch

import tinyproto
from tinyproto.cli.terminal import Output, facts_table, plain_table
from tinyproto.data.sources import SOURCES, locate
from tinyproto.memory import total_memory
from tinyproto.models import CNNS_1D, NETWORKS, PUBLISHED, TEXT, ModelShape, build_model
from tinyproto.models.build import SMALL_IMAGES
from tinyproto.models.count import measure
from tinyproto.report.words import number
from tinyproto.stacked.capture import why_no_kernels
from tinyproto.tracking.environment import cpu_name, devices, package_versions, source_commit

VOCABULARY = 10_000
"""Token ids that the sizes of text networks are for."""


def examine(output: Output) -> None:
    """Print versions, devices, threads and where data is found."""
    commit, _, modified = (source_commit() or "").partition("-")
    checkout = f" (commit {commit[:12]}{', modified' if modified else ''})" if commit else ""
    threads = torch.get_num_threads()
    found = {
        "tinyproto": tinyproto.__version__ + checkout,
        "python": f"{platform.python_version()} on {platform.platform()}",
        **{name: version or "not installed" for name, version in package_versions().items()},
        "cpu": f"{cpu_name()}, {os.cpu_count()} cores",
        "threads": f"torch uses {threads}; a simulation uses 1, so that results on a CPU are reproducible bit for bit",
        "devices": ", ".join(devices()),
        **{f"cuda:{index}": gpu_words(torch.device("cuda", index)) for index in range(torch.cuda.device_count())},
        **{f"data {name}": locate(name) for name in SOURCES},
    }
    if output.wants_json:
        output.result(found)
    else:
        output.console.print(facts_table(found.items()))


def gpu_words(device: torch.device) -> str:
    """Return a GPU's memory and compute capability, and which trainers run there."""
    major, minor = torch.cuda.get_device_capability(device)
    without = why_no_kernels(device)
    trainers = "all trainers run" if without is None else f"trainers eager and graphed run; not stacked: {without}"
    return f"{total_memory(device) / 2**30:.1f} GiB, compute capability {major}.{minor}; {trainers}"


def list_models(shape: ModelShape, output: Output) -> None:
    """Print name, parameters, width and multiply-accumulates of every registered network."""
    rows = [describe(name, shape) for name in NETWORKS]
    if output.wants_json:
        output.result(rows)
        return
    table = plain_table()
    table.add_column("network", no_wrap=True)
    for column in ("extractor", "head", "width", "MACs"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("paper's")
    for row in rows:
        sizes = (row[key] for key in ("extractor_parameters", "head_parameters", "feature_width", "macs"))
        table.add_row(row["name"], *(number(value) for value in sizes), "yes" if row["paper"] else "no")
    image = "×".join(str(length) for length in shape.input_shape)
    table.caption = (
        f"Parameters of extractor and head for K = {shape.num_classes} and d = {shape.proto_dim}; width of the "
        f"features before they are pooled to d; multiply-accumulates for one {image} image. Names that end in "
        f"{SMALL_IMAGES} have a stride-1 stem, which is not the paper's. Names with cnn1d: for a signal as long as the "
        f"image is wide; with text: for a sequence of that length with {number(VOCABULARY)} token ids."
    )
    output.console.print(table)


def describe(name: str, shape: ModelShape) -> dict[str, Any]:
    """Return the numbers of one network; `paper` is True if it is built as in TinyProto's paper."""
    channels, *_, length = shape.input_shape
    if name in CNNS_1D:
        shape = replace(shape, input_shape=(channels, length))
    elif name in TEXT:
        shape = replace(shape, input_shape=(length,), vocabulary=VOCABULARY)
    with torch.device("meta"):  # counting needs shapes only, so no weight is drawn and no image computed
        size = measure(build_model(name, shape, seed=0), shape.input_shape, shape.dtype)
    return {"name": name, **asdict(size), "paper": name in PUBLISHED}
