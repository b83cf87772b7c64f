"""Records a cell into a run folder, whatever runs it: a simulation, or a federation whose clients are elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

from tinyproto.algorithms.base import Derived
from tinyproto.config.load import completed, differences
from tinyproto.config.schema import neutral_keys
from tinyproto.engine.server import ServerRuntime
from tinyproto.errors import CheckpointError
from tinyproto.storage.checkpoint import Checkpoint, Position, restore_server, save, set_aside, sweep
from tinyproto.storage.client_files import Stored
from tinyproto.tracking.run_folder import RunFolder
from tinyproto.tracking.summary import RoundResult
from tinyproto.tracking.trackers import Trackers, Warn, open_trackers


class StoredClients(Protocol):
    """Clients whose state a checkpoint includes."""

    def save(self) -> Mapping[int, Stored]:
        """Write all that changed; return the places of the clients that ever changed."""
        ...

    def restore(self, stored: Mapping[int, Stored]) -> None:
        """Set the clients to the state they had when they were saved."""
        ...


class CellRecorder:
    """Writes one cell into a folder: its rounds as they end, checkpoints when they are due, at last its summary."""

    def __init__(
        self, folder: RunFolder, config: Mapping[str, Any], identity: Mapping[str, Any], server: ServerRuntime,
        clients: StoredClients | None = None, every_seconds: float = 0.0,
    ) -> None:  # fmt: skip
        self.done = 0  # rounds in the files
        self._folder = folder
        self._config = config
        self._identity = dict(identity)
        self._server = server
        self._clients = clients  # None: they keep their own state
        self._every = every_seconds
        self._last = time.monotonic()
        self._first = 1
        self._trackers = Trackers()  # opened by `resume`

    def resume(self, checkpoint: Checkpoint | None, tell: Callable[[str], None], warn: Warn | None = None) -> None:
        """Put files, server and clients where the checkpoint was taken; without one, start from round 1.

        `tell` is told about damaged checkpoints, `warn` about trackers that fail; by default it is the same function.
        """
        accept_checkpoint(self._folder, checkpoint, self._config, tell)
        position = Position.beginning(self._config) if checkpoint is None else checkpoint.position
        self._folder.cut("rounds.jsonl", position.rounds_bytes)
        self._folder.cut("timings.jsonl", position.timings_bytes)
        if checkpoint is not None:
            restore_server(self._server, checkpoint)
            if self._clients is not None:
                self._clients.restore(checkpoint.clients)
        recorded = () if checkpoint is None else self._folder.read_rounds(self._identity)
        self._trackers = open_trackers(self._folder, self._config, self._identity, warn or tell)
        self.done = 0
        for result in recorded:
            self._trackers.log(result)
            self.done += 1
        self._first = self.done + 1

    def rounds(self) -> Iterator[RoundResult]:
        """Yield all rounds of the cell from the files; they are not kept in memory."""
        return self._folder.read_rounds(self._identity)

    def append(self, result: RoundResult) -> Derived:
        """Append one round to the files; return what the algorithm derived, if this is the first round run now."""
        self._folder.append_round(self._identity, result)
        self.done += 1
        self._trackers.log(result)
        record = result.record
        return self._server.derived(record.participants) if record.round == self._first and record.participants else {}

    def checkpoint(self, *, now: bool = False) -> None:
        """Save a checkpoint if enough seconds have passed since the last one, or now."""
        if now or time.monotonic() - self._last >= self._every:
            save_checkpoint(
                self._folder, self._config, next_round=self.done + 1, server=self._server, clients=self._clients
            )
            self._last = time.monotonic()

    def finish(self, result: Mapping[str, Any]) -> None:
        """Write summary.json, which marks the cell as completed."""
        self._trackers.finish(result)
        self._folder.write_results([dict(result)])

    def close(self) -> None:
        """Close the trackers of a cell that was not completed; no-op after `finish`."""
        self._trackers.close()


def accept_checkpoint(
    folder: RunFolder, checkpoint: Checkpoint | None, config: Mapping[str, Any], tell: Callable[[str], None]
) -> None:
    """Check that a run resumes with the config it started with, and rename damaged checkpoints that are newer."""
    if checkpoint is None:
        return
    check_same_config(checkpoint.position.config, config)
    with folder.writing("checkpoint"):
        for words in set_aside(checkpoint):
            tell(words)


def save_checkpoint(
    folder: RunFolder, config: Mapping[str, Any], cells: int = 0, next_round: int = 1,
    server: ServerRuntime | None = None, clients: StoredClients | None = None,
) -> None:  # fmt: skip
    """Write the present position: `cells` cells completed, the next one about to run `next_round`."""
    position = Position(cells, next_round, folder.size("rounds.jsonl"), folder.size("timings.jsonl"), config)
    with folder.writing("checkpoint"):
        save(folder.checkpoints, position, server, None if clients is None else clients.save())
        sweep(folder.checkpoints, folder.clients)


def check_same_config(then: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raise CheckpointError if a run would resume with another config, neutral keys aside."""
    changed = differences([completed(then), completed(now)])
    changes = [
        f"{key}: {old!r} → {new!r}"
        for key, (old, new) in changed.items()
        if key.partition("[")[0] not in neutral_keys(on_resume=True)
    ]
    if changes:
        raise CheckpointError(
            f"config.yaml was changed since the run started ({', '.join(changes)}); "
            "change it back, or start another run"
        )
