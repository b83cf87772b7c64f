"""The sections `data` and `partition` of a config, and the parts that all sections share."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator
from pydantic.config import JsonDict

from tinyproto.data.normalise import Normalise
from tinyproto.data.partition import KEYS_OF_KIND, REQUIRED, Partition, PartitionKind
from tinyproto.data.sources import SOURCES, Progress, Request, part_name, silent

Positive = Annotated[int, Field(ge=1)]

NEUTRAL: JsonDict = {"neutral": "run"}
"""Mark of a key that does not change results, or only their rounding; two runs may differ in it."""


def all_different(values: list[Any]) -> list[Any]:
    """Return the list; raise a ValueError if it has a value twice."""
    if len(set(values)) < len(values):
        raise ValueError(f"{values} has a value twice")
    return values


class Section(BaseModel):
    """A section that allows no unknown keys and converts no values."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class NormaliseSection(Section):
    """Constants of normalisation: a network sees (raw − mean) / std."""

    mean: float | list[float]
    std: float | list[float]


Normalisation = Literal["auto", "none"] | NormaliseSection


def plain(normalise: Normalisation) -> Normalise:
    """Return `normalise` in plain values."""
    return normalise if isinstance(normalise, str) else normalise.model_dump()


class DataSection(Section):
    """The dataset."""

    name: str = Field(
        "digits",
        description="cifar10, cifar100, tiny_imagenet, image_folder, npz, table, or digits, wine, signals (embedded)",
    )
    root: str | None = Field(
        None,
        description="folder of the dataset's files, or the .npz, .csv or .parquet file; null: `data`; embedded "
        "datasets need none; a relative path starts at the current folder, as all paths of a config",
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
    columns: Annotated[list[str], AfterValidator(all_different)] | None = Field(
        None, min_length=1, description="table: the columns of features; null: all others, which have to be numbers"
    )
    vocabulary: Annotated[int, Field(ge=2)] | None = Field(
        None,
        description="npz, table: inputs are token ids 0 … vocabulary − 1; null: none, or those of the .npz",
    )
    normalise: Normalisation = Field(
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
        """Return the arguments of the dataset's source; its paths are absolute, so that an error shows the place."""
        root, cache = (None if path is None else Path(path).expanduser().absolute() for path in (self.root, self.cache))
        return Request(
            root, cache, self.image_size, progress, self.first_classes, self.label or "label",
            None if self.columns is None else tuple(self.columns), self.vocabulary, plain(self.normalise),
        )  # fmt: skip


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
