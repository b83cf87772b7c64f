"""The schema of a config file: each key with its type, bounds, default and description."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, Field, model_validator
from pydantic.config import JsonDict
from pydantic.fields import FieldInfo

from tinyproto.algorithms.defence import Defence, DefenceName
from tinyproto.config.data_section import NEUTRAL, DataSection, PartitionSection, Positive, Section, all_different
from tinyproto.core.masks import MaskKind
from tinyproto.core.sizes import bytes_of
from tinyproto.core.task import LastBatch
from tinyproto.data.dataset import CountedSamples, Dtype, TestScope
from tinyproto.engine.client import PrototypeSamples
from tinyproto.engine.participation import EvaluatedClients
from tinyproto.engine.training import Precision, TrainerName
from tinyproto.imports import unknown
from tinyproto.memory import AUTO
from tinyproto.wire.values import Download, Rounding, ValueName, WireSettings

PresetName = Literal["sound", "reference", "paper", "published"]
Rule = Literal["head", "global", "local"]
Statistic = Literal["best", "last", "last10"]
Seed = Annotated[int, Field(ge=0)]
Probability = Annotated[float, Field(ge=0, lt=1)]

TRACKERS = ("tensorboard", "wandb", "trackio", "mlflow")

NEUTRAL_ON_RESUME: JsonDict = {"neutral": "resume"}
"""Mark of a result-neutral key that may also differ between the start of a run and its resumption."""


def _trackers(names: list[str]) -> list[str]:
    for name in names:
        if name not in TRACKERS:
            raise ValueError(unknown("tracker", name, TRACKERS))
    return list(dict.fromkeys(names))


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
    head_dropout_in_place: bool = Field(
        False,
        description="true: the features that the head drops are dropped for the pull and for prototypes gathered while "
        "training too, as in the released code; false: for the head alone",
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
    models: list[Any] = Field(
        [],
        description="networks, required in a simulation; client i gets entry i modulo the number of entries; a "
        "coordinator needs them only if parts of networks are exchanged",
    )
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
    seeds: Annotated[list[Seed], AfterValidator(all_different)] = Field(
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
    tracking: Annotated[list[str], AfterValidator(_trackers)] = Field(
        [],
        description=f"trackers that are told each round, into the run folder's `tracking/`: {', '.join(TRACKERS)}",
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
