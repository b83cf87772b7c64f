"""The coordinator of a federation: rounds with the clients that are present, a checkpoint after each, a run folder.

The run folder has the files of a simulation (config.yaml, environment.json, rounds.jsonl, timings.jsonl, summary.json,
checkpoint/) and `progress.jsonl`, which lists every event as it happens.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import torch

from tinyproto.algorithms.base import Round
from tinyproto.algorithms.defence import Defence, DefenceName, is_comparable
from tinyproto.builder import Cell, build_defence, resolve_device, summarise_cell
from tinyproto.config.load import has_own_data, parse_config, stated
from tinyproto.core.streams import one_thread
from tinyproto.engine.measure import Meter, Stopwatch
from tinyproto.engine.participation import participant_count, plan_round
from tinyproto.engine.round import play_round
from tinyproto.engine.training import make_trainer
from tinyproto.errors import RunFolderError
from tinyproto.federation.channel import BelowQuorum, FederationChannel, Pace, Transport
from tinyproto.federation.journal import Journal
from tinyproto.federation.terms import ServeFile, agree, offered_terms
from tinyproto.memory import PeakMemory
from tinyproto.storage.checkpoint import load_newest
from tinyproto.tracking.environment import environment
from tinyproto.tracking.recorder import CellRecorder
from tinyproto.tracking.run_folder import SERVE_FILE, RunFolder
from tinyproto.tracking.summary import RoundResult

OWN_DATA = "the clients' own data"
"""The name of a dataset that the coordinator knows nothing about."""


class Coordinator:
    """Runs a federation into its run folder, from the start or from the newest checkpoint."""

    def __init__(self, path: Path, transport: Transport, pace: Pace | None = None) -> None:
        pace = pace or Pace()
        served = ServeFile.read(path)
        self.config = parse_config(served.config, source=str(path / SERVE_FILE))
        self.resume = served.resume
        self.folder = RunFolder(path)
        self.journal = Journal(path / "progress.jsonl")
        model = self.config.model
        self.terms = offered_terms(self.config, served.federation)
        self.setup = agree(self.terms, model.models)
        self.cell = Cell(0, self.config.algorithms[0], self.terms.seed)  # under the label that the config gives it
        self.device = resolve_device(model.train.device)
        self.peak_memory = PeakMemory(torch.device(self.device))
        self.stopwatch = Stopwatch(pace.clock)
        setup = self.setup
        trainer = make_trainer("eager", torch.device(self.device), model.train.precision)
        self.server = setup.server(trainer, self.stopwatch, self._defence())
        self.channel = FederationChannel(
            transport, self.terms, setup.expectation, self.journal, quorum=model.federation.quorum,
            deadline=model.federation.deadline, keys=served.public_keys(), pace=pace,
        )  # fmt: skip

    def _defence(self) -> Defence:
        """Return the defence against clients that are not ours; `auto` guards every algorithm that can be guarded."""
        model, algorithm = self.config.model, self.setup.algorithm
        participants = participant_count(self.terms.clients, model.train.participation)
        otherwise: DefenceName = "guard" if is_comparable(algorithm) else "none"
        return build_defence(self.cell, algorithm, model.robust, otherwise, participants)

    def run(self) -> None:
        """Run the remaining rounds and the closing exchange, and write the summary."""
        if self.folder.read_results():
            self.journal.tell("finished", rounds=self.terms.train.rounds)
            return
        with closing(self._begin()) as recorder:
            self._run(recorder)

    def _run(self, recorder: CellRecorder) -> None:
        total = self.terms.train.rounds
        self.journal.tell("started", algorithm=self.cell.entry.label, clients=self.terms.clients,
                          rounds=total, done=recorder.done)  # fmt: skip
        hellos = Meter()
        self._gather(hellos, everyone=True)
        for number in range(recorder.done + 1, total + 2):
            round_ = self._play(Round(number, total), hellos)
            hellos = Meter()
            derived = recorder.append(round_)
            if not round_.record.closing:
                recorder.checkpoint()
            self._conclude(round_)
            if derived:
                self.journal.tell("derived", round=number, values=dict(derived))
        recorder.finish(self._summary(recorder.rounds()))
        self.journal.tell("finished", rounds=total)

    def _begin(self) -> CellRecorder:
        """Restore state and files from the newest intact checkpoint."""
        folder = self.folder
        checkpoint = load_newest(folder.checkpoints, folder.clients, remedy="start another federation")
        if checkpoint is not None and not self.resume:
            raise RunFolderError(f"{folder.path} holds a federation that is under way; --resume continues it")
        next_round = 1 if checkpoint is None else checkpoint.position.next_round
        recorder = CellRecorder(folder, self._begun_with, self.cell.identity, self.server)
        recorder.resume(
            checkpoint,
            tell=lambda words: self.journal.tell("damaged", reason=words, round=next_round),
            warn=lambda words: self.journal.tell("warned", reason=words),
        )
        if not folder.size("config.yaml"):
            folder.write_config(stated(self.config.resolved()))
        if not folder.size("environment.json"):
            folder.write_json("environment.json", {**environment(self.device, workers=0), "trainer": "eager"})
        return recorder

    @property
    def _begun_with(self) -> dict[str, Any]:
        """Return what must not change between runs; with another token, clients would start again."""
        return {**self.config.resolved(), "token": self.terms.federation}

    def _gather(self, hellos: Meter, *, everyone: bool) -> list[int]:
        """Wait until enough clients are present, and greet those the server does not know yet.

        With `everyone`, wait for all members (on resume: all that took part before), but at most for a round's deadline
        once a quorum is present. Tell each change of what is waited for.
        """
        end = self.stopwatch.now() + self.channel.deadline
        told: tuple[bool, bool] | None = None
        roster = self.channel.roster
        needed = self.channel.needed(len(roster.members))
        expected = set(roster.members).intersection(self.server.infos) or set(roster.members)
        while True:
            self.channel.look_around()
            self._greet(hellos)
            present = [client for client in roster.present if client in self.server.infos]
            left = end - self.stopwatch.now()
            patient, enough = everyone and left > 0, len(present) >= needed
            absent = sorted(expected - set(present)) if patient else []
            if enough and not absent:
                return present
            if told != (patient, enough):
                told = patient, enough
                self.journal.tell("waiting", present=present, missing=absent or list(roster.missing()), needed=needed,
                                  seconds=round(left) if patient else None)  # fmt: skip
            self.channel.wait()

    def _greet(self, hellos: Meter) -> None:
        new = [client for client in self.channel.roster.present if client not in self.server.infos]
        if new:
            refused = self.server.greet(self.channel, new, hellos)
            for client, error in refused.items():
                node = self.channel.roster.nodes.get(client)
                if node is not None:  # else the roster has forgotten it, and it is greeted again
                    self.channel.roster.stalled(node)
                    self.channel.roster.refuse(node, client, str(error))

    def _play(self, round_: Round, hellos: Meter) -> RoundResult:
        """Run one round; below the quorum, ask again the clients that are present then."""
        start = self.stopwatch.now()
        model = self.config.model
        while True:
            present = self._gather(hellos, everyone=False)
            plan = plan_round(
                present, round_, model.train.participation, model.evaluate.every, model.evaluate.clients,
                self.server.streams,
            )  # fmt: skip
            self.journal.tell("round", round=round_.number, of=round_.total, closing=plan.closing or None,
                              participants=list(plan.participants), evaluated=sorted(plan.evaluated))  # fmt: skip
            self.channel.participants = len(plan.participants)
            meter = Meter(dict(hellos.costs))
            try:
                with one_thread():
                    record = play_round(self.server, self.channel, plan, meter)
                break
            except BelowQuorum as error:
                self.journal.tell("again", round=round_.number, reason=str(error))
        seconds = {"total": self.stopwatch.now() - start, **self.stopwatch.take()}
        return RoundResult(record, seconds, sockets=self.channel.sockets.take())

    def _conclude(self, played: RoundResult) -> None:
        record = played.record
        self.journal.tell(
            "concluded", round=record.round, closing=record.closing or None, participants=list(record.participants),
            accuracy=record.accuracy, seconds=played.seconds["total"], ignored=dict(self.channel.ignored) or None,
            refused={str(client): reason for client, reason in record.refused.items()} or None,
            distrusted={str(client): rows for client, rows in record.distrusted.items()} or None,
        )  # fmt: skip

    def _summary(self, rounds: Iterable[RoundResult]) -> dict[str, Any]:
        """Return the entry of summary.json; K_i is known if every client counts training and test samples."""
        terms, infos = self.terms, self.server.infos.values()
        known = terms.prototypes.counted_samples == "all" and len(infos) >= terms.clients
        own = has_own_data(self.config.resolved())
        result = summarise_cell(
            self.cell, self.config.model, self.server, rounds,
            dataset=OWN_DATA if own else self.config.model.data.dataset,
            class_names=terms.classes, num_clients=terms.clients, peak_memory=self.peak_memory.read(),
            classes_held=[info.counted_classes for info in infos] if known else None,
        )  # fmt: skip
        return {
            **result,
            "federation": {
                "joined": len(infos), "num_classes": terms.num_classes, "classes": terms.classes,
                "input_shape": terms.input_shape, "own_data": own,
            },
        }  # fmt: skip
