"""The terms of a federation: what a coordinator tells a client in the hello, and what both make of them.

They are a JSON object. Either side builds algorithm and expectation from it with the same function, and their digests
have to be equal. A client never imports anything that the terms name: algorithms and auxiliary networks go by
registered names, and the client's own network is the client's own affair.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any

from pydantic import AfterValidator, ValidationError

from tinyproto.algorithms.auxiliary import SMALLEST
from tinyproto.algorithms.base import FederationSpec
from tinyproto.algorithms.exchange import smallest
from tinyproto.builder import Cell, Setup, build_setup
from tinyproto.config.load import Config, parse_config
from tinyproto.config.schema import Positive, PresetName, PrototypesSection, Section, Seed, WireSection
from tinyproto.core.task import LastBatch
from tinyproto.data.sources import SOURCES
from tinyproto.errors import ConfigError, TinyProtoError
from tinyproto.federation.files import first_fault
from tinyproto.federation.refusal import Refusal
from tinyproto.models import ModelEntry
from tinyproto.wire.frame import VERSION


def new_token() -> str:
    """What tells one federation from another; made when it begins, and kept when it is resumed."""
    return secrets.token_hex(16)


def _token(text: str) -> str:
    if not re.fullmatch("[0-9a-f]{32}", text):
        raise ValueError("32 hexadecimal digits are needed")
    return text


Token = Annotated[str, AfterValidator(_token)]


class TrainTerms(Section):
    """Of the section `train`, what clients have to do alike."""

    rounds: Positive
    local_epochs: Positive
    batch_size: Positive
    learning_rate: float
    shuffle: bool
    last_batch: LastBatch
    head_dropout: float


class Terms(Section):
    """All that a client has to know beforehand."""

    protocol: int
    federation: Token
    digest: Token
    clients: Positive
    num_classes: Positive
    input_shape: list[Positive]
    classes: list[str] | None
    preset: PresetName
    prototypes: PrototypesSection
    train: TrainTerms
    wire: WireSection
    algorithm: dict[str, Any]
    seed: Seed

    def text(self) -> str:
        """As it travels."""
        return self.model_dump_json()


@dataclass(frozen=True)
class Agreement:
    """What either side has built from the terms."""

    terms: Terms
    cell: Cell
    setup: Setup


def agree(terms: Terms, networks: Sequence[ModelEntry]) -> Agreement:
    """Build what both sides share under these terms, with the networks that this side knows: a client its own."""
    config = parse_config(
        {
            "preset": terms.preset,
            "models": list(networks),
            "prototypes": terms.prototypes.model_dump(),
            "train": terms.train.model_dump(),
            "wire": terms.wire.model_dump(),
            "algorithms": [terms.algorithm],
            "seeds": [terms.seed],
        },
        source="the terms",
    )
    cell = Cell(0, config.algorithms[0], terms.seed)
    return Agreement(terms, cell, build_setup(config.model, cell, terms.num_classes, tuple(terms.input_shape)))


def offered_terms(config: Config, token: str) -> Terms:
    """A coordinator's terms from its config; what no federation can do is an error that says so."""
    model = config.model
    if len(config.algorithms) != 1 or len(model.seeds) != 1:
        raise ConfigError(
            "a federation runs one algorithm with one seed; choose them, such as with "
            f"algorithms=[{config.algorithms[0].reference}] seeds=[{model.seeds[0]}]"
        )
    (entry,) = config.algorithms
    hyper = asdict(entry.hyper)
    num_classes, input_shape = _sizes(config)
    if hyper.get("auxiliary") == SMALLEST:
        shape = FederationSpec(
            num_classes, model.prototypes.dim, model.train.learning_rate, input_shape, model.train.head_dropout,
            tuple(model.models),
        )  # fmt: skip
        hyper["auxiliary"] = smallest(shape)
    algorithm = {"name": entry.reference, **hyper}
    dotted = _dotted(algorithm)
    if dotted is not None:
        raise ConfigError(
            f"algorithm {entry.label}: {dotted!r} is a dotted path, which no client imports for a coordinator; in a "
            "federation algorithms and auxiliary networks are registered ones"
        )
    terms = Terms(
        protocol=VERSION,
        federation=token,
        digest="0" * 32,
        clients=members(config),
        num_classes=num_classes,
        input_shape=list(input_shape),
        classes=model.federation.classes,
        preset=model.preset,
        prototypes=model.prototypes,
        train=TrainTerms(**{key: getattr(model.train, key) for key in TrainTerms.model_fields}),
        wire=WireSection(**asdict(entry.wire)),
        algorithm=algorithm,
        seed=model.seeds[0],
    )
    return terms.model_copy(update={"digest": agree(terms, model.models).setup.expectation.digest.hex()})


def members(config: Config) -> int:
    """How many there are."""
    found = config.model.federation.clients or config.model.partition.num_clients
    if found is None:
        raise ConfigError("federation.clients has to say how many members there are")
    return found


def accepted_terms(text: str, model: str) -> Agreement:
    """What a client with this network makes of the terms it is offered; a Refusal says why it does not take them."""
    terms = _read(text)
    dotted = _dotted(terms.algorithm)
    if dotted is not None:
        raise Refusal("path", f"the coordinator's terms name the dotted path {dotted!r}; nothing it names is imported")
    try:
        found = agree(terms, [model])
    except TinyProtoError as error:
        raise Refusal("terms", f"the coordinator's terms cannot be met: {error}") from error
    if found.setup.expectation.digest.hex() != terms.digest:
        raise Refusal(
            "digest",
            f"the coordinator's digest of the federation is {terms.digest}, ours is "
            f"{found.setup.expectation.digest.hex()}: the two ends differ in release, or network {model!r} has other "
            "parameters where parameters are averaged",
        )
    return found


def _read(text: str) -> Terms:
    try:
        values = json.loads(text)
    except ValueError as error:
        raise Refusal("terms", f"the coordinator's terms are no JSON: {error}") from error
    protocol = values.get("protocol") if isinstance(values, dict) else None
    if protocol != VERSION:
        raise Refusal(
            "protocol",
            f"the coordinator speaks version {protocol!r} of the protocol, this client version {VERSION}; install the "
            "same release of tinyproto on both ends",
        )
    try:
        return Terms.model_validate_json(text)
    except ValidationError as error:
        raise Refusal("terms", f"the coordinator's terms are malformed: {first_fault(error)}") from error


def _dotted(algorithm: Mapping[str, Any]) -> Any | None:
    """What of an algorithm's entry is a path to something to import, or not even text or a number."""
    values = algorithm.values()
    return next(
        (
            value
            for value in values
            if (isinstance(value, str) and ":" in value) or not isinstance(value, str | int | float | None)
        ),
        None,
    )


def _sizes(config: Config) -> tuple[int, tuple[int, ...]]:
    """K and (C, H, W)."""
    section, data = config.model.federation, config.model.data
    known_classes, known_shape = SOURCES[data.name].always or (None, None)
    classes = section.num_classes or (len(section.classes) if section.classes else data.first_classes or known_classes)
    shape = tuple(section.input_shape) if section.input_shape else known_shape
    for key, value in (("num_classes", classes), ("input_shape", shape)):
        if value is None:
            raise ConfigError(f"federation.{key} has to be given: the dataset {data.name!r} can have any")
    assert classes is not None
    assert shape is not None
    return classes, shape
