"""What scaling hides: how well a server that only reads its mail can tell its clients' class sizes n_ij.

python examples/what_scaling_hides.py [--config CONFIG] [KEY=VALUE ...] [--json]

Clients upload n_ij · prototype, the masks are known to both sides, and a hello tells the server n_i. The script plays
the algorithms of a config, decodes every frame that passes the channel as the server does, guesses n_ij by six rules
that see nothing else, and holds the guesses to the truth. docs/explain/privacy.md says what came of it.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tinyproto.builder import Cell
from tinyproto.config import load_config
from tinyproto.core.prototypes import Prototypes
from tinyproto.engine.server import Reply
from tinyproto.errors import ConfigError, TinyProtoError
from tinyproto.experiment import Experiment
from tinyproto.simulation.loop import Loopback
from tinyproto.tracking.environment import environment
from tinyproto.wire.frame import Kind
from tinyproto.wire.validate import open_frame

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

CONFIG = Path(__file__).parents[1] / "configs" / "what_scaling_hides.yaml"
NEAR = 1.5
"""A guess is near where it is off by no more than this factor."""


@dataclass(frozen=True)
class Mail:
    """One round as the server sees it: what it sent, what came back, and what it knew of the clients before."""

    uploads: Floats  # (M, K, w), zero where a client sent no row
    present: Bools  # (M, K): which rows came
    sent: Floats | None  # (K, w), None before the server had anything to send
    samples: Floats  # (M,): n_i, from the hello
    networks: NDArray[np.int64]  # (M,): equal where two clients have the same network

    @property
    def lengths(self) -> Floats:
        """‖n_ij ĉ_ij‖, (M, K)."""
        length: Floats = np.linalg.norm(self.uploads, axis=2)
        return length

    def sizes(self, weights: Floats) -> Floats:
        """n_i shared out by weights (M, K); who sent a row has at least one sample of its class."""
        weights = np.where(self.present, np.maximum(weights, 1e-12), 0.0)
        total = np.maximum(weights.sum(1, keepdims=True), 1e-12)
        return np.where(self.present, np.maximum(self.samples[:, None] * weights / total, 1.0), 0.0)


Rule = Callable[[Mail], Floats | None]
"""Guesses n_ij, (M, K), zero where nothing was sent; None where this round's mail is not enough."""


def alike(mail: Mail) -> Floats:
    """All classes of a client are equally large, n_i / K_i: what the server knows without looking at a value."""
    return mail.sizes(np.ones(mail.present.shape))


def by_length(mail: Mail) -> Floats:
    """By ‖u_ij‖, as if a client's unscaled prototypes were equally long."""
    return mail.sizes(mail.lengths)


def by_class_factor(mail: Mail) -> Floats:
    """By ‖u_ij‖ · v_j, where v_j makes up for classes whose prototypes are longer than others.

    With one length for all prototypes of a class and network, n_i = a Σ_j v_j ‖u_ij‖ is one linear equation per client;
    a comes from all clients of a network together, v from least squares, drawn towards 1 as strongly as one client is.
    """
    lengths = np.where(mail.present, mail.lengths, 0.0)
    equations = lengths.copy()
    for network in np.unique(mail.networks):
        same = mail.networks == network
        equations[same] *= mail.samples[same].sum() / max(lengths[same].sum(), 1e-12)
    equations /= np.maximum(mail.samples, 1.0)[:, None]
    known = equations[mail.present.any(1)]
    classes = known.shape[1]
    factors = np.linalg.solve(known.T @ known + np.eye(classes), known.sum(0) + np.ones(classes))
    return mail.sizes(lengths * np.clip(factors, 0.1, 10.0))


def by_sent(mail: Mail) -> Floats | None:
    """By the part of u_ij along the global prototype that clients were just pulled towards, in its lengths."""
    if mail.sent is None:
        return None
    along = np.einsum("ijw,jw->ij", mail.uploads, mail.sent)
    return mail.sizes(along / np.maximum((mail.sent**2).sum(1), 1e-12))


def by_totals(mail: Mail) -> Floats:
    """By ‖u_ij‖ and the outside knowledge that over all clients the classes are equally frequent.

    Rows are scaled to n_i and columns to Σ n_i / K in turn, which makes up for any length per client and per class.
    """
    sizes = np.where(mail.present, np.maximum(mail.lengths, 1e-12), 0.0)
    total = mail.samples[mail.present.any(1)].sum() / max(int(mail.present.any(0).sum()), 1)
    for _ in range(200):
        sizes *= total / np.maximum(sizes.sum(0), 1e-12)
        sizes *= (mail.samples / np.maximum(sizes.sum(1), 1e-12))[:, None]
    return mail.sizes(sizes)


def by_direction(mail: Mail) -> Floats:
    """By how little u_ij points away from the sum of its class, whatever its length: means of few samples stray."""
    sums = mail.uploads.sum(0)
    lengths = np.maximum(mail.lengths * np.linalg.norm(sums, axis=1), 1e-12)
    cosine = np.einsum("ijw,jw->ij", mail.uploads, sums) / lengths
    return mail.sizes(1.0 / np.maximum(1.0 - cosine, 0.01))


RULES: Mapping[str, Rule] = {
    "alike": alike,
    "length": by_length,
    "class factor": by_class_factor,
    "sent": by_sent,
    "totals": by_totals,
    "direction": by_direction,
}


def over_rounds(rule: Rule, mails: Sequence[Mail]) -> Floats | None:
    """A rule's guesses of several rounds as one: their geometric mean, over the rounds in which a row came."""
    guesses = [(guess, mail.present) for mail in mails if (guess := rule(mail)) is not None]
    if not guesses:
        return None
    seen = np.sum([present for _, present in guesses], axis=0)
    logs = np.sum([np.log(np.where(present, guess, 1.0)) for guess, present in guesses], axis=0)
    return np.where(seen > 0, np.exp(logs / np.maximum(seen, 1)), 0.0)


def ranks(values: Floats) -> Floats:
    """Places in ascending order; equal values share the mean of theirs."""
    below = (values[:, None] > values[None, :]).sum(1)
    equal = (values[:, None] == values[None, :]).sum(1)
    places: Floats = below + (equal - 1) / 2.0
    return places


def rank_correlation(guess: Floats, truth: Floats) -> float | None:
    """Spearman's; 0 for a guess that tells nothing apart, None where there is nothing to tell apart."""
    left, right = ranks(guess) - ranks(guess).mean(), ranks(truth) - ranks(truth).mean()
    if not right.any():
        return None
    return float(left @ right / np.sqrt((left @ left) * (right @ right))) if left.any() else 0.0


def score(guess: Floats, truth: Floats, present: Bools) -> dict[str, float | None]:
    """How good guesses (M, K) are, over the clients that sent at least two classes.

    `correlation`: Spearman's within a client, mean over clients with three classes or more. `error`: |guess − n| / n,
    median within a client, median over clients. `near`: share of pairs off by a factor of at most 1.5. `majority`:
    share of clients whose largest class was found; a tie counts in part.
    """
    correlations, errors, near, majority = [], [], [], []
    for row, true_row, sent in zip(guess, truth, present, strict=True):
        if sent.sum() < 2:
            continue
        told, true = row[sent], true_row[sent]
        correlation = rank_correlation(told, true) if len(true) > 2 else None
        correlations += [] if correlation is None else [correlation]
        errors.append(float(np.median(np.abs(told - true) / true)))
        near += (np.maximum(told / true, true / told) <= NEAR).tolist()
        largest = np.isclose(told, told.max())
        majority.append(float((largest & (true == true.max())).sum() / largest.sum()))
    return {
        "correlation": mean(correlations),
        "error": float(np.median(errors)) if errors else None,
        "near": mean(near),
        "majority": mean(majority),
    }


def mean(values: Sequence[float | None]) -> float | None:
    """Of those there are."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


class Tapped(Loopback):
    """The channel of a simulation, with a copy of all rows that pass it, decoded as either end decodes them."""

    def __init__(self, clients: Loopback) -> None:
        super().__init__(clients.clients, clients.store)
        self.expectation = clients.clients.expectation
        self.sent: dict[int, Prototypes | None] = {}  # by round
        self.received: dict[int, dict[int, Prototypes]] = {}  # by round and client

    def exchange(self, round_number: int, frames: Mapping[int, bytes]) -> Iterable[Reply]:
        """Deliver, return the answers, remember the rows of those who trained."""
        for reply in super().exchange(round_number, frames):
            kinds = (Kind.HELLO.answer, Kind.EVALUATE.answer, Kind.UPDATE)
            answer = open_frame(reply.frame, self.expectation, reply.client, round_number, kinds)
            if answer.header.kind is Kind.UPDATE and answer.message.rows is not None:
                if round_number not in self.sent:  # which is the same for all clients
                    down = open_frame(frames[reply.client], self.expectation, reply.client, round_number, (Kind.TRAIN,))
                    self.sent[round_number] = down.message.rows
                self.received.setdefault(round_number, {})[reply.client] = answer.message.rows
            yield reply

    def mails(self, samples: Mapping[int, int], networks: int) -> Iterator[Mail]:
        """Every round of training, given n_i by client and the number of networks."""
        for number, received in sorted(self.received.items()):
            rows = next(iter(received.values()))
            uploads = np.zeros((len(samples), *rows.values.shape))
            present = np.zeros(uploads.shape[:2], bool)
            for client, upload in received.items():
                uploads[client], present[client] = upload.values.numpy(), upload.present.numpy()
            sent = self.sent[number]
            known = None if sent is None or not bool(sent.present.any()) else sent.values.numpy().astype(float)
            sizes = np.array([samples[client] for client in range(len(samples))], float)
            yield Mail(uploads, present, known, sizes, np.arange(len(samples)) % networks)


def watch(experiment: Experiment, cell: Cell) -> tuple[list[Mail], dict[str, float | None]]:
    """Play a cell; what its server saw, and the accuracy it ended with."""
    host = Tapped(experiment.loopback(cell))
    if host.expectation.row_width is None:
        raise ConfigError(f"algorithms: {cell.entry.label} uploads no rows by class, so there is nothing to look at")
    simulation = experiment.simulation(cell, host)
    *_, last = simulation.rounds()
    samples = {client: info.counted_samples for client, info in simulation.server.infos.items()}
    return list(host.mails(samples, len(experiment.config.model.models))), dict(last.record.accuracy)


def look(experiment: Experiment, cell: Cell) -> dict[str, Any]:
    """One cell: scores by rule and time, and the guesses themselves."""
    mails, accuracy = watch(experiment, cell)
    truth = experiment.data.counted(experiment.config.model.prototypes.counted_samples).numpy().astype(float)
    times = {"first": mails[:1], "last": mails[-1:], "all": mails}
    scores: dict[str, dict[str, Any]] = {}
    guesses: dict[str, dict[str, Any]] = {}
    for name, rule in RULES.items():
        for time, chosen in times.items():
            guess = over_rounds(rule, chosen)
            present = np.any([mail.present for mail in chosen], axis=0)
            scores.setdefault(name, {})[time] = None if guess is None else score(guess, truth, present)
            told = None if guess is None else [float(f"{value:.3g}") for value in guess[truth > 0]]
            guesses.setdefault(name, {})[time] = told
    return {**cell.identity, "accuracy": accuracy, "scores": scores, "guesses": guesses}


def measure(experiment: Experiment) -> dict[str, Any]:
    """All cells of a config: what a record is."""
    truth = experiment.data.counted(experiment.config.model.prototypes.counted_samples).numpy()
    held = (truth > 0).sum(1)
    return {
        "config": experiment.config.resolved(),
        "environment": environment(experiment.device, workers=1),
        "dataset": experiment.images.name,
        "clients": len(truth),
        "clients_of_one_class": int((held == 1).sum()),
        "pairs_of_one_sample": int((truth == 1).sum()),
        "pairs": [[int(client), int(label), int(truth[client, label])] for client, label in np.argwhere(truth > 0)],
        "cells": [look(experiment, cell) for cell in experiment.cells],
    }


def table(measured: Mapping[str, Any]) -> list[list[str]]:
    """For people: a row per algorithm and rule, means over seeds, after the first round, the last, and of all."""
    cells = measured["cells"]
    shown = []
    for label in dict.fromkeys(cell["label"] for cell in cells):
        for rule in RULES:
            row = [label, rule]
            for time in ("first", "last", "all"):
                scores = [cell["scores"][rule][time] for cell in cells if cell["label"] == label]
                row += [_cell(name, [each and each[name] for each in scores]) for name in QUOTED]
            shown.append(row)
    return shown


QUOTED = ("correlation", "error", "near", "majority")


def _cell(name: str, values: Sequence[float | None]) -> str:
    value = mean(values)
    if value is None:
        return "–"
    return f"{value:.2f}" if name == "correlation" else f"{100 * value:.0f} %"


def printed(measured: Mapping[str, Any]) -> Iterator[str]:
    """The table as lines of text."""
    rounds, seeds = measured["config"]["train"]["rounds"], len(measured["config"]["seeds"])
    yield (
        f"{measured['dataset']}: {measured['clients']} clients, {len(measured['pairs'])} class sizes to guess, "
        f"{rounds} rounds, mean over {seeds} seed{'s' if seeds > 1 else ''}"
    )
    width = max(len(row[0]) for row in table(measured))
    times = ("from round 1", f"from round {rounds}", "from all rounds")
    yield " " * (width + 15) + "".join(f"| {time:<30}" for time in times)
    names = "".join(f"{name:>7}" for name in ("rank", "error", "near", "major"))
    yield f"{'':{width}}  {'guessed by':12} " + f"|{names}   " * 3
    for label, rule, *numbers in table(measured):
        parts = (numbers[start : start + 4] for start in range(0, 12, 4))
        yield f"{label:{width}}  {rule:12} " + "".join(f"|{''.join(f'{n:>7}' for n in part)}   " for part in parts)


def main() -> int:
    """The command; 2 where what was asked for cannot be."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="config keys to set, dotted")
    parser.add_argument("--config", type=Path, default=CONFIG)
    parser.add_argument("--json", action="store_true", help="print one JSON value with every guess")
    asked = parser.parse_args()
    try:
        measured = measure(Experiment(load_config(asked.config, asked.overrides)))
    except TinyProtoError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 2
    print(json.dumps(measured) if asked.json else "\n".join(line.rstrip() for line in printed(measured)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
