"""The schema of a config file: each key with its type, bounds, default and description."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator
from pydantic.config import JsonDict
from pydantic.fields import FieldInfo

from tinyproto.algorithms.defence import Defence, DefenceName
from tinyproto.core.masks import MaskKind
from tinyproto.core.sizes import bytes_of
from tinyproto.core.task import LastBatch
from tinyproto.data.images import CountedSamples, Dtype, TestScope
from tinyproto.data.normalise import Normalise
from tinyproto.data.partition import KEYS_OF_KIND, REQUIRED, Partition, PartitionKind
from tinyproto.data.sources import SOURCES, Progress, Request, part_name, silent
from tinyproto.engine.client import PrototypeSamples
from tinyproto.engine.participation import EvaluatedClients
from tinyproto.engine.training import Precision, TrainerName
from tinyproto.memory import AUTO
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


def _all_different(values: list[Any]) -> list[Any]:
    if len(set(values)) < len(values):
        raise ValueError(f"{values} has a value twice")
    return values


def _folder_name(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
        raise ValueError(
            f"{name!r} is not a valid folder name; use letters, digits, '.', '_' and '-', a letter or digit first"
        )
    return name


def _amount(text: str) -> str:
    bytes_of(text)
    return text


def _memory(text: str) -> str:
    return text if text == AUTO else _amount(text)


class Section(BaseModel):
    """A section that allows no unknown keys and converts no values."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class NormaliseSection(Section):
    """Constants of normalisation: a network sees (raw − mean) / std."""

    mean: float | list[float]
    std: float | list[float]


class DataSection(Section):
    """The dataset."""

    name: str = Field(
        "digits",
        description="cifar10, cifar100, tiny_imagenet, image_folder, npz, table, or digits, wine, signals (embedded)",
    )
    root: str | None = Field(
        None,
        description="folder of the dataset's files, or the .npz, .csv or .parquet file; null: `data`; embedded "
        "datasets need none",
    )
    image_size: Positive | None = Field(
        None, description="image_folder: height and width to resize all images to; null: all images have the same size"
    )
    cache: str | None = Field(
        None,
        description="tiny_imagenet, image_folder: folder for decoded images; null: beside the images",
        json_schema_extra=NEUTRAL,
    )

    first_classes: Annotated[int, Field(ge=2)] | None = Field(
        None, description="number of classes to use, in the dataset's order; null: all"
    )
    label: str | None = Field(None, description="table: the column of labels; null: `label`")
    columns: Annotated[list[str], AfterValidator(_all_different)] | None = Field(
        None, min_length=1, description="table: the columns of features; null: all others, which have to be numbers"
    )
    vocabulary: Annotated[int, Field(ge=2)] | None = Field(
        None, description="npz, table: inputs are token ids 0 … vocabulary − 1; null: no token ids, or those of the .npz"
    )
    normalise: Literal["auto", "none"] | NormaliseSection = Field(
        "auto",
        description="auto: pixels to −1 … 1, floats to mean 0 and std 1 of each column or channel, over the training "
        "samples (in a federation, each client over its own); none: as stored; {mean: …, std: …}: these constants, a "
        "number or a list each",
    )

    @model_validator(mode="after")
    def _only_what_the_dataset_reads(self) -> DataSection:
        for key, readers in (
            ("image_size", ("image_folder",)),
            ("cache", ("tiny_imagenet", "image_folder")),
            ("label", ("table",)),
            ("columns", ("table",)),
            ("vocabulary", ("npz", "table")),
        ):
            if getattr(self, key) is not None and self.name not in readers:
                raise ValueError(f"{key} is read by {' and '.join(readers)}, not by {self.name}; remove it")
        asked, most = self.first_classes, self._known_classes
        if asked is not None and most is not None and asked > most:
            raise ValueError(f"first_classes is {asked}, but {self.name} has {most} classes")
        return self

    @property
    def _known_classes(self) -> int | None:
        """Return K if it is the same for every copy of the dataset."""
        source = SOURCES.get(self.name)
        return None if source is None or source.always is None else source.always[0]

    @property
    def dataset(self) -> str:
        """Return the dataset's name in results, if its files are complete."""
        if self.name in ("image_folder", "npz", "table") and self.root is not None:
            path = Path(self.root).expanduser().resolve()
            return part_name(path.name if self.name == "image_folder" else path.stem, self.first_classes)
        return self.name if self.first_classes == self._known_classes else part_name(self.name, self.first_classes)

    def request(self, progress: Progress = silent) -> Request:
        """Return the arguments of the dataset's source."""
        root, cache = (None if path is None else Path(path).expanduser() for path in (self.root, self.cache))
        return Request(
            root, cache, self.image_size, progress, self.first_classes, self.label or "label",
            None if self.columns is None else tuple(self.columns), self.vocabulary, self.normalisation,
        )  # fmt: skip

    @property
    def normalisation(self) -> Normalise:
        """Return `normalise` in plain values."""
        return self.normalise if isinstance(self.normalise, str) else self.normalise.model_dump()


class PartitionSection(Section):
    """The samples of each client."""

    kind: PartitionKind = Field(
        "dirichlet",
        description="dirichlet: a draw spreads each class over the clients; iid: equal parts at random; pathological: "
        "a few classes per client; quantity: sizes are drawn; file: read from a file",
    )
    num_clients: Positive | None = Field(None, description="M; null: 20, or the number of clients in `file`")
    alpha: float | None = Field(
        None,
        gt=0,
        description="dirichlet, quantity: concentration; null: 0.1; a small value gives few classes or unequal sizes",
    )
    classes_per_client: Positive | None = Field(None, description="pathological: number of classes per client")
    file: str | None = Field(None, description="file: a .json or .npz with the train and test samples of each client")
    seed: Annotated[int, Field(ge=0, lt=2**32)] = Field(
        1, description="seed of the draw; 1 gives the paper's partitions"
    )
    train_fraction: float = Field(0.75, gt=0, lt=1, description="fraction of a client's samples used for training")
    min_samples: Positive = Field(
        1, description="minimum number of samples per client; if 1 000 draws do not reach it, the last one is repaired"
    )

    @model_validator(mode="before")
    @classmethod
    def _only_what_the_kind_reads(cls, values: Any) -> Any:
        """Add the defaults of the kind, and refuse keys that only other kinds read."""
        kind = values.get("kind", "dirichlet") if isinstance(values, Mapping) else None
        if not isinstance(kind, str) or kind not in KEYS_OF_KIND:
            return values
        given = {key: value for key, value in values.items() if value is not None}
        for key in ("num_clients", "alpha", "classes_per_client", "file"):
            if KEYS_OF_KIND[kind].get(key) is REQUIRED and key not in given:
                raise ValueError(f"kind {kind} needs partition.{key}")
            if key not in KEYS_OF_KIND[kind] and key in given:
                readers = " and ".join(other for other, read in KEYS_OF_KIND.items() if key in read)
                raise ValueError(f"{key} is read by kind {readers}, not by {kind}; remove it")
        return {**values, **KEYS_OF_KIND[kind], **given}

    def asked(self) -> Partition:
        """Return the partition to draw."""
        return Partition(**{key: value for key, value in self.model_dump().items() if value is not None})


class PrototypesSection(Section):
    """Prototypes and their compression."""

    dim: Positive = Field(500, description="d, the number of features")
    cps_dim: Positive | None = Field(50, description="s, the number of dimensions per class; null: all d")
    byte_budget: Annotated[str, AfterValidator(_amount)] | None = Field(
        None,
        description="instead of cps_dim: wire bytes per client and round, such as 2kB; s is the largest value for "
        "which the frames up and down, with rows of all classes, fit",
    )
    mask_seed: Seed = Field(0, description="seed of the CPS masks, which both sides derive and never send")
    masks: MaskKind = Field(
        "balanced",
        description="balanced: dimensions used equally, classes far apart; random: used equally; blocks: as published",
    )
    samples: PrototypeSamples = Field(
        "all", description="samples of a local prototype: all training samples, or those seen in the round"
    )
    counted_samples: CountedSamples = Field(
        "train", description="samples that n_ij counts: training samples, or all samples of a client"
    )

    @model_validator(mode="before")
    @classmethod
    def _one_says_how_much(cls, values: Any) -> Any:
        """Replace the default s if there is a budget."""
        if not isinstance(values, Mapping) or values.get("byte_budget") is None:
            return values
        if values.get("cps_dim") is not None:
            raise ValueError("cps_dim and byte_budget exclude each other; set one of them to null")
        return {**values, "cps_dim": None}


class TrainSection(Section):
    """The clients' training."""

    rounds: Positive = Field(300, description="T, the number of rounds")
    local_epochs: Positive = Field(1, description="epochs per round")
    batch_size: Positive = Field(32, description="samples per step")
    learning_rate: float = Field(0.01, gt=0, description="learning rate of plain SGD")
    participation: float = Field(1.0, gt=0, le=1, description="fraction of the clients that participate in a round")
    dropout: Probability | str = Field(
        0.0,
        description="simulation only: probability that a participant drops out of a round and loses its work; or a "
        "CSV file with the clients that drop out or are late in each round",
    )
    late: Probability = Field(
        0.0, description="simulation only: probability that a participant's upload misses the deadline and is not used"
    )
    max_left_out: float = Field(
        0.5,
        ge=0,
        le=1,
        description="simulation only: fraction of a round's participants that may be left out because their training "
        "diverged; the run ends if there are more, or if all diverge",
        json_schema_extra=NEUTRAL_ON_RESUME,
    )
    shuffle: bool = Field(
        True, description="true: new batches in each epoch; false: the same batches in the same order"
    )
    last_batch: LastBatch = Field(
        "join", description="incomplete last batch: join (if under half a batch, with the previous one), keep, drop"
    )
    head_dropout: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="fraction of features dropped before the head, in networks that support it: EfficientNet-B0",
    )
    trainer: TrainerName = Field(
        "auto",
        description="eager: the reference; graphed (GPU): captures the steps of a client; stacked (GPU): trains all "
        "clients with the same network together; auto: the fastest for this number of rounds",
        json_schema_extra=NEUTRAL,
    )
    precision: Precision = Field(
        "float32",
        description="products on a GPU: float32 uses TF32 in convolutions, as the published runs; tf32 also in matrix "
        "products; exact never",
    )
    workers: Literal["auto"] | Positive = Field(
        "auto",
        description="processes that train clients in parallel; auto: one per core if the run is long enough, and one "
        "on a GPU or with several parallel cells",
        json_schema_extra=NEUTRAL_ON_RESUME,
    )
    client_memory: Annotated[str, AfterValidator(_memory)] = Field(
        "auto",
        description="memory of all clients' networks and states, such as 2GB; the least recently used ones move to "
        "disk if it is exceeded; auto: a quarter of the memory of the machine, or of the GPU if they are there",
        json_schema_extra=NEUTRAL_ON_RESUME,
    )
    parallel_cells: Literal["auto"] | Positive = Field(
        1,
        description="cells (one algorithm with one seed) that run in parallel, each in its own process; fewer if "
        "memory is short; auto: up to 8 on a GPU, one per core on a CPU if there are many long cells",
        json_schema_extra=NEUTRAL_ON_RESUME,
    )
    device: str = Field("auto", description="auto, cpu, cuda or cuda:N", json_schema_extra=NEUTRAL)

    @model_validator(mode="after")
    def _one_says_who_is_late(self) -> TrainSection:
        if isinstance(self.dropout, str) and self.late:
            raise ValueError("late and a file in dropout exclude each other; remove late")
        return self


class EvaluateSection(Section):
    """Evaluation; all three rules are always computed."""

    every: Positive = Field(1, description="rounds between evaluations; the closing exchange always evaluates")
    clients: EvaluatedClients = Field(
        "auto", description="all, participants, or auto: all if all participate; the closing exchange evaluates all"
    )
    scope: TestScope = Field(
        "own",
        description="test samples of a client: own, or all, those of all clients, also of classes it never saw "
        "(simulation only)",
    )
    rule: Rule = Field(
        "global", description="headline of prototype methods: the head, or the nearest global or local prototype"
    )
    statistic: Statistic = Field("last10", description="headline over rounds: best, last, or mean of the last 10")


class WireSection(Section):
    """Messages and their value types; docs/how-to/fewer_bytes.md compares their costs."""

    up: ValueName = Field("float32", description="value type of uploads")
    down: ValueName = Field("float32", description="value type of downloads")
    rounding: Rounding = Field(
        "nearest", description="nearest: to the nearest value of the type; stochastic: up or down at random, unbiased"
    )
    download: Download = Field(
        "all",
        description="rows sent to a client for training: all classes, or held, the classes of its last upload; an "
        "evaluation by global prototypes gets all rows, counted separately",
    )

    def settings(self) -> WireSettings:
        """Return the settings for the engine."""
        return WireSettings(self.up, self.down, self.rounding, self.download)


class RobustSection(Section):
    """The server's defence against hostile clients; docs/explain/hostile_clients.md has measurements."""

    defence: DefenceName | Literal["auto"] = Field(
        "auto",
        description="guard removes rows far from those of the other holders of a class; median and trimmed_mean "
        "replace rows coordinate by coordinate; krum keeps the most central clients; each needs all uploads of a "
        "round at once, without streaming; auto: guard in a real federation, none in a simulation",
    )
    tolerance: float = Field(
        3.0, gt=1, description="guard: largest distance of a row from its class's centre, in typical distances"
    )
    hostile: float = Field(
        0.2, gt=0, lt=0.5, description="trimmed_mean, krum: fraction of the clients that may be hostile"
    )
    size_ratio: float | None = Field(
        10.0,
        ge=1,
        description="a client's number of samples counts as at most this multiple of the median client's, in μ, in "
        "weights of averages and in accuracy over all clients; null: no limit",
    )

    def settings(self, otherwise: DefenceName) -> Defence:
        """Return the settings for the engine; `otherwise` replaces `auto`."""
        return Defence(
            otherwise if self.defence == "auto" else self.defence, self.tolerance, self.hostile, self.size_ratio
        )


class CheckpointSection(Section):
    """Checkpoints, which bound the work that a killed run loses."""

    every_seconds: float = Field(
        30.0, ge=0, description="seconds between checkpoints; 0: after each round", json_schema_extra=NEUTRAL
    )


class FederationSection(Section):
    """A real federation over a network, read by `tinyproto serve`; docs/start/federation.md explains how to run one."""

    clients: Positive | None = Field(
        None, description="number of clients, with ids 0 … clients − 1; null: partition.num_clients"
    )
    classes: list[str] | None = Field(
        None, min_length=1, description="names of the classes in order; the clients' image folders have these names"
    )
    num_classes: Positive | None = Field(
        None, description="K; null: the length of `classes`, or the number of classes of the dataset in `data`"
    )
    input_shape: list[Positive] | None = Field(
        None,
        min_length=1,
        description="shape of a sample, such as [channels, height, width]; null: that of the dataset in `data`, or the "
        "number of `data.columns`",
    )
    dtype: Dtype | None = Field(
        None, description="type of the clients' inputs: images, values, token ids; null: that of the dataset in `data`"
    )
    quorum: float = Field(
        0.5, gt=0, le=1, description="fraction of a round's participants whose valid replies a round needs"
    )
    deadline: float = Field(
        300.0, gt=0, description="seconds after which a round ends without the clients that have not replied"
    )

    @model_validator(mode="after")
    def _one_number_of_classes(self) -> FederationSection:
        if self.classes is not None:
            if len(set(self.classes)) < len(self.classes):
                raise ValueError("classes has a name twice")
            if self.num_classes not in (None, len(self.classes)):
                raise ValueError(f"num_classes is {self.num_classes}, but classes has {len(self.classes)} names")
        return self


class ConfigModel(Section):
    """A config file."""

    schema_version: Literal[1] = Field(1, description="version of the file format")
    name: Annotated[str, AfterValidator(_folder_name)] = Field(
        "run", description="name of the run folder: letters, digits, `.`, `_`, `-`", json_schema_extra=NEUTRAL
    )
    preset: PresetName = Field("sound", description="choice for each open point of the paper")
    data: DataSection = DataSection()
    partition: PartitionSection = PartitionSection()
    models: list[Any] = Field(min_length=1, description="networks; client i gets entry i modulo the number of entries")
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
        description="seeds of weights, batches and draws, one run each; the partition has partition.seed",
    )
    keep_models: bool = Field(
        False,
        description="true: keep the final network of each client in the run folder's `models/`; read by `tinyproto "
        "run` and `tinyproto resume`, since in a federation the clients keep their networks",
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
