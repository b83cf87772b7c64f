"""Measure the effect of hostile clients on honest ones, by attack, defence and method.

    python -m benchmarks attacks --seeds 0 1 2 --processes 2

trains the quickstart's federation (20 clients on the digits, 4 of them hostile) once per cell, and writes
results/attacks: a line per cell, and the table that docs/explain/hostile_clients.md shows. Hostile clients train
honestly and send other rows. They claim (a) the classes they hold or (b) all classes.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

import torch
from torch import Tensor

from benchmarks.studies import Parser, run_study
from tinyproto.algorithms.base import Client, ClientInfo, ClientSide, Round
from tinyproto.algorithms.fedproto import PrototypeClient
from tinyproto.config.load import load_config
from tinyproto.core.prototypes import Message, Prototypes
from tinyproto.core.task import FitResult
from tinyproto.engine.round import RoundRecord
from tinyproto.errors import TinyProtoError
from tinyproto.experiment import Experiment
from tinyproto.tracking.summary import MEANT

ROOT = Path(__file__).parents[1]
Claim = Literal["own", "all"]
METHODS = ("fedproto", "fedtgp", "tinyproto_fp", "tinyproto_ft", "tinyproto_sphere")
DEFENCES = ("none", "guard", "median", "trimmed_mean", "krum")
CLAIMS: tuple[Claim, ...] = ("own", "all")
HOSTILE = 4
HUGE_NORM = 9e8


def scaled(factor: float) -> Any:
    """Return an attack that multiplies each row by a factor."""
    return lambda rows, _first, _draws: rows._replace(values=rows.values * factor)


def swapped(rows: Prototypes, _first: Prototypes, _draws: torch.Generator) -> Prototypes:
    """Give each class the row of the next class that is sent."""
    places = rows.present.nonzero()[:, 0]
    values = rows.values.clone()
    values[places] = rows.values[places.roll(1)]
    return rows._replace(values=values)


def stale(_rows: Prototypes, first: Prototypes, _draws: torch.Generator) -> Prototypes:
    """Send the upload of the first round again."""
    return first


def one_point(rows: Prototypes, _first: Prototypes, _draws: torch.Generator) -> Prototypes:
    """Send one row for all classes, the mean of the client's rows."""
    mean = rows.values[rows.present].mean(0)
    return rows._replace(values=mean.expand_as(rows.values) * rows.present.unsqueeze(1))


def huge(rows: Prototypes, _first: Prototypes, draws: torch.Generator) -> Prototypes:
    """Send rows of random direction and norm 9e8."""
    noise = torch.randn(rows.values.shape, generator=draws)
    return rows._replace(values=noise / noise.norm(dim=1, keepdim=True) * HUGE_NORM * rows.present.unsqueeze(1))


ATTACKS: Mapping[str, Any] = {
    "×1e3": scaled(1e3),
    "×1e6": scaled(1e6),
    "sign flipped": scaled(-1.0),
    "classes swapped": swapped,
    "stale": stale,
    "one point": one_point,
    "norm 9e8": huge,
}
"""Map the rows of an upload, and those of the client's first upload, to the rows to send instead."""

LIES: Mapping[str, float] = {"hello: 2³¹−1 samples": 2**31 - 1}
"""Numbers of samples that one hostile client claims; its uploads are honest."""


@dataclass(frozen=True)
class Case:
    """One training."""

    method: str
    attack: str | None
    claim: Claim
    defence: str
    seed: int
    rounds: int = 30
    tolerance: float = 3.0


class HostileClients:
    """An algorithm's client side in which some clients are hostile."""

    def __init__(self, side: ClientSide, hostile: frozenset[int], case: Case) -> None:
        self._side = side
        self._hostile = hostile
        self._case = case
        self._first: dict[int, Prototypes] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._side, name)

    def update(self, client: Client, result: FitResult, round_: Round) -> Message:
        """Return the honest upload, or for a hostile client the attack's version of it."""
        message = self._side.update(client, result, round_)
        attack = ATTACKS.get(self._case.attack or "")
        if client.id not in self._hostile or attack is None or message.rows is None:
            return message
        rows = self._of_all_classes(client) if self._case.claim == "all" else message.rows
        first = self._first.setdefault(client.id, rows)
        draws = torch.Generator().manual_seed(round_.number * 1000 + client.id)
        return replace(message, rows=attack(rows.to("cpu"), first.to("cpu"), draws))

    def _of_all_classes(self, client: Client) -> Prototypes:
        """Make an upload of all K classes: global prototypes stand in for classes that the client does not hold."""
        side = self._side
        assert isinstance(side, PrototypeClient)
        held = client.local.present.unsqueeze(1)
        known = client.received if client.received is not None else client.local
        typical = client.local.values[client.local.present].mean(0)
        others = torch.where(known.present.unsqueeze(1), known.values, typical)
        values = torch.where(held, client.local.values, others)
        counts: Tensor = client.class_counts.clamp_min(max(int(client.class_counts.float().mean()), 1))
        return side.upload(Prototypes(values, torch.ones_like(client.local.present)), counts)


def train(case: Case) -> dict[str, Any]:
    """Train one case; return the accuracy of its honest clients, or why it ended."""
    torch.set_num_threads(1)
    settings = [
        f"train.rounds={case.rounds}", f"robust.defence={case.defence}", f"robust.tolerance={case.tolerance}",
        f"seeds=[{case.seed}]", f"algorithms=[{case.method}]", "train.workers=1",
        "partition.alpha=0.1",
    ]  # fmt: skip
    experiment = Experiment(load_config(ROOT / "configs/quickstart.yaml", settings))
    (cell,) = experiment.cells
    lies = case.attack in LIES
    draws = torch.Generator().manual_seed(case.seed)
    order = torch.randperm(experiment.data.num_clients, generator=draws).tolist()
    hostile = frozenset(order[: 1 if lies else HOSTILE])
    host = experiment.loopback(cell)
    host.clients.side = HostileClients(host.clients.side, hostile, case)
    honest_info = host.store.info
    classes = experiment.images.num_classes

    def info(client: int) -> ClientInfo:
        """Return a client's hello, false for a hostile one."""
        said = honest_info(client)
        if client not in hostile:
            return said
        if lies and case.attack is not None:
            size = int(LIES[case.attack])
            return replace(said, train_samples=size, counted_samples=size)
        if case.claim == "all" and case.attack is not None:
            return replace(said, counted_classes=classes, counted_samples=max(said.counted_samples, classes))
        return said

    host.store.info = info  # type: ignore[method-assign]
    try:
        records = [played.record for played in experiment.simulation(cell, host).rounds()]
    except TinyProtoError as error:
        return {**asdict(case), "ended": str(error)}
    rule = "head" if case.method == "local" else "global"
    curve = [_honest(record, hostile, rule) for record in records[1:]]
    set_aside = sum(sum(record.distrusted.values()) for record in records)
    return {
        **asdict(case),
        "honest": fmean(curve[-MEANT:]),
        "hostile": sorted(hostile),
        "rows_set_aside": set_aside,
        "refused": sum(len(record.refused) for record in records),
    }


def _honest(record: RoundRecord, hostile: frozenset[int], rule: str) -> float:
    honest = [client for number, client in record.clients.items() if number not in hostile and client.test_samples]
    return sum(client.correct[rule] or 0 for client in honest) / sum(client.test_samples or 0 for client in honest)


def cases(seeds: Sequence[int], rounds: int) -> Iterable[Case]:
    """Yield the table's cells: all defences against claims of held classes, two against claims of all."""
    for seed in seeds:
        for method in METHODS:
            for defence in DEFENCES:
                if method == "tinyproto_sphere" and defence not in ("none", "guard"):
                    continue
                yield Case(method, None, "own", defence, seed, rounds)
                yield from (Case(method, attack, "own", defence, seed, rounds) for attack in ATTACKS)
            for defence in ("none", "guard"):
                yield from (Case(method, attack, "all", defence, seed, rounds) for attack in ATTACKS)
            yield from (Case(method, lie, "own", "none", seed, rounds) for lie in LIES)


def table(results: Sequence[Mapping[str, Any]]) -> str:
    """Format the accuracy of honest clients in %, mean over seeds, as Markdown; a failed run counts as 0."""
    lines = []
    for method in METHODS:
        lines += [
            f"**{method}**",
            "",
            f"| attack | claims | {' | '.join(DEFENCES)} |",
            f"|---|---|{'---|' * len(DEFENCES)}",
        ]
        attacks: list[tuple[str | None, Claim]] = [(None, "own")]
        attacks += [(attack, claim) for claim in CLAIMS for attack in ATTACKS] + [(lie, "own") for lie in LIES]
        for attack, claim in attacks:
            found = [
                [
                    100 * result.get("honest", 0.0)
                    for result in results
                    if (result["method"], result["attack"], result["claim"], result["defence"])
                    == (method, attack, claim, defence)
                ]
                for defence in DEFENCES
            ]
            most = max(map(len, found))
            words = [_words(values, most) for values in found]
            claims = "–" if attack is None else {"own": "(a) its own", "all": "(b) all"}[claim]
            if any(found):
                lines.append(f"| {attack or 'no attack'} | {claims} | {' | '.join(words)} |")
        lines.append("")
    return "\n".join(lines)


def _words(values: Sequence[float], seeds: int) -> str:
    """Format the mean, with the number of seeds if other cells of the row have more."""
    if not values:
        return "–"
    return f"{fmean(values):.1f}" + (f" ({len(values)})" if len(values) < seeds else "")


def main(arguments: Sequence[str]) -> None:
    """Train all cells, and write the records and the table."""
    parser = Parser("attacks", __doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--methods", nargs="+", default=METHODS, choices=METHODS)
    parser.add_argument("--defences", nargs="+", default=DEFENCES, choices=DEFENCES)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--out", type=Path, default=ROOT / "results/attacks")
    asked = parser.parse_args(arguments)
    wanted = [
        case
        for case in cases(asked.seeds, asked.rounds)
        if case.method in asked.methods and case.defence in asked.defences
    ]
    run_study(wanted, train, table, asked.out, asked.processes)
