"""Run folders with known numbers, to check a report against."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray
from safetensors.numpy import save_file

from tinyproto.report.runs import Run, read_run
from tinyproto.tracking.run_folder import record_from
from tinyproto.tracking.summary import RoundResult, Totals

SAMPLES = 10  # test samples of every client
RULES = ("head", "global", "local")
Correct = Callable[[str, int, int, int, str], int | None]
FIVE = ("local", "fedproto", "fedtgp", "tinyproto_fp", "tinyproto_ft")


def better_each_round(label: str, seed: int, round_: int, client: int, rule: str) -> int | None:
    """Return the correct ones of ten samples; None by prototypes before training, and for Local by global ones."""
    if (rule != "head" and round_ == 1) or (rule == "global" and label == "local"):
        return None
    return min(SAMPLES, 2 + 2 * round_ + (client + seed) % 2)


@dataclass(frozen=True)
class Made:
    """A run folder to write: its algorithms, accuracies and costs."""

    name: str = "made"
    algorithms: Sequence[str | Mapping[str, Any]] = ("local", "fedproto")
    seeds: Sequence[int] = (0,)
    rounds: int = 2
    clients: int = 3
    classes: int = 4
    dim: int = 6
    correct: Correct = better_each_round
    evaluated: Callable[[int], Sequence[int]] | None = None  # the clients asked in a round; everyone where not told
    payload: Mapping[str, int] = field(default_factory=lambda: {"local": 0})  # bytes of a frame by label, 100 otherwise
    evaluation: Mapping[str, int] = field(default_factory=dict)  # the same of frames sent down only to evaluate
    config: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # sections to change
    dataset: str = "quarters"
    done: int | None = None  # cells that are finished; all where not told
    prototypes: bool = True
    federation: bool = True
    formula: int | None = 7  # parameters a round by the paper's formula
    derived: Callable[[str, int], Mapping[str, int | float] | None] = lambda label, seed: {}  # None: an older record
    whole: Mapping[str, Any] | None = None  # a resolved config to take as it is

    def write(self, folder: Path) -> Path:
        """Write all files of a run folder."""
        folder.mkdir(parents=True)
        config = self.resolved()
        (folder / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False, allow_unicode=True))
        (folder / "environment.json").write_text(
            json.dumps({"tinyproto": "0", "python": "3", "cpu": "one", "commit": "c"})
        )
        cells = [(entry, seed) for seed in self.seeds for entry in config["algorithms"]][: self.done]
        lines, results = [], []
        tensors: dict[str, NDArray[Any]] = {}
        for entry, seed in cells:
            identity = {"algorithm": entry["name"].split(":")[-1], "label": entry["label"], "seed": seed}
            records = [self._record(entry["label"], seed, number) for number in range(1, self.rounds + 2)]
            lines += [json.dumps({**identity, **record}) for record in records]
            played = [RoundResult(record_from(record), {"total": 0.5}) for record in records]
            known = {
                "dataset": self.dataset,
                "rounds": self.rounds,
                "num_clients": self.clients,
                "preset": config["preset"],
            }
            derived = self.derived(entry["label"], seed)
            results.append(Totals(played).summary({**identity, **known}, self.formula, 1000, derived or {}))
            if derived is None:
                del results[-1]["derived"]
            tensors |= self._tensors(entry["label"], seed)
        (folder / "rounds.jsonl").write_text("".join(line + "\n" for line in lines))
        (folder / "summary.json").write_text(json.dumps({"schema_version": 1, "results": results}))
        if self.prototypes:
            save_file(tensors, folder / "prototypes.safetensors")
        if self.federation:
            counts = (np.arange(self.clients * self.classes).reshape(self.clients, self.classes) % 5).tolist()
            (folder / "federation.json").write_text(json.dumps({"counts": counts}))
        return folder

    def read(self, folder: Path) -> Run:
        """Write the run folder and read it."""
        return read_run(self.write(folder))

    def resolved(self) -> dict[str, Any]:
        """Return a resolved config with the keys that a report reads."""
        if self.whole is not None:
            return dict(self.whole)
        entries: list[dict[str, Any]] = [
            {"name": one, "label": one} if isinstance(one, str) else dict(one) for one in self.algorithms
        ]
        sections: dict[str, dict[str, Any]] = {
            "data": {"name": self.dataset, "root": None},
            "partition": {"kind": "dirichlet", "alpha": 0.1, "num_clients": self.clients, "seed": 1},
            "prototypes": {"dim": self.dim, "cps_dim": 2},
            "train": {"rounds": self.rounds, "workers": 1, "device": "cpu", "participation": 1.0},
            "evaluate": {"every": 1, "rule": "global", "statistic": "last"},
            "checkpoint": {"every_seconds": 30.0},
        }
        changed = {name: {**values, **self.config.get(name, {})} for name, values in sections.items()}
        first = {"schema_version": 1, "name": self.name, "preset": "sound"}
        return {**first, **changed, "models": ["tiny"], "algorithms": entries, "seeds": list(self.seeds)}

    def _record(self, label: str, seed: int, number: int) -> dict[str, Any]:
        closing = number > self.rounds
        asked = list(range(self.clients) if closing or self.evaluated is None else self.evaluated(number))
        correct = {rule: [self.correct(label, seed, number, client, rule) for client in asked] for rule in RULES}
        accuracy = {
            rule: sum(value or 0 for value in values) / (SAMPLES * len(asked)) if set(values) - {None} else None
            for rule, values in correct.items()
        }
        size = self.payload.get(label, 100)
        up, down = 0 if closing else size * self.clients, 0 if number == 1 else size * self.clients
        sent = {
            way: {"parameters": count // 4, "payload": count, "wire": count + 30}
            for way, count in (("up", up), ("down", down))
        }
        bytes_ = {"up": [up // self.clients] * len(asked), "down": [down // self.clients] * len(asked)}
        return {
            "round": number, "closing": closing, "participants": [] if closing else list(range(self.clients)),
            "accuracy": accuracy, "client_mean": accuracy, "loss": {}, "refused": {},
            "traffic": {"closing" if closing else "training": sent, **self._beside(label)},
            "clients": {
                "id": asked, "test_samples": [SAMPLES] * len(asked), "correct": correct,
                "payload_bytes": bytes_, "wire_bytes": bytes_,
            },
        }  # fmt: skip

    def _beside(self, label: str) -> dict[str, Any]:
        count = self.evaluation.get(label, 0) * self.clients
        down = {"parameters": count // 4, "payload": count, "wire": count}
        return {"evaluation": {"up": dict.fromkeys(down, 0), "down": down}} if count else {}

    def _tensors(self, label: str, seed: int) -> dict[str, NDArray[Any]]:
        """Return noise, half of it zero; client 0 does not hold class 0."""
        noise = np.random.default_rng([seed, *label.encode()])
        shape = (self.clients, self.classes, self.dim)
        present = np.ones(shape[:2], np.uint8)
        present[0, 0] = 0
        found = {
            f"{label}/{seed}/local/values": np.maximum(noise.standard_normal(shape), 0).astype(np.float32),
            f"{label}/{seed}/local/present": present,
        }
        if label != "local":
            found[f"{label}/{seed}/global/values"] = noise.standard_normal(shape[1:]).astype(np.float32)
            found[f"{label}/{seed}/global/present"] = np.ones(shape[1], np.uint8)
        return found


def without_terms(page: str) -> str:
    """Return a page without the buttons that explain terms."""
    return re.sub(r'<button[^>]* class="term"[^>]*>([^<]*)</button>', r"\1", page)
