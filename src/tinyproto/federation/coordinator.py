"""The coordinator of a federation: rounds with the clients that are present, a checkpoint after each, a run folder.

The run folder has the files of a simulation (config.yaml, environment.json, rounds.jsonl, timings.jsonl, summary.json,
checkpoint/) and `progress.jsonl`, which lists every event as it happens.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from tinyproto.algorithms.base import Round
from tinyproto.algorithms.defence import Defence
from tinyproto.config.load import completed, parse_config
from tinyproto.core.streams import Streams
from tinyproto.core.threads import one_thread
from tinyproto.engine.round import first_derived, last_derived, play_round
from tinyproto.engine.server import ServerRuntime
from tinyproto.engine.stopwatch import Stopwatch
from tinyproto.engine.training import make_trainer
from tinyproto.errors import RunFolderError
from tinyproto.experiment import check_defence, resolve_device
from tinyproto.federation.channel import BelowQuorum, FederationChannel, Pace, Transport
from tinyproto.federation.journal import Journal
from tinyproto.federation.terms import ServeFile, agree, offered_terms
from tinyproto.simulation.loop import PlayedRound
from tinyproto.simulation.memory import PeakMemory
from tinyproto.simulation.participation import participant_count, plan_round
from tinyproto.storage.checkpoint import load_newest, restore, set_aside
from tinyproto.storage.client_files import Stored
from tinyproto.tracking.checkpoints import Checkpoints, check_same_config
from tinyproto.tracking.environment import environment
from tinyproto.tracking.run_folder import SERVE_FILE, RunFolder
from tinyproto.tracking.summary import summarise
from tinyproto.wire.meter import Meter


class RemoteClients:
    """The store of client states for a checkpoint: empty, since each client keeps its own."""

    def save(self) -> Mapping[int, Stored]:
        """Return nothing to save."""
        return {}

    def restore(self, stored: Mapping[int, Stored]) -> None:
        """Do nothing."""


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
        self.agreement = agree(self.terms, model.models)
        self.device = resolve_device(model.train.device)
        self.peak_memory = PeakMemory(torch.device(self.device))
        self.streams = Streams(self.terms.seed)
        self.stopwatch = Stopwatch(pace.clock)
        self.server = ServerRuntime(
            self.agreement.algorithm, make_trainer("eager", torch.device(self.device), model.train.precision),
            self.streams, self.agreement.expectation, self.stopwatch, self._defence(),
        )  # fmt: skip
        self.host = RemoteClients()
        self.channel = FederationChannel(
            transport, self.terms, self.agreement.expectation, self.journal, quorum=model.federation.quorum,
            deadline=model.federation.deadline, keys=served.public_keys(), pace=pace,
        )  # fmt: skip
        self.identity = {
            "algorithm": self.agreement.algorithm.name,
            "label": self.config.algorithms[0].label,
            "seed": self.terms.seed,
        }

    def _defence(self) -> Defence:
        """Return the defence against clients that are not ours; `auto` guards every algorithm that can be guarded."""
        algorithm, robust = self.agreement.algorithm, self.config.model.robust
        defence = robust.settings(otherwise="none" if algorithm.tensor_parts else "guard")
        participants = participant_count(self.terms.clients, self.config.model.train.participation)
        check_defence(self.config.algorithms[0], algorithm, defence, participants)
        return defence

    def run(self) -> None:
        """Run the remaining rounds and the closing exchange, and write the summary."""
        if self.folder.read_results():
            self.journal.tell("finished", rounds=self.terms.train.rounds)
            return
        checkpoints = Checkpoints(self.folder, self._begun_with, every_seconds=0.0)
        played = self._begin()
        total = self.terms.train.rounds
        self.journal.tell("started", algorithm=self.identity["label"], clients=self.terms.clients, rounds=total,
                          done=len(played))  # fmt: skip
        hellos = Meter()
        self._gather(hellos, everyone=True)
        first = len(played) + 1
        for number in range(first, total + 2):
            round_ = self._play(Round(number, total), hellos)
            hellos = Meter()
            played.append(round_.for_summary())
            self.folder.append_round(self.identity, round_)
            if not round_.record.closing:
                checkpoints.save(0, number + 1, self)
            self._conclude(round_)
            if derived := first_derived(self.server, round_.record, first):
                self.journal.tell("derived", round=number, values=dict(derived))
        self._finish(played)

    def _begin(self) -> list[PlayedRound]:
        """Restore state and files from the newest intact checkpoint; return the rounds completed until then."""
        folder = self.folder
        checkpoint = load_newest(folder.checkpoints, folder.clients, remedy="start another federation")
        if checkpoint is not None and not self.resume:
            raise RunFolderError(f"{folder.path} holds a federation that is under way; --resume continues it")
        if checkpoint is not None:
            check_same_config(completed(checkpoint.position.config), completed(self._begun_with))
            with folder.writing("checkpoint"):
                for words in set_aside(checkpoint):
                    self.journal.tell("damaged", reason=words, round=checkpoint.position.next_round)
        if not folder.size("config.yaml"):
            folder.write_config(self.config.resolved())
        if not folder.size("environment.json"):
            folder.write_json("environment.json", {**environment(self.device, workers=0), "trainer": "eager"})
        for name in ("rounds.jsonl", "timings.jsonl"):
            length = 0 if checkpoint is None else getattr(checkpoint.position, f"{name.partition('.')[0]}_bytes")
            folder.cut(name, length)
        if checkpoint is None:
            return []
        restore(self, checkpoint)
        return [round_.for_summary() for round_ in folder.read_rounds(self.identity)]

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
            refused = self.server.greet(self.channel, new, hellos, tolerant=True)
            self.channel.tell_refused(refused)
            for client, error in refused.items():
                node = self.channel.roster.nodes.get(client)
                if node is not None:  # else the roster has forgotten it, and it is greeted again
                    self.channel.roster.stalled(node)
                    self.channel.roster.refuse(node, client, str(error))

    def _play(self, round_: Round, hellos: Meter) -> PlayedRound:
        """Run one round; below the quorum, ask again the clients that are present then."""
        start = self.stopwatch.now()
        model = self.config.model
        while True:
            present = self._gather(hellos, everyone=False)
            plan = plan_round(
                present, round_, model.train.participation, model.evaluate.every, model.evaluate.clients, self.streams
            )
            self.journal.tell("round", round=round_.number, of=round_.total, closing=plan.closing or None,
                              participants=list(plan.participants), evaluated=sorted(plan.evaluated))  # fmt: skip
            self.channel.participants = len(plan.participants)
            meter = Meter(dict(hellos.costs))
            try:
                with one_thread():
                    record = play_round(self.server, self.channel, plan, meter, tolerant=True)
                break
            except BelowQuorum as error:
                self.journal.tell("again", round=round_.number, reason=str(error))
        seconds = {"total": self.stopwatch.now() - start, **self.stopwatch.take()}
        return PlayedRound(record, seconds, sockets=self.channel.sockets.take())

    def _conclude(self, played: PlayedRound) -> None:
        record = played.record
        self.journal.tell(
            "concluded", round=record.round, closing=record.closing or None, participants=list(record.participants),
            accuracy=record.accuracy, seconds=played.seconds["total"], ignored=dict(self.channel.ignored) or None,
            refused={str(client): reason for client, reason in record.refused.items()} or None,
            distrusted={str(client): rows for client, rows in record.distrusted.items()} or None,
        )  # fmt: skip

    def _finish(self, played: list[PlayedRound]) -> None:
        model = self.config.model
        identity = {
            **self.identity,
            "dataset": model.data.dataset,
            "rounds": self.terms.train.rounds,
            "num_clients": self.terms.clients,
            "preset": model.preset,
        }
        derived = last_derived(self.server, [round_.record for round_ in played])
        self.folder.write_results([summarise(played, identity, self._formula(), self.peak_memory.read(), derived)])
        self.journal.tell("finished", rounds=self.terms.train.rounds)

    def _formula(self) -> int | None:
        """Return the paper's Table 2 parameters, if every client has sent its K_i over training and test samples."""
        infos = self.server.infos.values()
        if self.terms.prototypes.counted_samples != "all" or len(infos) < self.terms.clients:
            return None
        return self.agreement.algorithm.table2_parameters([info.counted_classes for info in infos])
