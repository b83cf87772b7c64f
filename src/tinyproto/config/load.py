"""From YAML and `key=value` overrides to a Config: preset first, then the file, then the overrides."""

from __future__ import annotations

import copy
import re
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

import tinyproto
from tinyproto.config.algorithms import AlgorithmEntry, resolve_algorithms
from tinyproto.config.presets import PRESETS
from tinyproto.config.schema import ConfigModel, FederationSection, RobustSection, WireSection, schema_fields
from tinyproto.data.images import Images
from tinyproto.data.partition_kinds import OWN_KEYS
from tinyproto.data.sources import check_name
from tinyproto.errors import ConfigError
from tinyproto.imports import nearest_name, unknown


@dataclass(frozen=True)
class Config:
    """A checked config, its algorithms resolved to hyper-parameters."""

    model: ConfigModel
    algorithms: tuple[AlgorithmEntry, ...]

    def resolved(self) -> dict[str, Any]:
        """Everything written out, presets and defaults included: loading it again gives the same config."""
        values = self.model.model_dump()
        values["algorithms"] = [entry.resolved() for entry in self.algorithms]
        return values


def completed(resolved: Mapping[str, Any]) -> dict[str, Any]:
    """A resolved config of any release: what came later has the values that it was run with."""
    return {
        "wire": WireSection().model_dump(),
        "federation": FederationSection().model_dump(),
        "robust": RobustSection().model_dump(),
        "keep_models": False,
        **resolved,
        "train": {"max_left_out": 0.5, "dropout": 0.0, "late": 0.0, **resolved.get("train", {})},
        "data": {"first_classes": None, **resolved.get("data", {})},
        "prototypes": {"byte_budget": None, **resolved.get("prototypes", {})},
        "algorithms": [completed_entry(entry) for entry in resolved.get("algorithms", [])],
    }


def completed_entry(entry: Mapping[str, Any]) -> dict[str, Any]:
    """The same of one algorithm."""
    later: dict[str, Any] = {}
    if "cps_dim" in entry:
        later["byte_budget"] = None
        if "margin_cap" in entry:
            later["max_length"] = None
    return {**later, **entry}


SMALLEST = "the smallest has two lines, `models: [small_cnn_a]` and `algorithms: [local, tinyproto_ft]`"
"""For who has no config yet; docs/configuration.md says the same."""


BUILT_IN = ("quickstart", "federation")
"""Configs that come with the package: configs/NAME.yaml of a checkout, and in a wheel beside this code."""


def load_config(path: Path, overrides: Sequence[str] = ()) -> Config:
    """Read a config file, or the built-in config of that name, and apply `dotted.key=value` overrides."""
    try:
        text = _file(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        remedy = f"name a built-in one ({', '.join(BUILT_IN)}) or write it: {SMALLEST}"
        raise ConfigError(f"no config file at {path}; {remedy}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the config file {path}: {error}") from error
    values = _yaml(text, str(path))
    if not isinstance(values, dict):
        raise ConfigError(f"{path} is not a config: it has to hold keys and values, such as `name: my_run`")
    return parse_config(overridden(values, overrides), source=str(path))


def _file(path: Path) -> Path:
    """Return the file of a built-in config if the path is just its name and no file is there; else the path."""
    if str(path) not in BUILT_IN or path.is_file():
        return path
    package = Path(tinyproto.__file__).parent
    in_wheel = package / "configs" / f"{path}.yaml"
    return in_wheel if in_wheel.is_file() else package.parents[1] / "configs" / f"{path}.yaml"


def overridden(values: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """Config values with `dotted.key=value` overrides applied to a copy of them."""
    changed = copy.deepcopy(dict(values))
    for override in overrides:
        _apply(changed, override)
    _forget_another_kind(changed, {override.partition("=")[0].strip() for override in overrides})
    return changed


def parse_config(values: Mapping[str, Any], source: str = "the config", images: Images | None = None) -> Config:
    """Check a config given as plain values; with `images` it is for Python, where data and networks are objects."""
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
        raise ConfigError(f"{source}: {_sentence(error)}") from None
    if images is None:
        check_name(model.data.name)
    else:
        model = model.model_copy(update={"data": model.data.model_copy(update={"name": images.name})})
    for entry in model.models:
        if images is None and not isinstance(entry, str):
            raise ConfigError(f"{source}: models: {entry!r} is not a name or a dotted path package.module:factory")
    dim, cps_dim = model.prototypes.dim, model.prototypes.cps_dim
    if cps_dim is not None and cps_dim > dim:
        raise ConfigError(
            f"{source}: prototypes.cps_dim ({cps_dim}) is greater than prototypes.dim ({dim}); "
            "a class cannot own more dimensions than there are"
        )
    return Config(model, resolve_algorithms(model, preset, source))


def _yaml(text: str, source: str) -> Any:
    try:
        return parse_yaml(text)
    except yaml.YAMLError as error:
        problem = getattr(error, "problem", None) or "it cannot be read"
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark is not None else ""
        raise ConfigError(f"{source}{where}: not valid YAML: {problem}") from None


def _apply(values: dict[str, Any], override: str) -> None:
    """Set one dotted key; whether the key exists is for the schema to say."""
    key, separator, text = override.partition("=")
    if not separator or not key.strip():
        raise ConfigError(f"override {override!r} is not of the form key=value, such as train.rounds=10")
    *parents, last = key.strip().split(".")
    place = values
    for depth, parent in enumerate(parents):
        if place.get(parent) is None:
            place[parent] = {}
        if not isinstance(place[parent], dict):
            raise ConfigError(f"override {override!r}: {'.'.join(parents[: depth + 1])} has no keys of its own")
        place = place[parent]
    place[last] = _yaml(text, f"override {override!r}")


def _forget_another_kind(values: dict[str, Any], overridden: Collection[str]) -> None:
    """Where an override chooses another kind of partition, what the file says for its own kind no longer counts."""
    section = values.get("partition")
    if "partition.kind" not in overridden or not isinstance(section, dict):
        return
    kind = section.get("kind")
    if isinstance(kind, str) and kind in OWN_KEYS:
        own = {key for keys in OWN_KEYS.values() for key in keys}
        for key in own & section.keys():
            if OWN_KEYS[kind].get(key) is None and f"partition.{key}" not in overridden:
                del section[key]


_PLAIN_WORDS = {
    "too_short": "at least one is needed",
    "list_type": "a list is needed, such as [a, b]",
    "model_type": "keys and values are needed, such as {key: value}",
}


def _sentence(error: ValidationError) -> str:
    """The first thing that is wrong, in words, with the key and, for an unknown key, the nearest valid one."""
    errors = error.errors()
    first = next((found for found in errors if found["type"] == "extra_forbidden"), errors[0])
    place = [str(part) for part in first["loc"]]
    several = [found for found in errors if found["loc"][:-1] == first["loc"][:-1] and _is_branch(found["loc"])]
    if several:
        words = " or ".join(_said(found).removeprefix("input should be ") for found in several)
        return f"{'.'.join(place[:-1])}: input should be {words}, not {first['input']!r}"
    key = ".".join(place)
    if first["type"] == "extra_forbidden":
        return f"unknown key {key!r}{_nearest_key(place)}"
    if first["type"] == "missing":
        return f"the key {key!r} is missing"
    if first["type"] == "value_error":
        return f"{key}: {first['ctx']['error']}"
    return f"{key}: {_said(first)}, not {first['input']!r}"


def _is_branch(place: Sequence[str | int]) -> bool:
    """Where a key takes this or that, pydantic puts which of them behind the key, such as literal['auto']."""
    return re.fullmatch(r"literal\[.*\]|constrained-\w+|int|float|str", str(place[-1])) is not None


def _said(error: ErrorDetails) -> str:
    """What is wrong with a value, in the words that follow its key."""
    plain = _PLAIN_WORDS.get(error["type"])
    return f"{error['msg'][0].lower()}{error['msg'][1:]}" if plain is None else plain


def _nearest_key(place: Sequence[str]) -> str:
    section: type[BaseModel] = ConfigModel
    for name in place[:-1]:
        annotation = section.model_fields[name].annotation
        assert isinstance(annotation, type)
        assert issubclass(annotation, BaseModel)
        section = annotation
    here = nearest_name(place[-1], section.model_fields, cutoff=0.8)
    elsewhere = [] if here else [name for name, _ in schema_fields() if name.rpartition(".")[2] == place[-1]]
    if elsewhere:
        return f", did you mean {elsewhere[0]!r}?"
    nearest = here or nearest_name(place[-1], section.model_fields)
    known = [".".join([*place[:-1], name]) for name in section.model_fields]
    if not nearest:
        return f"; known here: {', '.join(known)}"
    return nearest.replace("'", f"'{'.'.join([*place[:-1], ''])}", 1)


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader without two surprises of YAML 1.1 and with a check for repeated keys."""

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


def parse_yaml(text: str) -> Any:
    """Plain values; raises yaml.YAMLError where the text is not YAML."""
    return yaml.load(text, _Loader)
