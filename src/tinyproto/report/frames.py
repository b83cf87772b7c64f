"""A run as pandas frames, for analyses of your own."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tinyproto.errors import RunFolderError
from tinyproto.report import runs
from tinyproto.tracking.run_folder import PACKED, lines_kept, reading, record_from, sockets_from
from tinyproto.tracking.summary import RoundResult, round_values

if TYPE_CHECKING:
    import pandas as pd

NO_COLUMN = ("left_out_clients", "socket_bytes_per_round_clients")
"""Parts of a result that have a value for each client."""


@dataclass(frozen=True, repr=False)
class RunFrames:
    """The completed cells of a run; `run`, `label` and `seed` name the cell of each row."""

    rounds: pd.DataFrame  # a row per round, closing exchange included; accuracies are fractions
    clients: pd.DataFrame  # a row per client and round
    summary: pd.DataFrame  # a row per cell: the entries of summary.json

    def __repr__(self) -> str:
        return f"RunFrames({len(self.rounds)} rounds, {len(self.clients)} client rounds, {len(self.summary)} cells)"


def read_run(path: Path | str) -> RunFrames:
    """Read a run folder, a record, or all run folders inside a folder, into pandas frames.

    It takes the folder of a simulation and that of a federation's coordinator. Cells that are not completed are left
    out.
    """
    try:
        import pandas as pd
    except ImportError as error:
        raise RunFolderError('tp.read_run needs pandas: pip install "tinyproto-fl[pandas]"') from error
    found = runs.read_runs(runs.find_runs([Path(path)]))
    return RunFrames(
        rounds=pd.DataFrame(row for run in found for row in _rounds(run)),
        clients=pd.DataFrame(row for run in found for row in _clients(run)),
        summary=pd.DataFrame(row for run in found for row in _summary(run)),
    )


def _rounds(run: runs.Run) -> Iterator[dict[str, Any]]:
    timings = _timings(run.folder / "timings.jsonl")
    for (label, seed), lines in run.rounds.items():
        for line in lines:
            record = record_from(dict(line))
            timing = timings.get((label, seed, record.round), {})
            result = RoundResult(record, timing.get("seconds", {}), sockets=sockets_from(timing.get("socket_bytes")))
            counts = {name: len(getattr(record, name)) for name in ("participants", "refused", "dropped", "late")}
            values = {**counts, **round_values(result)}
            yield {**_cell(run, line), "round": record.round, "closing": record.closing, **_columns(values)}


def _clients(run: runs.Run) -> Iterator[dict[str, Any]]:
    for lines in run.rounds.values():
        for line in lines:
            for client, one in record_from(dict(line)).clients.items():
                samples = one.test_samples
                values = {
                    "test_samples": samples,
                    "correct": one.correct,
                    "accuracy": {rule: _share(right, samples) for rule, right in one.correct.items()},
                    "payload_bytes": one.payload_bytes,
                    "wire_bytes": one.wire_bytes,
                }
                yield {**_cell(run, line), "round": line["round"], "client": client, **_columns(values)}


def _summary(run: runs.Run) -> Iterator[dict[str, Any]]:
    for result in run.results:
        yield {"run": run.name, **_columns(result)}


def _cell(run: runs.Run, line: Mapping[str, Any]) -> dict[str, Any]:
    return {"run": run.name, **{key: line[key] for key in ("algorithm", "label", "seed")}}


def _share(right: int | None, samples: int | None) -> float | None:
    return right / samples if samples and right is not None else None


def _columns(values: Mapping[str, Any], place: str = "") -> dict[str, Any]:
    """Return the values of nested mappings by names such as accuracy_last_head; a list stays one value."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        name = f"{place}{key}".replace(".", "_")
        if not name.startswith(NO_COLUMN):
            found |= _columns(value, f"{name}_") if isinstance(value, Mapping) else {name: value}
    return found


def _timings(file: Path) -> dict[tuple[str, int, int], dict[str, Any]]:
    """Return the lines of timings.jsonl by label, seed and round; empty for a record without that file."""
    if not file.is_file() and not file.with_name(f"{file.name}{PACKED}").is_file():
        return {}
    with reading(file):
        *lines, _rest = lines_kept(file).decode("utf-8").split("\n")
        found = [json.loads(line) for line in lines]
        return {(line["label"], line["seed"], line["round"]): line for line in found}
