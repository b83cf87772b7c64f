"""How prototypes travel: a transform that the client applies on the way out and the server undoes, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from torch import Tensor

from tinyproto.algorithms.base import ClientInfo
from tinyproto.algorithms.streaming import Gathered
from tinyproto.core.aggregate import simple_mean
from tinyproto.core.prototypes import Prototypes


class Upload(NamedTuple):
    """A client's rows, with what the server knows of that client."""

    client: ClientInfo
    rows: Prototypes  # (K, w)


class Transform(Protocol):
    """Between prototypes of width d, which networks understand, and rows of width w, which travel."""

    @property
    def width(self) -> int:
        """w."""
        ...

    @property
    def masks(self) -> Tensor | None:
        """The CPS masks, where the transform has any."""
        ...

    @property
    def agreed(self) -> Mapping[str, str]:
        """What both sides have to mean alike beyond shapes and masks."""
        ...

    def upload(self, prototypes: Prototypes, class_counts: Tensor) -> Prototypes:
        """Client: local prototypes (K, d) and n_ij to the rows it sends (K, w)."""
        ...

    def merge(self, uploads: Sequence[Upload]) -> Prototypes:
        """Server: all uploads to one set of global rows (K, w), as FedProto does."""
        ...

    def normalise(self, uploads: Sequence[Upload]) -> list[Prototypes]:
        """Server: each upload brought back to a client prototype's scale (K, w), as FedTGP needs them."""
        ...

    def compress(self, prototypes: Prototypes) -> Prototypes:
        """Server: global prototypes (K, d) to rows (K, w)."""
        ...

    def reconstruct(self, rows: Prototypes) -> Prototypes:
        """Either side: rows (K, w) to prototypes (K, d)."""
        ...


class SummingTransform(Transform, Protocol):
    """A transform whose `merge` needs no more of the uploads than what was gathered of them."""

    def conclude(self, gathered: Gathered) -> Prototypes:
        """What `merge` would make of the same uploads."""
        ...


def gathered_uploads(uploads: Sequence[Upload], *, measured: bool = False) -> Gathered:
    """Uploads that are all at hand, gathered."""
    if not uploads:
        raise ValueError("nothing to aggregate")
    gathered = Gathered(uploads[0].rows.num_classes, uploads[0].rows.width, measured=measured)
    for upload in uploads:
        gathered.add(*upload)
    return gathered


@dataclass(frozen=True)
class Dense:
    """Prototypes travel as they are."""

    width: int
    masks: None = None

    @property
    def agreed(self) -> Mapping[str, str]:
        """Rows are prototypes."""
        return {"scaling": "none"}

    def upload(self, prototypes: Prototypes, class_counts: Tensor) -> Prototypes:  # noqa: ARG002
        """Unchanged."""
        return prototypes

    def merge(self, uploads: Sequence[Upload]) -> Prototypes:
        """The unweighted mean over the clients that hold a class, eq. (9)."""
        return self.conclude(gathered_uploads(uploads))

    def conclude(self, gathered: Gathered) -> Prototypes:
        """The same mean, of uploads folded in as they arrived."""
        return simple_mean(gathered.sums)

    def normalise(self, uploads: Sequence[Upload]) -> list[Prototypes]:
        """Unchanged."""
        return [upload.rows for upload in uploads]

    def compress(self, prototypes: Prototypes) -> Prototypes:
        """Unchanged."""
        return prototypes

    def reconstruct(self, rows: Prototypes) -> Prototypes:
        """Unchanged."""
        return rows
