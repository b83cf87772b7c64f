"""The terms of a federation, which a coordinator sends in the hello, and `serve.json`, which starts a coordinator.

Terms are a JSON object. Both sides build algorithm and expectation from it with the same function, and their digests
must be equal. A client imports nothing that the terms name: algorithms and auxiliary networks have registered names,
and each client chooses its own network.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

from pydantic import StringConstraints, ValidationError

from tinyproto.algorithms.auxiliary import SMALLEST
from tinyproto.algorithms.base import FederationSpec
from tinyproto.algorithms.exchange import smallest
from tinyproto.builder import Cell, Setup, build_setup
from tinyproto.config.data_section import Normalisation, Positive, Section
from tinyproto.config.load import Config, parse_config
from tinyproto.config.schema import PresetName, PrototypesSection, Seed, WireSection
from tinyproto.core.task import LastBatch
from tinyproto.data.dataset import Dtype
from tinyproto.data.sources import SOURCES
from tinyproto.errors import ConfigError, TinyProtoError
from tinyproto.federation.refusals import Refusal
from tinyproto.models import ModelEntry
from tinyproto.storage.atomic import write_atomic
from tinyproto.tracking.run_folder import SERVE_FILE
from tinyproto.wire.frame import VERSION


def new_token() -> str:
    """Return a token that identifies one federation; it is made at the start and kept on resume."""
    return secrets.token_hex(16)


Token = Annotated[str, StringConstraints(pattern="^[0-9a-f]{32}$")]


class TrainTerms(Section):
    """The keys of section `train` that must be equal on every client."""

    rounds: Positive
    local_epochs: Positive
    batch_size: Positive
    learning_rate: float
    shuffle: bool
    last_batch: LastBatch
    head_dropout: float
    head_dropout_in_place: bool = False


class InputTerms(Section):
    """The inputs of every client: their type, a table's columns by name, and who computes the normalisation."""

    dtype: Dtype = "uint8"
    label: str | None = None  # a table's column of labels
    columns: list[str] | None = None  # a table's columns of features, in the order that networks see
    vocabulary: Positive | None = None  # the number of token ids
    normalise: Normalisation = "auto"  # auto: each client computes its own


class Terms(Section):
    """Everything a client must know before its first round."""

    protocol: int
    federation: Token
    digest: Token
    clients: Positive
    num_classes: Positive
    input_shape: list[Positive]
    inputs: InputTerms = InputTerms()
    classes: list[str] | None
    preset: PresetName
    prototypes: PrototypesSection
    train: TrainTerms
    wire: WireSection
    algorithm: dict[str, Any]
    seed: Seed

    def text(self) -> str:
        """Return the terms as they travel; a key that an earlier release does not know is left out at its default."""
        later: dict[str, Any] = {} if self.train.head_dropout_in_place else {"train": {"head_dropout_in_place"}}
        return self.model_dump_json(exclude={**later, "inputs": True} if self.inputs == InputTerms() else later)


def agree(terms: Terms, networks: Sequence[ModelEntry]) -> Setup:
    """Build algorithm and expectation from the terms and the networks this side knows (a client knows its own).

    The digest covers the token, so a frame of another federation with the same settings fails its checksum.
    """
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
    setup = build_setup(config.model, cell, terms.num_classes, tuple(terms.input_shape), terms.inputs.vocabulary)
    return replace(setup, federation=terms.federation)


def offered_terms(config: Config, token: str) -> Terms:
    """Return a coordinator's terms for its config; raise ConfigError if a federation cannot run that config."""
    model = config.model
    if len(config.algorithms) != 1 or len(model.seeds) != 1:
        raise ConfigError(
            "a federation runs one algorithm with one seed; choose them, for example "
            f"algorithms=[{config.algorithms[0].reference}] seeds=[{model.seeds[0]}]"
        )
    if model.evaluate.scope != "own":
        raise ConfigError(f"evaluate.scope={model.evaluate.scope} needs all clients' test samples; simulate it instead")
    (entry,) = config.algorithms
    hyper = asdict(entry.hyper)
    num_classes, input_shape = _sizes(config)
    inputs = _inputs(config)
    if hyper.get("auxiliary") == SMALLEST:
        shape = FederationSpec(
            num_classes, model.prototypes.dim, model.train.learning_rate, input_shape, model.train.head_dropout,
            tuple(model.models), vocabulary=inputs.vocabulary,
        )  # fmt: skip
        try:
            hyper["auxiliary"] = smallest(shape)
        except ValueError as error:
            raise ConfigError(f"algorithm {entry.label}: {error}") from error
    algorithm = {"name": entry.reference, **hyper}
    dotted = _dotted(algorithm)
    if dotted is not None:
        raise ConfigError(
            f"algorithm {entry.label}: {dotted!r} is a dotted path, and clients import nothing for a coordinator; use "
            "a registered algorithm and auxiliary network"
        )
    terms = Terms(
        protocol=VERSION,
        federation=token,
        digest="0" * 32,
        clients=members(config),
        num_classes=num_classes,
        input_shape=list(input_shape),
        inputs=inputs,
        classes=model.federation.classes,
        preset=model.preset,
        prototypes=model.prototypes,
        train=TrainTerms(**{key: getattr(model.train, key) for key in TrainTerms.model_fields}),
        wire=WireSection(**asdict(entry.wire)),
        algorithm=algorithm,
        seed=model.seeds[0],
    )
    return terms.model_copy(update={"digest": agree(terms, model.models).expectation.digest.hex()})


def members(config: Config) -> int:
    """Return the number of clients; raise ConfigError if the config does not say it."""
    found = config.model.federation.clients or config.model.partition.num_clients
    if found is None:
        raise ConfigError("federation.clients is missing; set it to the number of clients")
    return found


def accepted_terms(text: str, model: str) -> tuple[Terms, Setup]:
    """Return offered terms and what a client with this network builds from them; raise Refusal if it refuses them."""
    terms = _read(text)
    dotted = _dotted(terms.algorithm)
    if dotted is not None:
        raise Refusal("path", f"the coordinator's terms name the dotted path {dotted!r}; nothing it names is imported")
    try:
        setup = agree(terms, [model])
    except TinyProtoError as error:
        raise Refusal("terms", f"the coordinator's terms cannot be met: {error}") from error
    digest = setup.expectation.digest.hex()
    if digest != terms.digest:
        raise Refusal(
            "digest",
            f"the coordinator's digest of the federation is {terms.digest}, this client's is {digest}; install the "
            f"same release on both ends, and where parameters are averaged use the coordinator's network instead of "
            f"{model!r}",
        )
    return terms, setup


def _read(text: str) -> Terms:
    try:
        values = json.loads(text)
    except ValueError as error:
        raise Refusal("terms", f"the coordinator's terms are not JSON: {error}") from error
    protocol = values.get("protocol") if isinstance(values, dict) else None
    if protocol != VERSION:
        raise Refusal(
            "protocol",
            f"the coordinator uses version {protocol!r} of the protocol, this client version {VERSION}; install the "
            "same release of tinyproto on both ends",
        )
    try:
        return Terms.model_validate_json(text)
    except ValidationError as error:
        raise Refusal("terms", f"the coordinator's terms are malformed: {first_fault(error)}") from error


def _dotted(algorithm: Mapping[str, Any]) -> Any | None:
    """Return a value of an algorithm's entry that is an import path, or neither text nor number; else None."""
    for value in algorithm.values():
        if (isinstance(value, str) and ":" in value) or not isinstance(value, str | int | float | None):
            return value
    return None


def _sizes(config: Config) -> tuple[int, tuple[int, ...]]:
    """Return K and the shape of a sample."""
    section, data = config.model.federation, config.model.data
    known_classes, known_shape = SOURCES[data.name].always or (None, None)
    if data.columns is not None:
        known_shape = (len(data.columns),)
    classes = section.num_classes or (len(section.classes) if section.classes else data.first_classes or known_classes)
    shape = tuple(section.input_shape) if section.input_shape else known_shape
    if data.columns is not None and shape != known_shape:
        raise ConfigError(
            f"federation.input_shape is {list(shape or ())}, but there are {len(data.columns)} data.columns; remove it"
        )
    if classes is None or shape is None:
        of_table = "data.columns" if data.name == "table" else "federation.input_shape"
        key = "federation.num_classes" if classes is None else of_table
        raise ConfigError(f"{key} is missing; set it, since the dataset {data.name!r} does not fix it")
    return classes, shape


def _inputs(config: Config) -> InputTerms:
    """Return the type of the clients' inputs, and what they need to know to read them alike."""
    section, data = config.model.federation, config.model.data
    source = SOURCES[data.name]
    dtype = section.dtype or ("int64" if data.vocabulary is not None else source.dtype)
    if dtype == "uint8" and (data.columns or source.columns):
        raise ConfigError("federation.dtype uint8 is for images, not for the columns of a table; remove it")
    if (dtype == "int64") != (data.vocabulary is not None):
        raise ConfigError(
            "federation.dtype int64 (token ids) and data.vocabulary (their number, which all clients agree on) go "
            f"together; the type is {dtype}, data.vocabulary is {data.vocabulary or 'null'}"
        )
    return InputTerms(
        dtype=dtype,
        label=(data.label or "label") if data.columns or source.columns else None,
        columns=data.columns or (list(source.columns) if source.columns else None),
        vocabulary=data.vocabulary,
        normalise=data.normalise,
    )


def first_fault(error: ValidationError) -> str:
    """Return the first invalid place of a JSON object and what is wrong there."""
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"


class JsonFile(Section):
    """A section that is a JSON file of its own."""

    NAME: ClassVar[str]

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read it from a folder; raise ConfigError if it is unreadable or invalid."""
        file = folder / cls.NAME
        try:
            return cls.model_validate_json(file.read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigError(f"cannot read {file}: {error.strerror or error}") from error
        except ValidationError as error:
            raise ConfigError(f"{file}: {first_fault(error)}") from error


class MqttPlace(Section):
    """The broker of a federation over MQTT, as the coordinator reaches it."""

    host: str
    port: int
    foreign: bool = False  # not started by `serve`
    authority: str | None = None  # of a foreign broker: a file, or `system`
    prefix: str = ""


class ServeFile(JsonFile):
    """`serve.json` in a run folder: what the coordinator's process needs, now and on resume."""

    NAME = SERVE_FILE
    config: dict[str, Any]  # resolved
    federation: Token
    resume: bool = False
    keys: dict[str, str] | None = None  # by client id: its public key (PEM) in hexadecimal
    listen: str | None = None  # HOST:PORT for clients
    key_folder: str | None = None
    mqtt: MqttPlace | None = None  # None: Flower

    def write(self, folder: Path) -> None:
        """Write it into a run folder, atomically."""
        write_atomic(folder / SERVE_FILE, self.model_dump_json(indent=1, exclude_none=True))

    def public_keys(self) -> dict[int, bytes]:
        """Return the public keys by client id."""
        return {int(client): bytes.fromhex(key) for client, key in (self.keys or {}).items()}
