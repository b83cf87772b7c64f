"""A worker, `python -m tinyproto.workers.process`: rebuilds the experiment and runs the clients it is told to.

It answers one client at a time, so that the main process knows whose training a worker died of.
"""

from __future__ import annotations

from pathlib import Path
from typing import IO

import torch

from tinyproto.config import parse_config
from tinyproto.experiment import Experiment
from tinyproto.memory import PeakMemory
from tinyproto.simulation.loop import Loopback
from tinyproto.storage.client_files import stored_from
from tinyproto.workers.child import Parcel, failure, open_service, pack_tensors, receive, received_dataset, send


def main() -> None:
    """Serve until the input ends."""
    requests, answers = open_service()
    worker = Worker(answers)
    while (parcel := receive(requests)) is not None:
        try:
            worker.serve(parcel)
        except Exception as error:
            send(answers, Parcel(failure(error)))


class Worker:
    """What a worker knows: the experiment, and the clients of the cell under way."""

    def __init__(self, answers: IO[bytes]) -> None:
        self.answers = answers
        self.experiment: Experiment | None = None
        self.host: Loopback | None = None
        self.peak_memory = PeakMemory(torch.device("cpu"))

    def serve(self, parcel: Parcel) -> None:
        """Do one thing."""
        getattr(self, f"_{parcel.head['do']}")(parcel)

    def _load(self, parcel: Parcel) -> None:
        self.experiment = Experiment(parse_config(parcel.head["config"], "config.yaml"), received_dataset(parcel))
        send(self.answers, Parcel({"done": "load"}))

    def _begin(self, parcel: Parcel) -> None:
        assert self.experiment is not None
        self.host = None  # the clients of the cell before go first
        self.peak_memory = PeakMemory(torch.device(self.experiment.device))
        asked = parcel.head
        self.host = self.experiment.loopback(
            self.experiment.cells[asked["cell"]],
            only=asked["clients"],
            folder=Path(asked["folder"]),
            memory=asked["memory"],
        )
        send(self.answers, Parcel({"done": "begin"}))

    def _exchange(self, parcel: Parcel) -> None:
        assert self.host is not None
        for client, frame in zip(parcel.head["clients"], parcel.blobs, strict=True):
            for reply in self.host.exchange(parcel.head["round"], {client: frame}):
                refused = None if reply.refused is None else str(reply.refused)
                send(self.answers, Parcel({"client": reply.client, "refused": refused}, [reply.frame]))
        report = {"seconds": dict(self.host.take_seconds()), "memory": self.peak_memory.read()}
        send(self.answers, Parcel({"done": "exchange", **report}))

    def _snapshot(self, parcel: Parcel) -> None:
        assert self.host is not None
        tensors = dict(self.host.snapshot(parcel.head["clients"], parcel.head["parts"]))
        send(self.answers, Parcel({"done": "snapshot"}, [pack_tensors(tensors)]))

    def _restore(self, parcel: Parcel) -> None:
        assert self.host is not None
        self.host.restore(stored_from(parcel.head["stored"]))
        send(self.answers, Parcel({"done": "restore"}))

    def _save(self, parcel: Parcel) -> None:  # noqa: ARG002
        assert self.host is not None
        send(self.answers, Parcel({"done": "save", "stored": dict(self.host.save())}))


if __name__ == "__main__":
    main()
