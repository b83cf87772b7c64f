"""The `algorithms:` list of a config: names and hyper-parameters to checked entries."""

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

_CHANGES_THE_METHOD = ("cps_dim", "byte_budget", "scaling")
"""An ablation has to be seen as one wherever its numbers are shown."""

FROM_PROTOTYPES = ("cps_dim", "byte_budget", "masks", "mask_seed")
"""Hyper-parameters that the config's `prototypes:` section sets for every algorithm that has them."""

_FINITE = ConfigDict(allow_inf_nan=False)


@dataclass(frozen=True)
class AlgorithmEntry:
    """One algorithm to run, with all its hyper-parameters decided."""

    reference: str  # the name in the config: an id, or a dotted path to an AlgorithmSpec
    spec: AlgorithmSpec
    label: str  # distinguishes two entries of one algorithm
    hyper: Any
    wire: WireSettings = EXACT
    own_wire: bool = False  # whether that is not what the config says for all

    @property
    def title(self) -> str:
        """For people: the method's name, with the label where that says more."""
        return self.spec.title if self.label == self.spec.name else self.label

    def resolved(self) -> dict[str, Any]:
        """The entry with every hyper-parameter written out, and with `wire` where that is its own."""
        entry = {"name": self.reference, "label": self.label, **asdict(self.hyper)}
        return {**entry, "wire": asdict(self.wire)} if self.own_wire else entry

    def build(self, federation: FederationSpec) -> Algorithm:
        """The algorithm for a federation; what does not fit it is an error that names the entry."""
        try:
            return self.spec.build(self.hyper, replace(federation, wire=self.wire))
        except ValueError as error:
            raise ConfigError(f"algorithm {self.label}: {error}") from error


def resolve_algorithms(model: ConfigModel, preset: Preset, source: str) -> tuple[AlgorithmEntry, ...]:
    """Every entry of the list, in order, with labels that are all different."""
    for item in model.algorithms:
        if not isinstance(item, str | Mapping):
            raise ConfigError(f"{source}: algorithms: {item!r} is neither a name nor a mapping with a name")
    given = [{"name": item} if isinstance(item, str) else dict(item) for item in model.algorithms]
    repeats = Counter(str(item.get("name")) for item in given)
    entries = []
    for item in given:
        where = f"{source}: algorithms"
        if "name" not in item:
            raise ConfigError(f"{where}: the entry {item!r} has no name")
        reference = item.pop("name")
        spec = _find(reference, where)
        label = item.pop("label", None)
        if label is not None and (not isinstance(label, str) or not label.strip()):
            raise ConfigError(f"{where}: {spec.name}: label: {label!r} is not a name; give it some text")
        wire = _wire(item.pop("wire", None), model, f"{where}: {spec.name}")
        hyper = _hyper(spec, item, model, preset, f"{where}: {spec.name}")
        if label is None:
            told = (
                item if repeats[str(reference)] > 1 else {key: item[key] for key in item if key in _CHANGES_THE_METHOD}
            )
            told = {**told, **_wire_told(wire, model.wire.settings())}
            details = ",".join(f"{key}={'null' if value is None else value}" for key, value in told.items())
            label = f"{spec.name}({details})" if details else spec.name
        entries.append(AlgorithmEntry(reference, spec, label, hyper, wire, wire != model.wire.settings()))
    for label, count in Counter(entry.label for entry in entries).items():
        if count > 1:
            raise ConfigError(
                f"{source}: algorithms: {label!r} stands there {count} times; tell them apart with `label:`"
            )
    return tuple(entries)


def _wire(given: Any, model: ConfigModel, where: str) -> WireSettings:
    """The config's `wire:` section, with the keys of an entry's own in front."""
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
        reason = f"{first['msg'][0].lower()}{first['msg'][1:]}"
        raise ConfigError(f"{where}: wire.{first['loc'][0]}: {reason}, not {first['input']!r}") from None


def _wire_told(wire: WireSettings, section: WireSettings) -> dict[str, str]:
    """What a label says of an entry that is written in other types than the rest."""
    told: dict[str, str] = {}
    if (wire.up, wire.down) != (section.up, section.down):
        told = {"wire": wire.up} if wire.up == wire.down else {"up": wire.up, "down": wire.down}
    others = {
        key: getattr(wire, key) for key in ("rounding", "download") if getattr(wire, key) != getattr(section, key)
    }
    return {**told, **others}


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
    """Defaults of the dataclass, then the preset, then the config's prototypes section, then the entry's own keys."""
    known = {field.name for field in fields(spec.hyper)}
    for key in given:
        if key not in known:
            raise ConfigError(f"{where}: {unknown('key', key, sorted(known))}")
    prototypes = model.prototypes
    shared = {key: getattr(prototypes, key) for key in FROM_PROTOTYPES}
    for own, other in (("cps_dim", "byte_budget"), ("byte_budget", "cps_dim")):
        if own in given and other not in given:  # it takes the place of the other, which holds for all
            shared[other] = None
    values = {key: value for key, value in {**preset.hyper, **shared, **given}.items() if key in known}
    scaled = values.get("scaling", "count") != "none"
    if preset.global_scale is not None and "global_scale" in known and "global_scale" not in given and scaled:
        values["global_scale"] = _published_scale(spec, model, preset.global_scale, where)
    hints = get_type_hints(spec.hyper)
    for key, value in values.items():
        try:
            values[key] = TypeAdapter(hints[key], config=_FINITE).validate_python(value, strict=True)
        except ValidationError as error:
            reason = error.errors()[0]["msg"]
            raise ConfigError(f"{where}: {key}: {reason[0].lower()}{reason[1:]}, not {value!r}") from None
    try:
        hyper = spec.hyper(**values)
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from None
    cps_dim = getattr(hyper, "cps_dim", None)
    if cps_dim is not None and cps_dim > prototypes.dim:
        raise ConfigError(f"{where}: cps_dim ({cps_dim}) is greater than prototypes.dim ({prototypes.dim})")
    return hyper


def _published_scale(
    spec: AlgorithmSpec, model: ConfigModel, published: Mapping[str, Mapping[str, float]], where: str
) -> float:
    """Of a part of the dataset's classes, that of the whole: it depends on how many samples a class has."""
    scales, name = published.get(spec.name, {}), full_name(model.data.name)
    if name not in scales:
        raise ConfigError(
            f"{where}: the preset {model.preset!r} has no published global_scale (μ) for the dataset "
            f"{model.data.name!r}; set global_scale on this algorithm, to a number or to auto"
        )
    return scales[name]
