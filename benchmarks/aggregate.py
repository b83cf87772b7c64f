"""`python -m benchmarks aggregate`: how fast one core aggregates uploads of TinyProto-FP, and in how much memory.

Frames are made before the clock starts. Decode, validate and fold are timed, which a server does for each upload.
Rates are per second of processor time, so other processes do not count; the wall clock is reported, too. At the end the
sums are compared with the exact ones.
"""

from __future__ import annotations

import math
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from statistics import median
from typing import Any, NamedTuple

import torch
import typer
from torch import Tensor

from benchmarks.machine import machine_facts
from tinyproto.algorithms import tinyproto_fp
from tinyproto.algorithms.base import ClientInfo, FederationSpec, expected_frames
from tinyproto.algorithms.streaming import Gathered, HolderSums, StreamingSide
from tinyproto.cli.progress import LoadingBar
from tinyproto.cli.terminal import Output, facts_table
from tinyproto.core.prototypes import Message, Prototypes
from tinyproto.core.streams import Streams, one_thread
from tinyproto.engine.checks import check_held, inspect_answer
from tinyproto.engine.measure import Stopwatch
from tinyproto.errors import ConfigError
from tinyproto.memory import PeakMemory
from tinyproto.report.words import number, percent, size, times
from tinyproto.tracking.environment import environment
from tinyproto.wire.codec import decode_body, encode
from tinyproto.wire.frame import HEADER_BYTES, Header, Kind, pack, unpack
from tinyproto.wire.validate import Expectation, open_frame

DISTINCT = 2048
"""The most uploads with different values; later clients repeat them."""

DISTINCT_BYTES = 32 << 20
"""The most memory for their values."""

BATCH = 64
"""Frames made at a time, so that they are in the processor's cache, as after a network read."""

SAMPLE = 1024
"""Uploads for timing the stages and the readable way."""

PASSES = 5
ROUND = 1
METRICS = {"cross_entropy": 1.25, "regulariser": 0.5}
"""The metrics that each update carries beside its rows."""

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class AggregateSettings:
    """The uploads to aggregate."""

    uploads: int = 1_000_000
    num_classes: int = 100
    held: int = 46
    cps_dim: int = 50
    proto_dim: int = 500
    shards: int = 1

    def __post_init__(self) -> None:
        for name in ("uploads", "num_classes", "held", "cps_dim", "proto_dim", "shards"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.held > self.num_classes:
            raise ConfigError(f"a client cannot hold {self.held} of {self.num_classes} classes")
        if self.cps_dim > self.proto_dim:
            raise ConfigError(f"cps_dim must be at most proto_dim, {self.proto_dim}, not {self.cps_dim}")

    @property
    def payload_per_upload(self) -> int:
        """Return the bytes of values in one upload."""
        return 4 * self.held * self.cps_dim


class Ring(NamedTuple):
    """Uploads with different values, and the bodies of their frames."""

    classes: Tensor  # (R, H) int64, ascending
    values: Tensor  # (R, H, s) float32: n_ij ĉ_ij
    bodies: Sequence[bytes]


def make_ring(settings: AggregateSettings, digest: bytes) -> Ring:
    """Draw uploads of both signs and of sizes that differ by the clients' n_ij, and encode them."""
    count = min(settings.uploads, DISTINCT, max(DISTINCT_BYTES // settings.payload_per_upload, 1))
    generator = torch.Generator().manual_seed(0)
    order = torch.rand(count, settings.num_classes, generator=generator).argsort(1)
    classes = order[:, : settings.held].sort(1).values
    values = torch.randn(count, settings.held, settings.cps_dim, generator=generator)
    values *= torch.randint(1, 500, (count, settings.held, 1), generator=generator)
    header, bodies = Header(Kind.UPDATE, ROUND, 0, digest), []
    for held, rows in zip(classes, values, strict=True):
        upload = Prototypes.absent(settings.num_classes, settings.cps_dim)
        upload.present[held] = True
        upload.values[held] = rows
        bodies.append(encode(header, Message(upload, metrics=METRICS))[HEADER_BYTES:])
    return Ring(classes, values, bodies)


class Delivery(NamedTuple):
    """One upload, and the function that receives it."""

    take: Callable[[ClientInfo, bytes], object]
    client: ClientInfo
    frame: bytes


class Intake:
    """Folds in the uploads of a round as they arrive, in memory that does not grow with their number.

    Several of them share the clients; what they have `gathered` is merged.
    """

    def __init__(self, expected: Expectation, round_number: int, gathered: Gathered) -> None:
        self.expected = expected
        self.round_number = round_number
        self.gathered = gathered

    def take(self, client: ClientInfo, frame: bytes) -> Mapping[str, float]:
        """Fold in one upload and return its metrics; raise a WireError, without any change, if it is invalid."""
        sections = inspect_answer(frame, self.expected, client.id, self.round_number, (Kind.UPDATE,))
        if sections.rows is not None:
            check_held(client, sections.rows, self.round_number)
            self.gathered.add(client, sections.rows)
        return sections.metrics


def measure(settings: AggregateSettings, progress: Progress = lambda *_: None) -> dict[str, Any]:
    """Aggregate all uploads; return time, memory and the errors of the sums."""
    memory = PeakMemory(torch.device("cpu"))
    before = memory.read()
    algorithm = tinyproto_fp.build(
        tinyproto_fp.TinyProtoFPHyper(cps_dim=settings.cps_dim),
        FederationSpec(settings.num_classes, settings.proto_dim, learning_rate=0.01),
    )
    side = algorithm.server
    assert isinstance(side, StreamingSide)
    expected = expected_frames(algorithm, settings.num_classes, settings.proto_dim)
    wall, cpu = Stopwatch(time.perf_counter), Stopwatch(time.process_time)
    with one_thread():
        ring = make_ring(settings, expected.digest)
        intakes = [Intake(expected, ROUND, side.gather()) for _ in range(settings.shards)]
        wire, reached, per_upload = 0, 0.0, []
        for batch in _batches(settings, ring, expected.digest, intakes):
            with wall.phase("intake"), cpu.phase("intake"):
                for take, client, frame in batch:
                    take(client, frame)
            wire += sum(len(delivery.frame) for delivery in batch)
            per_upload.append((cpu.seconds["intake"] - reached) / len(batch))
            reached = cpu.seconds["intake"]
            progress("aggregating uploads", batch[-1].client.id + 1, settings.uploads)
        with wall.phase("intake"), cpu.phase("intake"):
            gathered, *others = (intake.gathered for intake in intakes)
            for other in others:
                gathered.merge(other)
            side.conclude(side.init(Streams(0)), gathered)
        peak = memory.read() - before
        progress("comparing with exact sums", 0, 0)
        correct = compare_with_exact(settings, ring, gathered.sums)
        stages = _stages(settings, ring, expected, side.gather())
    seconds, readable = cpu.seconds["intake"], stages.pop("readable")
    return {
        "schema_version": 1,
        "settings": asdict(settings),
        "distinct_uploads": len(ring.bodies),
        "timed": "decode, validate and fold of frames in memory, in processor time; not making the frames",
        "payload_bytes": settings.uploads * settings.payload_per_upload,
        "wire_bytes": wire,
        "wall_seconds": wall.seconds["intake"],
        "cpu_seconds": cpu.seconds["intake"],
        "microseconds_per_upload": 1e6 * seconds / settings.uploads,
        "median_microseconds_per_upload": 1e6 * median(per_upload),  # over batches, so that interruptions do not count
        "uploads_per_second": settings.uploads / seconds,
        "gigabytes_per_second_per_core": settings.uploads * settings.payload_per_upload / seconds / 1e9,
        "shares": {name: value / sum(stages.values()) for name, value in stages.items()},
        "readable_way": {
            "microseconds_per_upload": 1e6 * readable,
            "gigabytes_per_second_per_core": settings.payload_per_upload / readable / 1e9,
            "ratio": readable / sum(stages.values()),
        },
        "peak_memory_bytes": peak,
        "sums": correct,
        "environment": environment("cpu", workers=1),
    }


def _batches(
    settings: AggregateSettings, ring: Ring, digest: bytes, intakes: Sequence[Intake]
) -> Iterator[list[Delivery]]:
    """Yield all uploads in batches, each upload from another client; the shards take turns."""
    for start in range(0, settings.uploads, BATCH):
        yield [
            Delivery(
                intakes[client % len(intakes)].take,
                ClientInfo(client, train_samples=450, counted_samples=450, counted_classes=settings.held),
                pack(Header(Kind.UPDATE, ROUND, client, digest), ring.bodies[client % len(ring.bodies)]),
            )
            for client in range(start, min(start + BATCH, settings.uploads))
        ]


def compare_with_exact(settings: AggregateSettings, ring: Ring, found: HolderSums) -> dict[str, Any]:
    """Return the largest error of the sums, and whether each is within the bound that `HolderSums` states.

    A value that was added c times contributes c·x, which float64 holds exactly; math.fsum adds without error.
    """
    distinct = len(ring.bodies)
    repeats = torch.tensor([len(range(first, settings.uploads, distinct)) for first in range(distinct)])
    exact, magnitudes = torch.zeros_like(found.sums), torch.zeros_like(found.sums)
    holders = torch.zeros_like(found.holders)
    for label in range(settings.num_classes):
        uploads, places = (ring.classes == label).nonzero(as_tuple=True)
        terms = ring.values[uploads, places].double() * repeats[uploads].unsqueeze(1)  # (n, s)
        exact[label] = torch.tensor([math.fsum(column) for column in terms.T.tolist()], dtype=torch.float64)
        magnitudes[label] = torch.tensor([math.fsum(column) for column in terms.T.abs().tolist()], dtype=torch.float64)
        holders[label] = repeats[uploads].sum()
    errors, bounds = (found.sums - exact).abs(), found.bound(magnitudes)
    shares = errors / bounds.clamp_min(torch.finfo(torch.float64).tiny)
    return {
        "largest_error": float(errors.max()),
        "largest_share_of_bound": float(shares.max()),
        "within_bound": bool((errors <= bounds).all()),
        "holders_are_right": bool(torch.equal(holders, found.holders)),
    }


def _stages(settings: AggregateSettings, ring: Ring, expected: Expectation, gathered: Gathered) -> dict[str, float]:
    """Return seconds per upload of each stage and of the readable way, on a sample: the best of several passes.

    Stages cannot be timed separately while they run in sequence. A stage's time is the difference between the pass that
    ends with it and the pass that ends before it.
    """
    kinds, intake, sums = (Kind.UPDATE,), Intake(expected, ROUND, gathered), gathered.sums
    sample = AggregateSettings(**{**asdict(settings), "uploads": min(SAMPLE, settings.uploads)})
    deliveries = [one for batch in _batches(sample, ring, expected.digest, [intake]) for one in batch]

    def checksum(_: ClientInfo, frame: bytes) -> None:
        zlib.crc32(frame)

    def decode(_: ClientInfo, frame: bytes) -> None:
        decode_body(unpack(frame, expected.digest)[1], expected)

    def validate(client: ClientInfo, frame: bytes) -> None:
        inspect_answer(frame, expected, client.id, ROUND, kinds)

    def readable(client: ClientInfo, frame: bytes) -> None:
        rows = open_frame(frame, expected, client.id, ROUND, kinds).message.rows
        if rows is not None:
            sums.add(rows)

    def seconds(step: Callable[[ClientInfo, bytes], object]) -> float:
        passes = []
        for _ in range(PASSES):
            start = time.process_time()
            for _, client, frame in deliveries:
                step(client, frame)
            passes.append(time.process_time() - start)
        return min(passes) / len(deliveries)

    reached = [0.0, *(seconds(step) for step in (checksum, decode, validate, intake.take))]
    each = (max(later - sooner, 0.0) for sooner, later in pairwise(reached))
    return dict(zip(("checksum", "decode", "validate", "fold"), each, strict=True)) | {"readable": seconds(readable)}


def show_aggregate(settings: AggregateSettings, output: Output) -> None:
    """Measure and print; exit with status 1 if a sum is outside its bound."""
    with LoadingBar(output.console) as progress:
        found = measure(settings, progress)
    if output.wants_json:
        output.result(found)
    else:
        output.console.print(facts_table(_lines(found)))
    if not sums_are_right(found):
        raise typer.Exit(1)


def sums_are_right(found: dict[str, Any]) -> bool:
    """Return True if each client was counted and each sum is within the stated bound."""
    return bool(found["sums"]["within_bound"] and found["sums"]["holders_are_right"])


def _lines(found: dict[str, Any]) -> Iterator[tuple[str, str]]:
    asked, readable, sums = found["settings"], found["readable_way"], found["sums"]
    rows = f"{asked['held']} of {asked['num_classes']} classes, {asked['cps_dim']} values each"
    yield (
        "uploads",
        f"{number(asked['uploads'])} of {rows}; {number(found['distinct_uploads'])} of them differ",
    )
    yield "payload", f"{size(found['payload_bytes'])}, in frames of {size(found['wire_bytes'])}"
    yield "timed", found["timed"]
    speed, typical = found["gigabytes_per_second_per_core"], found["median_microseconds_per_upload"]
    yield (
        "rate per core",
        (
            f"{speed:.3f} GB/s of payload, {number(found['uploads_per_second'])} uploads/s, "
            f"{found['microseconds_per_upload']:.1f} µs each (median batch: {typical:.1f})"
        ),
    )
    yield "seconds", f"{found['cpu_seconds']:.2f} of processor time, {found['wall_seconds']:.2f} of wall time"
    yield "shares", ", ".join(f"{name} {percent(share)}" for name, share in found["shares"].items())
    yield (
        "readable way",
        (
            f"{readable['gigabytes_per_second_per_core']:.3f} GB/s, {readable['microseconds_per_upload']:.1f} µs each: "
            f"{times(readable['ratio'])} as long"
        ),
    )
    yield "peak memory", f"{size(found['peak_memory_bytes'])} above the imported package, frames included"
    if asked["shards"] > 1:
        yield "shards", f"{asked['shards']}, whose sums were merged in a tree"
    verdict = (
        f"within the bound: at most {sums['largest_share_of_bound']:.2g} of it" if sums_are_right(found) else "WRONG"
    )
    yield "sums", f"{verdict}; largest error {sums['largest_error']:.2g}, against exact sums"
    yield from machine_facts(found["environment"])
