"""A worker, `python -m tinyproto.workers.process`: rebuilds the experiment and runs the clients assigned to it.

It answers one client at a time, so the main process knows which client's training ended a worker.
"""

from __future__ import annotations

from pathlib import Path
from typing import IO, Any

import torch
from safetensors.torch import save

from tinyproto.config import parse_config
from tinyproto.experiment import Experiment
from tinyproto.memory import PeakMemory
from tinyproto.simulation.loop import Loopback
from tinyproto.storage.client_files import stored_from
from tinyproto.workers.child import Parcel, failure, open_service, receive, received_dataset, send


def main() -> None:
    """Answer requests until the input ends."""
    requests, answers = open_service()
    worker = Worker(answers)
    while (parcel := receive(requests)) is not None:
        try:
            worker.serve(parcel)
        except Exception as error:
            send(answers, Parcel(failure(error)))


class Worker:
    """The experiment, and this worker's clients of the current cell."""

    experiment: Experiment
    host: Loopback

    def __init__(self, answers: IO[bytes]) -> None:
        self.answers = answers
        self.peak_memory = PeakMemory(torch.device("cpu"))

    def serve(self, parcel: Parcel) -> None:
        """Handle one request."""
        getattr(self, f"_{parcel.head['do']}")(parcel)

    def _done(self, request: str, *blobs: bytes, **facts: Any) -> None:
        send(self.answers, Parcel({"done": request, **facts}, blobs))

    def _load(self, parcel: Parcel) -> None:
        self.experiment = Experiment(parse_config(parcel.head["config"], "config.yaml"), received_dataset(parcel))

    def _begin(self, parcel: Parcel) -> None:
        if hasattr(self, "host"):
            del self.host  # free the clients of the previous cell first
        self.peak_memory = PeakMemory(torch.device(self.experiment.device))
        asked = parcel.head
        cell = self.experiment.cells[asked["cell"]]
        self.host = self.experiment.loopback(cell, Path(asked["folder"]), asked["clients"], asked["memory"])
        self._done("begin")

    def _exchange(self, parcel: Parcel) -> None:
        for client, frame in zip(parcel.head["clients"], parcel.blobs, strict=True):
            for reply in self.host.exchange(parcel.head["round"], {client: frame}):
                refused = None if reply.refused is None else str(reply.refused)
                send(self.answers, Parcel({"client": reply.client, "refused": refused}, [reply.frame]))

    def _report(self, parcel: Parcel) -> None:  # noqa: ARG002
        self._done("report", seconds=dict(self.host.take_report().seconds), memory=self.peak_memory.read())

    def _snapshot(self, parcel: Parcel) -> None:
        self._done("snapshot", save(dict(self.host.snapshot(parcel.head["clients"], parcel.head["parts"]))))

    def _restore(self, parcel: Parcel) -> None:
        self.host.restore(stored_from(parcel.head["stored"]))
        self._done("restore")

    def _save(self, parcel: Parcel) -> None:  # noqa: ARG002
        self._done("save", stored=dict(self.host.save()))


if __name__ == "__main__":
    main()
