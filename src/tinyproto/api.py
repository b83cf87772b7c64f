"""tinyproto from Python: one function that simulates one algorithm, for a notebook or a script."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from torch import nn

from tinyproto.algorithms.base import Client
from tinyproto.config.load import parse_config
from tinyproto.data.dataset import Dataset
from tinyproto.data.partition import KEYS_OF_KIND
from tinyproto.data.sources import load
from tinyproto.engine.round import RoundRecord
from tinyproto.errors import ConfigError
from tinyproto.experiment import Experiment
from tinyproto.models import ModelEntry, small_networks
from tinyproto.simulation.client_store import ClientStore
from tinyproto.tracking.summary import RoundResult


@dataclass(frozen=True, repr=False)
class Result:
    """The results and costs of a simulation, and the clients as they ended."""

    summary: Mapping[str, Any]  # one entry of summary.json
    rounds: Sequence[RoundRecord]
    clients: Sequence[Client]  # as they ended; those that are not in memory are read from disk when used

    def __repr__(self) -> str:
        name, rounds = self.summary["algorithm"], self.summary["rounds"]
        return f"Result({name}, {rounds} rounds, {len(self.clients)} clients, last accuracy {self.accuracy['last']})"

    @property
    def accuracy(self) -> Mapping[str, Mapping[str, float | None]]:
        """`best`, `last`, `last10` and `client_mean`, each by `head`, `global` and `local`."""
        accuracy: Mapping[str, Mapping[str, float | None]] = self.summary["accuracy"]
        return accuracy

    @property
    def left_out(self) -> Mapping[int, int]:
        """By client, the number of rounds it was left out of because its training diverged; usually empty."""
        return {int(client): rounds for client, rounds in self.summary["left_out_clients"].items()}

    @property
    def bytes_per_round(self) -> Mapping[str, Mapping[str, float]]:
        """Measured `payload` (values) and `wire` (complete frames), each `up` and `down`."""
        return {kind: self.summary[f"{kind}_bytes_per_round"] for kind in ("payload", "wire")}


def simulate(
    *,
    data: Dataset | str = "digits",
    algorithm: str | Mapping[str, Any] = "tinyproto_ft",
    models: ModelEntry | Sequence[ModelEntry] | None = None,
    num_clients: int = 20,
    alpha: float = 0.1,
    rounds: int = 30,
    seed: int = 0,
    preset: str = "sound",
    proto_dim: int = 100,
    cps_dim: int | Literal["tenth"] | None = "tenth",
    settings: Mapping[str, Mapping[str, Any]] | None = None,
) -> Result:
    """Simulate one algorithm on one federation.

    Args:
        data: samples from `tinyproto.data.load`, `from_arrays` or `from_dataset`, or a dataset's name.
        algorithm: its name, or a mapping with `name` and hyper-parameters, such as
            `{"name": "tinyproto_ft", "scaling": "none"}`.
        models: registered names, dotted paths, factories or modules; client i gets entry i modulo their number.
            A single entry is for all clients; by default, the small networks for this kind of input.
        num_clients: M.
        alpha: concentration of the Dirichlet partition; for another kind, pass its keys in `settings`.
        rounds: T.
        seed: of weights, batches and draws.
        preset: the reading of the paper's open points.
        proto_dim: d, the width of features.
        cps_dim: s, the number of dimensions of a prototype that travel; None for all, by default a tenth of d.
        settings: other config keys by section, such as `{"train": {"batch_size": 16}}`; they override the above.

    """
    images = load(data) if isinstance(data, str) else data
    if not isinstance(images, Dataset):
        raise ConfigError(
            f"data has to come from tinyproto.data.load, from_arrays or from_dataset, not be a {type(data).__name__}"
        )
    if not isinstance(settings, Mapping | None):
        raise ConfigError(f"settings has to be a mapping of sections to keys and values, not {settings!r}")
    values: dict[str, Any] = {
        "preset": preset,
        "models": _entries(models, images),
        "algorithms": [algorithm],
        "seeds": [_plain(seed)],
        "partition": _partition(settings or {}, num_clients=_plain(num_clients), alpha=_plain(alpha)),
        "prototypes": {"dim": _plain(proto_dim), "cps_dim": _cps_dim(cps_dim, proto_dim, settings or {})},
        "train": {"rounds": _plain(rounds)},
    }
    for section, given in (settings or {}).items():
        if section == "data":
            raise ConfigError("settings: the samples are given by the argument `data`")
        if not isinstance(given, Mapping):
            raise ConfigError(f"settings: {section!r} has to be a mapping of keys to values, not {given!r}")
        values[section] = {**values.get(section, {}), **given}
    experiment = Experiment(parse_config(values, "simulate", images=images), images)
    (cell,) = experiment.cells
    host = experiment.loopback(cell)
    simulation = experiment.simulation(cell, host)
    results: list[RoundResult] = list(simulation.rounds())
    return Result(
        summary=experiment.summarise(cell, simulation, results),
        rounds=[result.record for result in results],
        clients=_Clients(host.store),
    )


class _Clients(Sequence[Client]):
    """The clients of a store as a sequence; the index of a client is its id."""

    def __init__(self, store: ClientStore) -> None:
        self._store = store

    def __len__(self) -> int:
        return len(self._store)

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            return [self[client] for client in range(len(self))[place]]
        client = self._store[range(len(self))[place]]
        client.model.eval()  # evaluation sets its two parts only
        return client


def _cps_dim(given: int | Literal["tenth"] | None, proto_dim: Any, settings: Mapping[str, Any]) -> Any:
    """Return s as given, or a tenth of d, unless a byte budget decides."""
    if given != "tenth":
        return _plain(given)
    prototypes = settings.get("prototypes")
    budgeted = isinstance(prototypes, Mapping) and prototypes.get("byte_budget") is not None
    if budgeted or not isinstance(proto_dim, int | np.integer):  # the schema reports the error
        return None
    return max(1, _plain(proto_dim) // 10)


def _partition(settings: Mapping[str, Any], **arguments: Any) -> dict[str, Any]:
    """Return the arguments that the kind of partition reads; a file has its own number of clients."""
    given = settings.get("partition")
    kind = given.get("kind", "dirichlet") if isinstance(given, Mapping) else "dirichlet"
    if not isinstance(kind, str) or kind not in KEYS_OF_KIND or kind == "file":
        return {}
    return {key: value for key, value in arguments.items() if key in KEYS_OF_KIND[kind]}


def _plain(value: Any) -> Any:
    """Return numpy's numbers as Python's."""
    return value.item() if isinstance(value, np.generic) else value


def _entries(models: ModelEntry | Sequence[ModelEntry] | None, images: Dataset) -> list[Any]:
    if models is None:
        return list(small_networks(images.input_shape, images.vocabulary))
    if isinstance(models, Sequence) and not isinstance(models, str | nn.Module):
        return list(models)
    return [models]
