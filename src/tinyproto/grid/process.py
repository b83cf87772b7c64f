"""A child process, `python -m tinyproto.grid.process`: rebuilds the experiment, then runs a cell or some clients.

A cell's process reports progress. Asked to stop (SIGTERM), it finishes its round and leaves a checkpoint. A worker
answers one client at a time, so the main process knows which client's training ended a worker.
"""

from __future__ import annotations

from pathlib import Path
from typing import IO, Any

import torch
from safetensors.torch import save

from tinyproto.algorithms.base import Derived
from tinyproto.builder import Cell
from tinyproto.config import parse_config
from tinyproto.errors import ConfigError
from tinyproto.experiment import Experiment
from tinyproto.grid.capacity import MEASURED_FROM_ROUND, footprint
from tinyproto.grid.cell import Observer, describe, run_cell
from tinyproto.memory import PeakMemory
from tinyproto.simulation.loop import Loopback
from tinyproto.storage.client_files import stored_from
from tinyproto.subprocesses import Parcel, open_service, receive, send
from tinyproto.tracking.run_folder import RunFolder, record_values
from tinyproto.tracking.summary import RoundResult
from tinyproto.workers.child import failure, received_dataset


def main() -> None:
    """Answer requests until the input ends."""
    reporter = Reporter()
    requests, reporter.answers = open_service(reporter.stop)
    torch.set_num_threads(1)
    worker = Worker(reporter)
    while (request := receive(requests)) is not None:
        try:
            worker.serve(request)
        except KeyboardInterrupt:
            reporter.send("stopped")
        except BrokenPipeError:  # the parent is gone
            return
        except Exception as error:
            reporter.send("failed", **failure(error))


class Reporter(Observer):
    """Sends answers to the parent process; as an observer, it reports what concerns the cell that runs here."""

    def __init__(self) -> None:
        self.answers: IO[bytes] | None = None
        self.device = torch.device("cpu")
        self._stop = False

    def send(self, event: str, *blobs: bytes, **facts: Any) -> None:
        """Send one answer."""
        assert self.answers is not None
        send(self.answers, Parcel({"event": event, **facts}, blobs))

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


class Worker:
    """The experiment, and this process's clients of the current cell."""

    experiment: Experiment
    host: Loopback
    peak_memory: PeakMemory

    def __init__(self, reporter: Reporter) -> None:
        self.reporter = reporter

    def serve(self, request: Parcel) -> None:
        """Handle one request."""
        getattr(self, f"_{request.head['do']}")(request)

    def _load(self, request: Parcel) -> None:
        self.experiment = Experiment(parse_config(request.head["config"], "config.yaml"), received_dataset(request))

    def _run(self, request: Parcel) -> None:
        experiment, reporter, asked = self.experiment, self.reporter, request.head
        if experiment.device != asked["device"]:
            raise ConfigError(f"the run started on {asked['device']}, but this process finds {experiment.device}")
        reporter.device, experiment.shares_device = torch.device(experiment.device), not asked["alone"]
        folder = RunFolder(Path(asked["folder"]))
        if asked["described_at_once"] is not None:
            folder.make()
            folder.write_config(experiment.config.resolved())
            describe(experiment, folder, asked["described_at_once"])
        if reporter.stop_wanted():  # before anything has started
            raise KeyboardInterrupt
        cell = experiment.cells[asked["cell"]]
        reporter.send("finished", result=run_cell(experiment, cell, folder, reporter, experiment.loopback))

    def _begin(self, request: Parcel) -> None:
        if hasattr(self, "host"):
            del self.host  # free the clients of the previous cell first
        self.peak_memory = PeakMemory(torch.device(self.experiment.device))
        asked = request.head
        cell = self.experiment.cells[asked["cell"]]
        self.host = self.experiment.loopback(cell, Path(asked["folder"]), asked["clients"], asked["memory"])
        self.reporter.send("begin")

    def _exchange(self, request: Parcel) -> None:
        for client, frame in zip(request.head["clients"], request.blobs, strict=True):
            for reply in self.host.exchange(request.head["round"], {client: frame}):
                refused = None if reply.refused is None else str(reply.refused)
                self.reporter.send("client", reply.frame, client=reply.client, refused=refused)

    def _report(self, request: Parcel) -> None:  # noqa: ARG002
        self.reporter.send("report", seconds=self.host.take_report().seconds, memory=self.peak_memory.read())

    def _snapshot(self, request: Parcel) -> None:
        tensors = self.host.snapshot(request.head["clients"], request.head["parts"])
        self.reporter.send("snapshot", save(dict(tensors)))

    def _restore(self, request: Parcel) -> None:
        self.host.restore(stored_from(request.head["stored"]))
        self.reporter.send("restore")

    def _save(self, request: Parcel) -> None:  # noqa: ARG002
        self.reporter.send("save", stored=self.host.save())


if __name__ == "__main__":
    main()
