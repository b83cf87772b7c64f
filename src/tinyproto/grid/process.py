"""A cell's process, `python -m tinyproto.grid.process`: rebuilds the experiment, runs one cell, reports progress.

Asked to stop (SIGTERM), it finishes its round and leaves a checkpoint.
"""

from __future__ import annotations

from pathlib import Path
from typing import IO, Any

import torch

from tinyproto.algorithms.base import Derived
from tinyproto.builder import Cell
from tinyproto.config import parse_config
from tinyproto.errors import ConfigError
from tinyproto.experiment import Experiment
from tinyproto.grid.capacity import MEASURED_FROM_ROUND, footprint
from tinyproto.grid.cell import Observer, describe, run_cell
from tinyproto.tracking.run_folder import RunFolder, record_values
from tinyproto.tracking.summary import RoundResult
from tinyproto.workers.child import Parcel, failure, open_service, receive, received_dataset, send


def main() -> None:
    """Run the cell that is asked for."""
    reporter = Reporter()
    requests, reporter.answers = open_service(reporter.stop)
    request = receive(requests)
    if request is None:
        return
    try:
        _run(request, reporter)
    except KeyboardInterrupt:
        reporter.send("stopped")
    except BrokenPipeError:  # the parent is gone
        return
    except Exception as error:
        reporter.send("failed", **failure(error))


def _run(request: Parcel, reporter: Reporter) -> None:
    experiment = Experiment(parse_config(request.head["config"], "config.yaml"), received_dataset(request))
    if experiment.device != request.head["device"]:
        raise ConfigError(f"the run started on {request.head['device']}, but this process finds {experiment.device}")
    reporter.device = torch.device(experiment.device)
    cell = experiment.cells[request.head["cell"]]
    folder = RunFolder(Path(request.head["folder"]))
    if (at_once := request.head["described_at_once"]) is not None:
        folder.make()
        folder.write_config(experiment.config.resolved())
        describe(experiment, folder, at_once)
    if reporter.stop_wanted():  # before anything has started
        raise KeyboardInterrupt
    reporter.send("finished", result=run_cell(experiment, cell, folder, reporter, experiment.loopback))


class Reporter(Observer):
    """The observer that reports to the parent process what concerns its cell."""

    def __init__(self) -> None:
        self.answers: IO[bytes] | None = None
        self.device = torch.device("cpu")
        self._stop = False

    def send(self, event: str, **facts: Any) -> None:
        """Send one answer."""
        assert self.answers is not None
        send(self.answers, Parcel({"event": event, **facts}))

    def stop(self) -> None:
        """Want a stop from now on."""
        self._stop = True

    def stop_wanted(self) -> bool:
        """Return True once the parent asked for a stop."""
        return self._stop

    def told(self, words: str) -> None:
        """Report a sentence, such as one about a damaged checkpoint."""
        self.send("told", words=words)

    def started(self, cell: Cell, done: int) -> None:  # noqa: ARG002
        """Report that the cell starts or resumes."""
        self.send("started", done=done)

    def played(self, cell: Cell, played: RoundResult) -> None:  # noqa: ARG002
        """Report a round and, once it is meaningful, the memory of this process."""
        record = {"record": record_values(played.record), "seconds": played.seconds, "notes": list(played.notes)}
        self.send("played", **record)
        if played.record.round >= MEASURED_FROM_ROUND:
            self.send("measured", memory=footprint(self.device))

    def derived(self, cell: Cell, values: Derived, round_number: int) -> None:  # noqa: ARG002
        """Report what the algorithm derived."""
        self.send("derived", values=dict(values), round=round_number)


if __name__ == "__main__":
    main()
