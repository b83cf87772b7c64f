"""Load a Config from YAML and `key=value` overrides: preset first, then the file, then the overrides."""

from __future__ import annotations

import copy
import re
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

import tinyproto
from tinyproto.config.algorithms import AlgorithmEntry, resolve_algorithms
from tinyproto.config.data_section import DataSection, Section
from tinyproto.config.presets import PRESETS
from tinyproto.config.schema import ConfigModel, schema_fields
from tinyproto.data.dataset import Dataset
from tinyproto.data.partition import KEYS_OF_KIND
from tinyproto.data.sources import find_source
from tinyproto.errors import ConfigError, TinyProtoError
from tinyproto.imports import nearest_name, unknown

BUILT_IN = ("quickstart", "federation")
"""Configs that come with the package: configs/NAME.yaml in a checkout, beside this code in a wheel."""

COMMAND_LINE = "command line"
"""Source of a value in an error, where an override gave it and not the file."""


@dataclass(frozen=True)
class Config:
    """A checked config with the hyper-parameters of its algorithms."""

    model: ConfigModel
    algorithms: tuple[AlgorithmEntry, ...]

    def resolved(self) -> dict[str, Any]:
        """Return all values, presets and defaults included; loading them again gives the same config."""
        return {**self.model.model_dump(), "algorithms": [entry.resolved() for entry in self.algorithms]}


def completed(resolved: Mapping[str, Any]) -> dict[str, Any]:
    """Return a resolved config of an earlier version with the defaults of keys that were added later."""
    filled = dict(resolved)
    for name, field in ConfigModel.model_fields.items():
        if isinstance(field.default, Section):
            filled[name] = {**field.default.model_dump(), **resolved.get(name, {})}
        elif not field.is_required():
            filled.setdefault(name, field.default)
    filled["algorithms"] = [completed_entry(entry) for entry in resolved.get("algorithms", [])]
    return filled


def completed_entry(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return an algorithm of an earlier version with the defaults of keys that were added later."""
    later: dict[str, Any] = {}
    if "cps_dim" in entry:
        later["byte_budget"] = None
        if "margin_cap" in entry:
            later["max_length"] = None
    if "matrices" in entry:
        later["factorised"] = "weights"
    if "distill_weight" in entry:
        later["teachers"] = "all"
    return {**later, **entry}


def has_own_data(resolved: Mapping[str, Any]) -> bool:
    """Return True if `federation` alone says what the samples of a real federation look like, and `data` nothing."""
    section = resolved["federation"]
    return bool(section["input_shape"] and (section["num_classes"] or section["classes"]))


def stated(resolved: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config of a real federation without the sections that say nothing about its clients."""
    unsaid = {"models"} if not resolved["models"] else set()
    if not has_own_data(resolved):
        return {key: value for key, value in resolved.items() if key not in unsaid}
    unsaid |= {"data", "partition"} if resolved["federation"]["clients"] else {"data"}
    fields = DataSection.model_fields
    agreed = {key: value for key, value in resolved["data"].items() if value != fields[key].default}  # such as columns
    found = {key: value for key, value in resolved.items() if key not in unsaid}
    return {**found, "data": agreed} if agreed else found


def load_config(path: Path, overrides: Sequence[str] = ()) -> Config:
    """Load a config file, or the built-in config of that name, and apply `dotted.key=value` overrides."""
    try:
        text = _file(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(
            f"no config file at {path}; use a built-in config ({', '.join(BUILT_IN)}) or write one. The smallest has "
            "two lines: `models: [small_cnn_a]` and `algorithms: [local, tinyproto_ft]`"
        ) from None
    except IsADirectoryError:
        hint = f"; `tinyproto resume {path}` continues the run in it" if (path / "config.yaml").is_file() else ""
        raise ConfigError(f"{path} is a folder; name a config file{hint}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the config file {path}: {error}") from error
    values = parse_yaml(text, str(path))
    if not isinstance(values, dict):
        raise ConfigError(f"{path} is not a config: it has to hold keys and values, such as `name: my_run`")
    try:
        return parse_config(overridden(values, overrides), source=str(path))
    except ConfigError:
        if _would_be_valid_without(overrides, values):
            parse_config(overridden(values, overrides), source=COMMAND_LINE)
        raise


def _would_be_valid_without(overrides: Sequence[str], values: Mapping[str, Any]) -> bool:
    """Return True if the config is valid without one of the overrides, or without all of them."""
    for kept in [[], *([*overrides[:index], *overrides[index + 1 :]] for index in range(len(overrides)))]:
        with suppress(TinyProtoError):
            parse_config(overridden(values, kept))
            return True
    return False


def _file(path: Path) -> Path:
    """Return the file of a built-in config if the path is just its name and no such file exists; else the path."""
    if str(path) not in BUILT_IN or path.is_file():
        return path
    package = Path(tinyproto.__file__).parent
    in_wheel = package / "configs" / f"{path}.yaml"
    return in_wheel if in_wheel.is_file() else package.parents[1] / "configs" / f"{path}.yaml"


def overridden(values: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """Return a copy of the values with `dotted.key=value` overrides applied."""
    changed = copy.deepcopy(dict(values))
    for override in overrides:
        _apply(changed, override)
    _drop_other_kind(changed, {override.partition("=")[0].strip() for override in overrides})
    return changed


def parse_config(values: Mapping[str, Any], source: str = "the config", images: Dataset | None = None) -> Config:
    """Check a config given as plain values; with `images`, data and networks may be Python objects."""
    preset_name = values.get("preset", "sound")
    if not isinstance(preset_name, str) or preset_name not in PRESETS:
        raise ConfigError(f"{source}: {unknown('preset', preset_name, PRESETS)}")
    preset = PRESETS[preset_name]
    merged = dict(values)
    for section, defaults in preset.sections.items():
        given = merged.get(section)
        if given is None or isinstance(given, Mapping):
            merged[section] = {**defaults, **(given or {})}
    try:
        model = ConfigModel.model_validate(merged)
    except ValidationError as error:
        raise ConfigError(f"{source}: {_sentence(error, source)}") from None
    if images is not None:
        model = model.model_copy(update={"data": model.data.model_copy(update={"name": images.name})})
    else:
        find_source(model.data.name)
        for entry in model.models:
            if not isinstance(entry, str):
                raise ConfigError(f"{source}: models: {entry!r} is not a name or a dotted path package.module:factory")
    dim, cps_dim = model.prototypes.dim, model.prototypes.cps_dim
    if cps_dim is not None and cps_dim > dim:
        raise ConfigError(f"{source}: prototypes.cps_dim ({cps_dim}) is greater than prototypes.dim ({dim})")
    return Config(model, resolve_algorithms(model, preset, source))


def parse_yaml(text: str, source: str) -> Any:
    """Return the plain values of a YAML text; raise ConfigError if it is invalid."""
    try:
        return yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        problem = getattr(error, "problem", None) or "it cannot be read"
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark is not None else ""
        raise ConfigError(f"{source}{where}: not valid YAML: {problem}") from None


def _apply(values: dict[str, Any], override: str) -> None:
    """Set one dotted key; the schema checks later that it exists."""
    key, separator, text = override.partition("=")
    if not separator or not key.strip():
        raise ConfigError(f"override {override!r} has to have the form key=value, such as train.rounds=10")
    *parents, last = key.strip().split(".")
    place = values
    for depth, parent in enumerate(parents):
        if place.get(parent) is None:
            place[parent] = {}
        if not isinstance(place[parent], dict):
            raise ConfigError(f"override {override!r}: {'.'.join(parents[: depth + 1])} has no keys")
        place = place[parent]
    try:
        place[last] = parse_yaml(text, f"override {override!r}")
    except ConfigError as error:
        raise ConfigError(f"{error}; a value with spaces needs quotes, such as 'seeds=[0, 1]'") from None


def _drop_other_kind(values: dict[str, Any], overridden: Collection[str]) -> None:
    """Remove the file's keys of another partition kind if an override changes the kind."""
    section = values.get("partition")
    if "partition.kind" not in overridden or not isinstance(section, dict):
        return
    kind = section.get("kind")
    if isinstance(kind, str) and kind in KEYS_OF_KIND:
        for key in {key for keys in KEYS_OF_KIND.values() for key in keys} & section.keys():
            if KEYS_OF_KIND[kind].get(key) is None and f"partition.{key}" not in overridden:
                del section[key]


def _sentence(error: ValidationError, source: str) -> str:
    """Describe the first error with its key and, for an unknown key, the nearest valid one."""
    errors = error.errors()
    first = next((found for found in errors if found["type"] == "extra_forbidden"), errors[0])
    place = [str(part) for part in first["loc"]]
    several = [found for found in errors if found["loc"][:-1] == first["loc"][:-1] and _is_branch(found["loc"])]
    if several:
        words = " or ".join(_reason(found).removeprefix("input should be ") for found in several)
        return f"{'.'.join(place[:-1])}: input should be {words}, not {first['input']!r}"
    key = ".".join(place)
    if first["type"] == "extra_forbidden":
        return f"unknown key {key!r}{_nearest_key(place)}"
    if first["type"] == "missing":
        return f"the key {key!r} is missing"
    if first["type"] == "value_error":
        return f"{key}: {first['ctx']['error']}"
    if first["type"] == "list_type" and isinstance(first["input"], str | int | float):
        asked = f"'{key}=[{first['input']}]'" if source == COMMAND_LINE else f"`{key}: [{first['input']}]`"
        counted = "; it lists the seeds, not their number" if key == "seeds" else ""
        return f"{key}: a list is needed: {asked}, not {first['input']!r}{counted}"
    return f"{key}: {_reason(first)}, not {first['input']!r}"


def _is_branch(place: Sequence[str | int]) -> bool:
    """Return True if the place names a branch of a union, such as literal['auto'], which pydantic adds to the key."""
    return re.fullmatch(r"literal\[.*\]|constrained-\w+|int|float|str", str(place[-1])) is not None


_PLAIN_WORDS = {
    "too_short": "at least one is needed",
    "list_type": "a list is needed, such as [a, b]",
    "model_type": "keys and values are needed, such as {key: value}",
}


def _reason(error: ErrorDetails) -> str:
    return _PLAIN_WORDS.get(error["type"], f"{error['msg'][0].lower()}{error['msg'][1:]}")


def _nearest_key(place: Sequence[str]) -> str:
    """Suggest a key of the same section, or the same name in another section."""
    section: Any = ConfigModel
    for name in place[:-1]:
        section = section.model_fields[name].annotation
    assert issubclass(section, BaseModel)
    here = nearest_name(place[-1], section.model_fields, cutoff=0.8)
    elsewhere = [] if here else [name for name, _ in schema_fields() if name.rpartition(".")[2] == place[-1]]
    if elsewhere:
        return f", did you mean {elsewhere[0]!r}?"
    prefix = ".".join([*place[:-1], ""])
    nearest = here or nearest_name(place[-1], section.model_fields)
    if not nearest:
        return f"; known here: {', '.join(f'{prefix}{name}' for name in section.model_fields)}"
    return nearest.replace("'", f"'{prefix}", 1)


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader, which also refuses repeated keys, reads 1e3 as a number and does not read dates."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, Hashable) and key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} is given twice", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?[0-9]+([.][0-9]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)


def differences(configs: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Return the dotted keys in which configs differ, with the value in each; None if one has no such key."""
    flats = [dict(flat(config)) for config in configs]
    columns = {key: [values.get(key) for values in flats] for values in flats for key in values}
    return {key: values for key, values in columns.items() if any(value != values[0] for value in values)}


def flat(values: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every single value with its dotted key."""
    if isinstance(values, Mapping) and values:
        for key, value in values.items():
            yield from flat(value, f"{place}.{key}" if place else str(key))
    elif isinstance(values, list) and values:
        for index, value in enumerate(values):
            yield from flat(value, f"{place}[{index}]")
    else:
        yield place, values
