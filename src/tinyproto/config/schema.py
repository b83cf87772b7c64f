"""The config file's schema: every key, its type, its bounds and its default."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator
from pydantic.config import JsonDict
from pydantic.fields import FieldInfo

from tinyproto.algorithms.defence import Defence, DefenceName
from tinyproto.core.cps import MaskKind
from tinyproto.core.sizes import bytes_of
from tinyproto.core.task import LastBatch
from tinyproto.data.federation import CountedSamples
from tinyproto.data.partition_kinds import OWN_KEYS, REQUIRED, Partition, PartitionKind
from tinyproto.data.sources import SOURCES, Progress, Request, part_name, silent
from tinyproto.engine.client import PrototypeSamples
from tinyproto.engine.training import Precision, TrainerName
from tinyproto.errors import ConfigError
from tinyproto.simulation.memory import AUTO
from tinyproto.simulation.participation import EvaluatedClients
from tinyproto.wire.values import Download, Rounding, ValueName, WireSettings

PresetName = Literal["sound", "reference", "paper"]
Rule = Literal["head", "global", "local"]
Statistic = Literal["best", "last", "last10"]
Positive = Annotated[int, Field(ge=1)]
Seed = Annotated[int, Field(ge=0)]
Probability = Annotated[float, Field(ge=0, lt=1)]

NEUTRAL: JsonDict = {"neutral": "run"}
"""Mark of a key that does not change results, or only their rounding; two runs may differ in it."""

NEUTRAL_ON_RESUME: JsonDict = {"neutral": "resume"}
"""Mark of a result-neutral key that may also differ between the start of a run and its resumption."""


def _all_different(seeds: list[int]) -> list[int]:
    if len(set(seeds)) < len(seeds):
        raise ValueError(f"{seeds} names a seed twice")
    return seeds


def _folder_name(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
        raise ValueError(
            f"{name!r} cannot name a folder; use letters, digits, '.', '_' and '-', a letter or digit first"
        )
    return name


def _memory(text: str) -> str:
    if text != AUTO:
        try:
            _amount(text)
        except ValueError as error:
            raise ValueError(f"{error}, or auto") from error
    return text


def _amount(text: str) -> str:
    try:
        bytes_of(text)
    except ConfigError as error:
        raise ValueError(str(error)) from error
    return text


class Section(BaseModel):
    """Strict: no unknown key, no silent conversion."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class DataSection(Section):
    """Which images."""

    name: str = Field("digits", description="cifar10, cifar100, tiny_imagenet, image_folder, npz, or digits (embedded)")
    root: str | None = Field(
        None, description="folder that holds the dataset's files, or the .npz file; data if null; digits has none"
    )
    image_size: Positive | None = Field(
        None, description="image_folder: height and width that all images are brought to; null: they have one size"
    )
    cache: str | None = Field(
        None,
        description="tiny_imagenet, image_folder: where decoded images are kept; null: beside them",
        json_schema_extra=NEUTRAL,
    )

    first_classes: Annotated[int, Field(ge=2)] | None = Field(
        None, description="only so many classes, the first in the dataset's order; null: all"
    )

    @model_validator(mode="after")
    def _only_what_the_dataset_reads(self) -> DataSection:
        for key, readers in (("image_size", ("image_folder",)), ("cache", ("tiny_imagenet", "image_folder"))):
            if getattr(self, key) is not None and self.name not in readers:
                raise ValueError(f"{key} is read by {' and '.join(readers)}, not by {self.name}; leave it out")
        asked, most = self.first_classes, self._known_classes
        if asked is not None and most is not None and asked > most:
            raise ValueError(f"first_classes is {asked}, but {self.name} has {most} classes")
        return self

    @property
    def _known_classes(self) -> int | None:
        """K, where everybody who has the dataset has the same."""
        source = SOURCES.get(self.name)
        return None if source is None or source.always is None else source.always[0]

    @property
    def dataset(self) -> str:
        """What results call it, where its files are all there."""
        return self.name if self.first_classes == self._known_classes else part_name(self.name, self.first_classes)

    def request(self, progress: Progress = silent) -> Request:
        """What the dataset's source is asked for."""
        root, cache = (None if path is None else Path(path).expanduser() for path in (self.root, self.cache))
        return Request(root, cache, self.image_size, progress, self.first_classes)


class PartitionSection(Section):
    """Who holds what."""

    kind: PartitionKind = Field(
        "dirichlet",
        description="dirichlet: each class is spread over the clients by a draw; iid; pathological: a few classes per "
        "client; quantity: sizes by a draw; file: as a file says",
    )
    num_clients: Positive | None = Field(None, description="M, 20 if not given; a file has its own")
    alpha: float | None = Field(
        None,
        gt=0,
        description="dirichlet, quantity: concentration, 0.1 if not given; small means few classes, unequal sizes",
    )
    classes_per_client: Positive | None = Field(None, description="pathological: how many classes a client holds")
    file: str | None = Field(None, description="file: a .json or .npz with every client's train and test samples")
    seed: Annotated[int, Field(ge=0, lt=2**32)] = Field(1, description="of the draw; 1 gives the paper's partitions")
    train_fraction: float = Field(0.75, gt=0, lt=1, description="share of a client's samples that it trains on")
    min_samples: Positive = Field(
        1, description="every client has at least so many; at most 1 000 draws, then a repair"
    )

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, values: Any) -> Any:
        """Write out the defaults of the kind."""
        if not isinstance(values, Mapping):
            return values
        own = OWN_KEYS.get(values.get("kind", "dirichlet"), {}) if isinstance(values.get("kind", ""), str) else {}
        defaults = {key: value for key, value in own.items() if value is not REQUIRED and values.get(key) is None}
        return {**values, **defaults}

    @model_validator(mode="after")
    def _only_what_the_kind_reads(self) -> PartitionSection:
        own = OWN_KEYS[self.kind]
        for key in ("num_clients", "alpha", "classes_per_client", "file"):
            given = getattr(self, key) is not None
            if own.get(key) is REQUIRED and not given:
                raise ValueError(f"kind {self.kind} needs partition.{key}")
            if key not in own and given:
                readers = " and ".join(kind for kind, keys in OWN_KEYS.items() if key in keys)
                raise ValueError(f"{key} is read by kind {readers}, not by {self.kind}; leave it out")
        return self

    def asked(self) -> Partition:
        """The partition to make."""
        return Partition(**{key: value for key, value in self.model_dump().items() if value is not None})


class PrototypesSection(Section):
    """What a prototype is."""

    dim: Positive = Field(500, description="d, the width of features")
    cps_dim: Positive | None = Field(50, description="s, how many of the d a class owns; null sends all d")
    byte_budget: Annotated[str, AfterValidator(_amount)] | None = Field(
        None,
        description="instead of cps_dim: wire bytes of a client's round, such as 2kB; s is the largest whose frames "
        "with rows of all classes, up and down, fit",
    )
    mask_seed: Seed = Field(0, description="of the CPS masks, which both sides derive and nobody sends")
    masks: MaskKind = Field(
        "balanced",
        description="balanced: dimensions used equally, classes far apart; random: used equally; blocks: as published",
    )
    samples: PrototypeSamples = Field(
        "all", description="a local prototype is a mean over all training samples, or those seen"
    )
    counted_samples: CountedSamples = Field("train", description="n_ij counts training samples, or all a client has")

    @model_validator(mode="before")
    @classmethod
    def _one_says_how_much(cls, values: Any) -> Any:
        """A budget takes the place of the default s."""
        if not isinstance(values, Mapping) or values.get("byte_budget") is None:
            return values
        if values.get("cps_dim") is not None:
            raise ValueError("cps_dim and byte_budget both say how much a class sends; set one of them to null")
        return {**values, "cps_dim": None}


class TrainSection(Section):
    """How clients train."""

    rounds: Positive = Field(300, description="T, the number of rounds")
    local_epochs: Positive = Field(1, description="epochs a client trains per round")
    batch_size: Positive = Field(32, description="samples per step")
    learning_rate: float = Field(0.01, gt=0, description="of plain SGD")
    participation: float = Field(1.0, gt=0, le=1, description="share of the clients that take part in a round")
    dropout: Probability | str = Field(
        0.0,
        description="probability that a participant drops out of a round, so that its work of that round is lost; or a "
        "CSV file that says who drops out or is late when; in a simulation, since real clients drop out by themselves",
    )
    late: Probability = Field(
        0.0, description="probability that the upload of a participant misses the deadline of a round; it is not used"
    )
    max_left_out: float = Field(
        0.5,
        ge=0,
        le=1,
        description="share of a round's participants that a simulation may leave out because their training diverged; "
        "with more, or with all of them, it ends",
        json_schema_extra=NEUTRAL_ON_RESUME,
    )
    shuffle: bool = Field(True, description="new batches each epoch, or the same in the same order")
    last_batch: LastBatch = Field(
        "join", description="the rest of an epoch: join (less than half a batch joins the one before), keep, drop"
    )
    head_dropout: float = Field(
        0.0, ge=0, lt=1, description="share of features dropped before the head, in networks that ask: EfficientNet-B0"
    )
    trainer: TrainerName = Field(
        "auto",
        description="how steps are executed: eager is the reference; graphed captures the steps of a client, stacked "
        "computes clients of one network together, both for GPUs; auto: what is quickest for so many rounds",
        json_schema_extra=NEUTRAL,
    )
    precision: Precision = Field(
        "float32",
        description="of products on a GPU: float32 with TF32 in convolutions, as the published runs; tf32 in matrix "
        "products, too; exact without",
    )
    workers: Literal["auto"] | Positive = Field(
        "auto",
        description="processes that train clients side by side; auto: one per core, if the run is long enough; on "
        "a GPU, and of several cells at once, all clients of a cell are in one",
        json_schema_extra=NEUTRAL_ON_RESUME,
    )
    client_memory: Annotated[str, AfterValidator(_memory)] = Field(
        "auto",
        description="what clients' networks and states may take, such as 2GB, all processes together; beyond it the "
        "longest unused go to disk; auto: a quarter of the memory of the machine, or of the GPU where they are there",
        json_schema_extra=NEUTRAL_ON_RESUME,
    )
    parallel_cells: Literal["auto"] | Positive = Field(
        1,
        description="cells of the grid (an algorithm with a seed) that run at once, each in a process of its own; "
        "fewer where memory is short; auto: up to 8 on a GPU, one per core on a CPU if cells are many and long",
        json_schema_extra=NEUTRAL_ON_RESUME,
    )
    device: str = Field("auto", description="auto, cpu, cuda or cuda:N", json_schema_extra=NEUTRAL)

    @model_validator(mode="after")
    def _one_says_who_is_late(self) -> TrainSection:
        if isinstance(self.dropout, str) and self.late:
            raise ValueError("late is set, but the file in dropout says who is late; leave late out")
        return self


class EvaluateSection(Section):
    """When, who, and which number is the headline; all three rules are always computed."""

    every: Positive = Field(1, description="evaluate every so many rounds; the closing exchange always does")
    clients: EvaluatedClients = Field(
        "auto", description="all, participants, or auto: all with full participation; the closing exchange takes all"
    )
    rule: Rule = Field(
        "global", description="the headline for prototype methods: head, nearest global or local prototype"
    )
    statistic: Statistic = Field("last10", description="the headline over rounds: best, last, or mean of the last 10")


class WireSection(Section):
    """What travels, and what it is written in: docs/bytes.md says what each choice costs."""

    up: ValueName = Field("float32", description="what clients send")
    down: ValueName = Field("float32", description="what the server sends")
    rounding: Rounding = Field(
        "nearest", description="to the nearest value that the type has, or stochastic: up or down by chance, unbiased"
    )

    download: Download = Field(
        "all",
        description="rows that a client is sent to train on: of all classes, or of those held, which are the classes "
        "of its last upload; an evaluation by global prototypes is sent all, counted apart",
    )

    def settings(self) -> WireSettings:
        """As the engine takes them."""
        return WireSettings(self.up, self.down, self.rounding, self.download)


class RobustSection(Section):
    """What the server believes of clients, and what it does about hostile ones: docs/security.md has measurements."""

    defence: DefenceName | Literal["auto"] = Field(
        "auto",
        description="guard sets rows aside that lie far from what a class's other holders sent; median and "
        "trimmed_mean replace rows, coordinate by coordinate; krum keeps the most central clients; all need every "
        "upload of a round at once, which ends streaming; auto: guard in a real federation, none in a simulation",
    )
    tolerance: float = Field(
        3.0, gt=1, description="guard: how many typical distances a row may lie from its class's centre"
    )
    hostile: float = Field(
        0.2, gt=0, lt=0.5, description="trimmed_mean, krum: share of the clients that may be hostile"
    )
    size_ratio: float | None = Field(
        10.0,
        ge=1,
        description="no client's number of samples counts as more than so many times the median client's, whatever "
        "its hello says: in μ, in weights of averages, in accuracy over all clients; null: as it says",
    )

    def settings(self, otherwise: DefenceName) -> Defence:
        """As the engine takes them; `otherwise` is what `auto` comes to."""
        return Defence(
            otherwise if self.defence == "auto" else self.defence, self.tolerance, self.hostile, self.size_ratio
        )


class CheckpointSection(Section):
    """How much a killed run loses at the most."""

    every_seconds: float = Field(
        30.0, ge=0, description="seconds between checkpoints; 0 writes one after every round", json_schema_extra=NEUTRAL
    )


class FederationSection(Section):
    """A real federation over a network: read by `tinyproto serve` alone; docs/federation.md says how one is run."""

    clients: Positive | None = Field(
        None, description="how many members there are, with client ids 0 … clients − 1; null: partition.num_clients"
    )
    classes: list[str] | None = Field(
        None, min_length=1, description="names of the classes in order, which clients' folders of images are called by"
    )
    num_classes: Positive | None = Field(
        None, description="K; null: as many as `classes` names, or as the dataset that `data` names has"
    )
    input_shape: list[Positive] | None = Field(
        None, min_length=3, max_length=3, description="[channels, height, width]; null: of the dataset `data` names"
    )
    quorum: float = Field(
        0.5, gt=0, le=1, description="share of a round's participants without whose good answers no round is concluded"
    )
    deadline: float = Field(
        300.0, gt=0, description="seconds after which a round is concluded without those who have not answered"
    )

    @model_validator(mode="after")
    def _one_number_of_classes(self) -> FederationSection:
        if self.classes is not None:
            if len(set(self.classes)) < len(self.classes):
                raise ValueError("classes names a class twice")
            if self.num_classes not in (None, len(self.classes)):
                raise ValueError(f"num_classes is {self.num_classes}, but classes names {len(self.classes)}")
        return self


class ConfigModel(Section):
    """A whole config file."""

    schema_version: Literal[1] = Field(1, description="of this file's format")
    name: Annotated[str, AfterValidator(_folder_name)] = Field(
        "run", description="of the run folder: letters, digits, `.`, `_`, `-`", json_schema_extra=NEUTRAL
    )
    preset: PresetName = Field("sound", description="the reading of every open point of the paper")
    data: DataSection = DataSection()
    partition: PartitionSection = PartitionSection()
    models: list[Any] = Field(min_length=1, description="networks; client i gets entry i modulo their number")
    prototypes: PrototypesSection = PrototypesSection()
    train: TrainSection = TrainSection()
    evaluate: EvaluateSection = EvaluateSection()
    wire: WireSection = WireSection()
    robust: RobustSection = RobustSection()
    checkpoint: CheckpointSection = CheckpointSection()
    federation: FederationSection = FederationSection()
    algorithms: list[Any] = Field(
        min_length=1, description="names, or mappings with `name`, `label`, `wire` and hyper-parameters"
    )
    seeds: Annotated[list[Seed], AfterValidator(_all_different)] = Field(
        [0],
        min_length=1,
        description="of weights, batches and draws, not of the partition, which has partition.seed; one run each",
    )
    keep_models: bool = Field(
        False,
        description="whether every client's network, as it ended, is kept in the run folder's `models/`; read by "
        "`tinyproto run` and `tinyproto resume`, since in a federation the clients have them",
        json_schema_extra=NEUTRAL_ON_RESUME,
    )


def schema_fields(section: type[BaseModel] = ConfigModel, path: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Yield each key of the schema in full, such as `train.rounds`, with its field; sections come before their keys."""
    for name, field in section.model_fields.items():
        yield f"{path}{name}", field
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from schema_fields(field.annotation, f"{path}{name}.")


def neutral_keys(*, on_resume: bool = False) -> tuple[str, ...]:
    """Return the dotted keys that do not change results; with `on_resume` only those that a resumed run may change.

    `data.root` is not one of them: it decides which images `npz` and `image_folder` read.
    """
    marks = [NEUTRAL_ON_RESUME] if on_resume else [NEUTRAL, NEUTRAL_ON_RESUME]
    return tuple(key for key, field in schema_fields() if field.json_schema_extra in marks)
