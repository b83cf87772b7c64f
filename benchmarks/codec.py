"""`python -m benchmarks codec`: how fast values are encoded and decoded, by type and rounding, and the size of rows.

Each number is the best of several passes on one core, in processor time. Rates count the float32 bytes on the decoded
side. Bulk is `ValueType.encode` and `decode` alone, on rows of CPS's width. Frames are complete: encoded with header
and checksum, and opened with all of a receiver's checks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from rich.table import Table

from benchmarks.machine import machine_facts
from tinyproto.cli.progress import LoadingBar
from tinyproto.cli.terminal import Output, facts_table, plain_table
from tinyproto.core.prototypes import Message, Prototypes
from tinyproto.core.streams import one_thread
from tinyproto.errors import ConfigError
from tinyproto.tracking.environment import environment
from tinyproto.wire.codec import encode, payload_bytes
from tinyproto.wire.frame import Header, Kind
from tinyproto.wire.validate import Expectation, open_frame
from tinyproto.wire.values import FLOAT32, VALUE_TYPES, Coding, Rounding, ValueType, WireSettings

BULK = {"1 MB": 10**6, "16 MB": 16 * 10**6}
"""Bytes of float32 per call."""

FRAMES = ((46, 50), (100, 500))
"""Rows and width of a typical upload of TinyProto on CIFAR-100, and of a whole download without CPS."""

WIDTH = 50

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class CodecSettings:
    """The amount of work to time."""

    passes: int = 7
    megabytes: float = 32.0  # of float32 that one pass goes through, at least

    def __post_init__(self) -> None:
        if self.passes < 1 or not self.megabytes > 0:
            raise ConfigError("passes and megabytes must be above 0")


def measure_codec(settings: CodecSettings, progress: Progress = lambda *_: None) -> dict[str, Any]:
    """Measure each type with each rounding that affects it."""
    cases = list(_cases())
    found = []
    with one_thread():
        for done, (values, rounding) in enumerate(cases):
            progress("measuring types", done, len(cases))
            found.append(_measure(settings, values, rounding))
        progress("measuring types", len(cases), len(cases))
    return {
        "schema_version": 1,
        "settings": asdict(settings),
        "timed": "one core, processor time, best pass; gigabytes of float32 per second",
        "types": found,
        "environment": environment("cpu", workers=1),
    }


def _cases() -> Iterator[tuple[ValueType, Rounding]]:
    for values in VALUE_TYPES.values():
        yield values, "nearest"
        if values.name != "float32":
            yield values, "stochastic"


def _measure(settings: CodecSettings, values: ValueType, rounding: Rounding) -> dict[str, Any]:
    draws = torch.Generator().manual_seed(0) if rounding == "stochastic" else None
    bulk = {name: _bulk(settings, values, draws, size) for name, size in BULK.items()}
    frames = {f"{rows} x {width}": _frame(settings, values, draws, rows, width) for rows, width in FRAMES}
    return {
        "type": values.name,
        "rounding": rounding,
        "bytes_per_row": {str(width): values.payload(2, width) / 2 for _, width in FRAMES},
        "bulk": bulk,
        "frames": frames,
    }


def _bulk(
    settings: CodecSettings, values: ValueType, draws: torch.Generator | None, size: int
) -> dict[str, float | None]:
    matrix = torch.randn(size // 4 // WIDTH, WIDTH, generator=torch.Generator().manual_seed(1)).numpy()
    data = np.frombuffer(values.encode(matrix), np.uint8)
    encoding = best_seconds(settings, matrix.nbytes, lambda: values.encode(matrix, draws))
    decoding = best_seconds(settings, matrix.nbytes, lambda: values.decode(data, *matrix.shape))
    return {
        "encode_gigabytes_per_second": matrix.nbytes / encoding / 1e9,
        "decode_gigabytes_per_second": None if values is FLOAT32 else matrix.nbytes / decoding / 1e9,  # None: a view
    }


def _frame(
    settings: CodecSettings, values: ValueType, draws: torch.Generator | None, rows: int, width: int
) -> dict[str, float]:
    present = torch.ones(rows, dtype=torch.bool)
    message = Message(Prototypes(torch.randn(rows, width, generator=torch.Generator().manual_seed(1)), present))
    expected = Expectation(bytes(16), rows, width, wire=WireSettings(values.name, values.name))
    header, coding = Header(Kind.UPDATE, 1, 0, expected.digest), Coding(values, draws)
    frame = encode(header, message, coding)
    size = 4 * rows * width
    encoding = best_seconds(settings, size, lambda: encode(header, message, coding))
    opening = best_seconds(settings, size, lambda: open_frame(frame, expected, 0, 1, (Kind.UPDATE,)))
    return {
        "encode_microseconds": 1e6 * encoding,
        "open_microseconds": 1e6 * opening,
        "payload_bytes": payload_bytes(message, values),
        "wire_bytes": len(frame),
    }


def best_seconds(settings: CodecSettings, size: int, work: Callable[[], object]) -> float:
    """Return the processor seconds of one call on so many bytes: the best of several passes."""
    repeats = max(1, int(settings.megabytes * 1e6 / size))
    passes = []
    for _ in range(settings.passes):
        start = time.process_time()
        for _ in range(repeats):
            work()
        passes.append(time.process_time() - start)
    return min(passes) / repeats


def show_codec(settings: CodecSettings, output: Output) -> None:
    """Measure and print."""
    with LoadingBar(output.console) as progress:
        found = measure_codec(settings, progress)
    if output.wants_json:
        output.result(found)
        return
    output.console.print(_codec_table(found))
    output.console.print(facts_table([("timed", found["timed"]), *machine_facts(found["environment"])]))


def _codec_table(found: Mapping[str, Any]) -> Table:
    table = plain_table()
    frames = [f"{rows} x {width}" for rows, width in FRAMES]
    for name in ("type", "rounding", "bytes/row"):
        table.add_column(name)
    for name in (*(f"{amount} GB/s" for amount in BULK), *(f"{frame} µs" for frame in frames)):
        table.add_column(name, justify="right")
    for one in found["types"]:
        rates = (one["bulk"][amount] for amount in BULK)
        times = (one["frames"][frame] for frame in frames)
        table.add_row(
            one["type"],
            one["rounding"],
            ", ".join(f"{count:g}" for count in one["bytes_per_row"].values()),
            *(f"{rate['encode_gigabytes_per_second']:.2f} / {_back(rate)}" for rate in rates),
            *(f"{t['encode_microseconds']:.0f} / {t['open_microseconds']:.0f}" for t in times),
        )
    table.caption = "bytes of a row of 50 and of 500 values; encode / decode"
    return table


def _back(rate: Mapping[str, float | None]) -> str:
    decoded = rate["decode_gigabytes_per_second"]
    return "a view" if decoded is None else f"{decoded:.2f}"
