"""A trained client: its network, its classes, and the rules by which it classifies raw inputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from tinyproto.core.prototypes import Prototypes
from tinyproto.core.streams import one_thread
from tinyproto.core.task import TensorData
from tinyproto.engine.eager import EagerTrainer
from tinyproto.engine.measure import RULES
from tinyproto.engine.rules import HeadRule, PrototypeRule
from tinyproto.errors import ConfigError, ModelError, one_line
from tinyproto.imports import unknown
from tinyproto.models.build import ModelShape, build_model, load_weights
from tinyproto.models.split import SplitModel
from tinyproto.storage.network_files import read_network
from tinyproto.trained.inputs import InputFormat

_PARTS: Mapping[str, str] = {"global": "received", "local": "local"}
_AT_ONCE = 4096


class Prediction(NamedTuple):
    """The classes of N inputs by one rule."""

    classes: list[str]  # names, or numbers as text
    labels: Tensor  # (N,) int64
    scores: Tensor  # (N, K) float64, the higher the better: the head's softmax, or minus the distance to a prototype


@dataclass(frozen=True)
class TrainedClient:
    """A client as its training left it, on the CPU and in eval mode."""

    model: SplitModel = field(repr=False)
    prototypes: Mapping[str, Prototypes] = field(repr=False)
    facts: Mapping[str, Any] = field(repr=False)  # whose network it is, and what its classes and inputs are
    path: Path  # of its file

    @property
    def classes(self) -> tuple[str, ...]:
        """Return the names of the classes by label; numbers as text if they have no names."""
        names = self.facts.get("class_names")
        return tuple(map(str, range(self.facts["num_classes"]) if names is None else names))

    @property
    def rules(self) -> tuple[str, ...]:
        """Return the rules that this client can classify by."""
        return tuple(rule for rule in RULES if rule == "head" or rule in self.prototypes)

    @cached_property
    def inputs(self) -> InputFormat:
        """Return the format of its raw inputs."""
        return InputFormat.of(dict(self.facts))

    def predict(self, x: Any, rule: str = "global") -> Prediction:
        """Classify raw inputs; what training did to them is done here.

        Args:
            x: one or many inputs: files, PIL images, or an array or tensor (N, …) as stored, also without N, or with
                channels last. Pictures are converted and resized to the network's input. A file may also be a table or
                an .npy array; columns of tables and data frames are matched by name.
            rule: `head`, the nearest `global` prototype (as in the paper's tables) or the nearest `local` one.

        """
        self.check(rule)
        return self.decide(self.features(x), rule)

    @torch.no_grad()
    def features(self, x: Any) -> Tensor:
        """Return the features (N, d) of raw inputs, to the bits that evaluation on a CPU has."""
        scale, shift = self.inputs.factors()
        whole = []
        with one_thread():
            for part in torch.split(self.inputs.batch(x), _AT_ONCE):
                data = TensorData(part, torch.zeros(len(part), dtype=torch.int64), scale, shift)
                whole += EagerTrainer().features([self.model], [data])
        return torch.cat(whole)

    @torch.no_grad()
    def decide(self, features: Tensor, rule: str) -> Prediction:
        """Classify features by a rule."""
        scores: Tensor = self.rule(rule)(features)
        labels = scores.argmax(1)
        return Prediction([self.classes[label] for label in labels.tolist()], labels, scores)

    def rule(self, rule: str) -> nn.Module:
        """Return a rule as a module from features (N, d) to scores (N, K); raise ConfigError if the client lacks it."""
        self.check(rule)
        return HeadRule(self.model.head).eval() if rule == "head" else PrototypeRule(self.prototypes[rule])

    def check(self, rule: str) -> None:
        """Raise ConfigError if the client cannot classify by a rule."""
        if rule not in RULES:
            raise ConfigError(unknown("rule", rule, RULES))
        if rule not in self.rules:
            raise ConfigError(f"{self.why_not(rule)}; it can classify by {' or '.join(self.rules)}")

    def why_not(self, rule: str) -> str:
        """Return the reason why the client lacks a rule."""
        who = f"client {self.facts['client']}"
        if self.facts.get("schema_version") == 1:
            return f"{who} has no {rule} prototypes, because its network was kept by an earlier release"
        if rule == "local":
            return f"{who} has no local prototypes, since it never trained"
        return f"{who} received no global prototypes (its method is {self.facts['algorithm']})"


def read_client(file: Path) -> TrainedClient:
    """Read a client from its file; raise ModelError if the network it names has changed since."""
    facts, parts = read_network(file)
    shape = ModelShape(
        tuple(facts["input_shape"]), facts["proto_dim"], facts["num_classes"], facts["head_dropout"],
        facts.get("vocabulary"),
    )  # fmt: skip
    with one_thread():
        model = build_model(facts["network"], shape, seed=0)
    try:
        load_weights(model, parts["model"])
    except RuntimeError as error:
        raise ModelError(
            f"{file} does not fit the network {facts['network']!r}, which has changed since: {one_line(error)}"
        ) from error
    prototypes = {rule: Prototypes(**parts[part]) for rule, part in _PARTS.items() if parts[part]}
    present = {rule: rows for rule, rows in prototypes.items() if bool(rows.present.any())}
    return TrainedClient(model.eval(), present, facts, file)
