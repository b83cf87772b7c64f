"""A cell's process, `python -m tinyproto.grid.process`: rebuilds the experiment, plays one cell, tells how it goes.

Asked to stop (SIGTERM), it finishes its round and leaves a checkpoint.
"""

from __future__ import annotations

from pathlib import Path
from typing import IO, Any

import torch

from tinyproto.algorithms.base import Derived
from tinyproto.config import parse_config
from tinyproto.errors import ConfigError
from tinyproto.experiment import Cell, Experiment
from tinyproto.grid.capacity import SHOWN_BY_ROUND, footprint
from tinyproto.grid.cell import Silent, describe, play_cell
from tinyproto.simulation.loop import PlayedRound
from tinyproto.tracking.run_folder import RunFolder, record_values
from tinyproto.workers.child import Parcel, failure, handed_over, open_service, receive, send


def main() -> None:
    """Play the cell that is asked for."""
    teller = Teller()
    requests, teller.answers = open_service(teller.stop)
    request = receive(requests)
    if request is None:
        return
    try:
        _play(request, teller)
    except KeyboardInterrupt:
        teller.tell({"event": "stopped"})
    except BrokenPipeError:  # nobody is there to be told
        return
    except Exception as error:
        teller.tell({"event": "failed", **failure(error)})


def _play(request: Parcel, teller: Teller) -> None:
    experiment = Experiment(parse_config(request.head["config"], "config.yaml"), handed_over(request))
    if experiment.device != request.head["device"]:
        raise ConfigError(f"the run began on {request.head['device']}, but this process finds {experiment.device}")
    teller.device = torch.device(experiment.device)
    cell = experiment.cells[request.head["cell"]]
    folder = RunFolder(Path(request.head["folder"]))
    if (at_once := request.head["described_at_once"]) is not None:
        folder.make()
        folder.write_config(experiment.config.resolved())
        describe(experiment, folder, at_once)
    if teller.stop_wanted():  # before anything has begun
        raise KeyboardInterrupt
    result = play_cell(experiment, cell, folder, teller, experiment.host)
    teller.finished(cell, result)


class Teller(Silent):
    """The observer that passes on to the parent what concerns its cell; what concerns the run the parent knows."""

    def __init__(self) -> None:
        self.answers: IO[bytes] | None = None
        self.device = torch.device("cpu")
        self._stop = False

    def tell(self, head: dict[str, Any]) -> None:
        """One answer."""
        assert self.answers is not None
        send(self.answers, Parcel(head))

    def stop(self) -> None:
        """From now on a stop is wanted."""
        self._stop = True

    def told(self, words: str) -> None:
        """Pass a sentence on, such as one about a damaged checkpoint."""
        self.tell({"event": "told", "words": words})

    def started(self, cell: Cell, done: int) -> None:  # noqa: ARG002
        """It begins or goes on."""
        self.tell({"event": "started", "done": done})

    def played(self, cell: Cell, played: PlayedRound) -> None:  # noqa: ARG002
        """A round, and what it took in memory."""
        record = {"record": record_values(played.record), "seconds": played.seconds, "notes": list(played.notes)}
        shown = played.record.round >= SHOWN_BY_ROUND
        self.tell({"event": "played", **record, "shown": shown, "memory": footprint(self.device) if shown else None})

    def derived(self, cell: Cell, values: Derived, round_number: int) -> None:  # noqa: ARG002
        """What its algorithm chose."""
        self.tell({"event": "derived", "values": dict(values), "round": round_number})

    def finished(self, cell: Cell, result: dict[str, Any]) -> None:  # noqa: ARG002
        """It is done."""
        self.tell({"event": "finished", "result": result})

    def stop_wanted(self) -> bool:
        """Whether the parent asked for it."""
        return self._stop


if __name__ == "__main__":
    main()
