"""The `algorithms:` list of a config: from names and hyper-parameters to checked entries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError

from tinyproto.algorithms import ALGORITHMS, Algorithm, AlgorithmSpec, FederationSpec
from tinyproto.config.presets import Preset
from tinyproto.config.schema import ConfigModel, WireSection
from tinyproto.data.sources import full_name
from tinyproto.errors import ConfigError
from tinyproto.imports import load_dotted, unknown
from tinyproto.wire.values import EXACT, WireSettings

_SHOWN_IN_LABEL = ("cps_dim", "byte_budget", "sent_dim", "scaling")
"""Hyper-parameters that an automatic label always shows, because they change the method."""

FROM_PROTOTYPES = ("cps_dim", "byte_budget", "masks", "mask_seed")
"""Hyper-parameters whose default is the config's `prototypes:` section."""


@dataclass(frozen=True)
class AlgorithmEntry:
    """One algorithm to run, with all its hyper-parameters."""

    reference: str  # the name in the config: an id, or a dotted path to an AlgorithmSpec
    spec: AlgorithmSpec
    label: str  # distinguishes two entries of one algorithm
    hyper: Any
    wire: WireSettings = EXACT
    own_wire: bool = False  # True if it differs from the config's `wire:` section

    @property
    def title(self) -> str:
        """Return the method's name, or the label if that says more."""
        return self.spec.title if self.label == self.spec.name else self.label

    def resolved(self) -> dict[str, Any]:
        """Return the entry with all hyper-parameters, and with `wire` if it differs from the config's."""
        entry = {"name": self.reference, "label": self.label, **asdict(self.hyper)}
        return {**entry, "wire": asdict(self.wire)} if self.own_wire else entry

    def build(self, federation: FederationSpec) -> Algorithm:
        """Build the algorithm for a federation; raise ConfigError with the label if it does not fit."""
        try:
            return self.spec.build(self.hyper, replace(federation, wire=self.wire))
        except ValueError as error:
            raise ConfigError(f"algorithm {self.label}: {error}") from error


def resolve_algorithms(model: ConfigModel, preset: Preset, source: str) -> tuple[AlgorithmEntry, ...]:
    """Return all entries of the list in order, with distinct labels."""
    where = f"{source}: algorithms"
    for item in model.algorithms:
        if not isinstance(item, str | Mapping):
            raise ConfigError(f"{where}: {item!r} is neither a name nor a mapping with a name")
    given = [{"name": item} if isinstance(item, str) else dict(item) for item in model.algorithms]
    times = Counter(str(item.get("name")) for item in given)
    entries = [_entry(item, times[str(item.get("name"))] > 1, model, preset, where) for item in given]
    for label, count in Counter(entry.label for entry in entries).items():
        if count > 1:
            raise ConfigError(f"{where}: {count} entries have the label {label!r}; distinguish them with `label:`")
    return tuple(entries)


def _entry(given: dict[str, Any], repeated: bool, model: ConfigModel, preset: Preset, where: str) -> AlgorithmEntry:
    if "name" not in given:
        raise ConfigError(f"{where}: the entry {given!r} has no name")
    reference = given.pop("name")
    spec = _find(reference, where)
    where = f"{where}: {spec.name}"
    label = given.pop("label", None)
    if label is not None and (not isinstance(label, str) or not label.strip()):
        raise ConfigError(f"{where}: label: {label!r} is not a name; it has to be text")
    common = model.wire.settings()
    wire = _wire(given.pop("wire", None), model, where)
    hyper = _hyper(spec, given, model, preset, where)
    if label is None:
        shown = {key: value for key, value in given.items() if repeated or key in _SHOWN_IN_LABEL}
        shown |= _wire_differences(wire, common)
        details = ",".join(f"{key}={'null' if value is None else value}" for key, value in shown.items())
        label = f"{spec.name}({details})" if details else spec.name
    return AlgorithmEntry(reference, spec, label, hyper, wire, wire != common)


def _wire(given: Any, model: ConfigModel, where: str) -> WireSettings:
    """Return the config's `wire:` section with the changes of an entry."""
    if given is None:
        return model.wire.settings()
    if not isinstance(given, Mapping):
        raise ConfigError(f"{where}: wire: {given!r} is not a mapping such as {{up: int8, down: int8}}")
    for key in given:
        if key not in WireSection.model_fields:
            raise ConfigError(f"{where}: wire: {unknown('key', key, sorted(WireSection.model_fields))}")
    try:
        return WireSection.model_validate({**model.wire.model_dump(), **given}).settings()
    except ValidationError as error:
        first = error.errors()[0]
        raise ConfigError(f"{where}: wire.{first['loc'][0]}: {_reason(error)}, not {first['input']!r}") from None


def _wire_differences(wire: WireSettings, common: WireSettings) -> dict[str, str]:
    """Return the parts of a label for an entry whose wire settings differ from the config's."""
    shown: dict[str, str] = {}
    if (wire.up, wire.down) != (common.up, common.down):
        shown = {"wire": wire.up} if wire.up == wire.down else {"up": wire.up, "down": wire.down}
    for key in ("rounding", "download"):
        if getattr(wire, key) != getattr(common, key):
            shown[key] = getattr(wire, key)
    return shown


def _find(reference: Any, where: str) -> AlgorithmSpec:
    if not isinstance(reference, str):
        raise ConfigError(f"{where}: {reference!r} is not a name")
    if ":" in reference:
        spec = load_dotted(reference, ConfigError, "algorithm")
        if not isinstance(spec, AlgorithmSpec):
            raise ConfigError(f"{where}: {reference!r} is {type(spec).__name__}, not an AlgorithmSpec")
        return spec
    if reference not in ALGORITHMS:
        paths = ", or a dotted path package.module:SPEC"
        raise ConfigError(f"{where}: {unknown('algorithm', reference, ALGORITHMS, paths)}")
    return ALGORITHMS[reference]


def _hyper(spec: AlgorithmSpec, given: Mapping[str, Any], model: ConfigModel, preset: Preset, where: str) -> Any:
    """Merge the preset, the config's prototypes section and the entry's keys, each overriding the previous."""
    known = {field.name for field in fields(spec.hyper)}
    for key in given:
        if key not in known:
            raise ConfigError(f"{where}: {unknown('key', key, sorted(known))}")
    shared = {key: getattr(model.prototypes, key) for key in FROM_PROTOTYPES}
    for key, other in (("cps_dim", "byte_budget"), ("byte_budget", "cps_dim")):
        if key in given and other not in given:  # the entry's key replaces the other one of the section
            shared[other] = None
    values = {key: value for key, value in {**preset.hyper_of(spec.name), **shared, **given}.items() if key in known}
    scaled = values.get("scaling", "count") != "none"
    if preset.global_scale is not None and "global_scale" in known and "global_scale" not in given and scaled:
        values["global_scale"] = _published_scale(spec, model, preset.global_scale, where)
    hints = get_type_hints(spec.hyper)
    for key, value in values.items():
        try:
            finite = ConfigDict(allow_inf_nan=False)
            values[key] = TypeAdapter(hints[key], config=finite).validate_python(value, strict=True)
        except ValidationError as error:
            raise ConfigError(f"{where}: {key}: {_reason(error)}, not {value!r}") from None
    try:
        hyper = spec.hyper(**values)
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from None
    cps_dim, dim = getattr(hyper, "cps_dim", None), model.prototypes.dim
    if cps_dim is not None and cps_dim > dim:
        raise ConfigError(f"{where}: cps_dim ({cps_dim}) is greater than prototypes.dim ({dim})")
    return hyper


def _reason(error: ValidationError) -> str:
    reason = error.errors()[0]["msg"]
    return f"{reason[0].lower()}{reason[1:]}"


def _published_scale(
    spec: AlgorithmSpec, model: ConfigModel, published: Mapping[str, Mapping[str, float]], where: str
) -> float:
    """Return the published μ of the dataset, also for a part of its classes: μ depends on the samples per class."""
    scales, name = published.get(spec.name, {}), full_name(model.data.name)
    if name not in scales:
        raise ConfigError(
            f"{where}: the preset {model.preset!r} has no published global_scale (μ) for the dataset "
            f"{model.data.name!r}; set global_scale on this algorithm, to a number or to auto"
        )
    return scales[name]
