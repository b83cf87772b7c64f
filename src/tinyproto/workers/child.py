"""Worker processes: the dataset they share with their parent, and how they describe an error."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tinyproto.data.dataset import Dataset, SharedArray
from tinyproto.errors import LeftOutError, TinyProtoError, one_line
from tinyproto.memory import lacked_memory
from tinyproto.subprocesses import ChildProcess, Parcel


def failure(error: Exception) -> dict[str, str]:
    """Describe an error for the parent: one of this package by its message, another one by its type and place.

    An error of the kind "diverged" would occur again if the cell were run again.
    """
    place = " ".join(getattr(error, "__notes__", []))
    if isinstance(error, LeftOutError):
        return {"error": str(error), "kind": "diverged", "place": place}
    if isinstance(error, TinyProtoError):
        return {"error": str(error), "kind": "ours", "place": place}
    return {"error": one_line(error), "kind": "memory" if lacked_memory(error) else "fault", "place": place}


_FACTS = ("name", "num_classes", "scale", "shift", "class_names", "columns", "vocabulary", "white")
"""Everything of a dataset that is not a tensor."""


class SharedDataset:
    """A dataset in open files that child processes inherit; if it has none, each child loads the dataset."""

    def __init__(self, images: Dataset) -> None:
        assert images.shared is not None
        labels = SharedArray.holding(images.labels.numpy())  # a pipe holds little until a child reads it
        self._parts = {"inputs": images.shared, "labels": labels}
        self._facts = {name: getattr(images, name) for name in _FACTS}

    @property
    def descriptors(self) -> list[int]:
        """The file descriptors that a child has to inherit."""
        return [part.descriptor for part in self._parts.values() if part.descriptor is not None]

    def request(self, config: Mapping[str, Any]) -> Parcel:
        """Return the request that has a child build the experiment."""
        head = {"do": "load", "config": config}
        if len(self.descriptors) < len(self._parts):
            return Parcel(head)
        addresses = {name: part.address() for name, part in self._parts.items()}
        return Parcel({**head, "images": self._facts, **addresses})


class Child(ChildProcess):
    """`grid/process.py` in a process of its own, which has a dataset."""

    def __init__(self, dataset: SharedDataset, config: Mapping[str, Any], variables: Mapping[str, str]) -> None:
        super().__init__("tinyproto.grid.process", variables, dataset.descriptors)
        self.ask(dataset.request(config))


def received_dataset(request: Parcel) -> Dataset | None:
    """Return the dataset in the child; None if the child has to load it."""
    if "images" not in request.head:
        return None
    inputs, labels = (SharedArray(**request.head[name]) for name in ("inputs", "labels"))
    found = request.head["images"]
    facts: dict[str, Any] = {name: tuple(fact) if isinstance(fact, list) else fact for name, fact in found.items()}
    return Dataset(inputs=inputs.tensor, labels=labels.tensor, shared=inputs, **facts)
