"""Print the configuration reference, docs/reference/configuration.md, from the schema.

`make docs` writes the page; a test fails if it is stale.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, get_type_hints

import yaml
from pydantic import TypeAdapter

from tinyproto.algorithms import ALGORITHMS, AlgorithmSpec
from tinyproto.config.algorithms import FROM_PROTOTYPES
from tinyproto.config.data_section import NEUTRAL
from tinyproto.config.presets import PRESETS, Preset
from tinyproto.config.schema import NEUTRAL_ON_RESUME, ConfigModel
from tinyproto.data.sources import SOURCES
from tinyproto.models import NETWORKS
from tinyproto.models.build import SMALL_IMAGES

Schema = Mapping[str, Any]  # JSON schema, as pydantic writes it

INTRODUCTION = """\
# Configuration

<!-- Written by `make docs` from the schema. Change the schema, not this page. -->

This page lists all keys of a config file. The first of these that sets a key decides it: a `key=value` on the command
line, the file, the preset, the default. An unknown key, a wrong type or an invalid value is an error that names the
key. `config.yaml` in a run folder has all keys written out.

Two keys have no default, so this is the smallest config:

```yaml
models: [small_cnn_a]
algorithms: [local, tinyproto_ft]
```

On the command line, write a key with its dots and its value as YAML, in quotes if the shell would split it:

```bash
tinyproto run configs/quickstart.yaml name=other train.rounds=2 'algorithms=[local, {name: fedproto, proto_weight: 1}]'
```

[Concepts](../explain/concepts.md#presets) explains the presets;
[Algorithms](../explain/algorithms.md#four-readings) explains why they differ.

A key marked *neutral* does not change results, except for rounding. A resumed run may have other values of the keys
marked *neutral, also on resume*.
"""

_NEUTRAL_WORDS = {NEUTRAL["neutral"]: "*neutral*", NEUTRAL_ON_RESUME["neutral"]: "*neutral, also on resume*"}


def reference() -> str:
    """Return the page."""
    schema = ConfigModel.model_json_schema()
    parts = [INTRODUCTION, *_section("", schema, schema.get("$defs", {})), *_names(), *_algorithms()]
    return "\n".join(parts)


def _section(path: str, section: Schema, definitions: Schema) -> Iterator[str]:
    """Yield a table of the section's keys, then the sections within it."""
    fields = {key: _resolved(field, definitions) for key, field in section["properties"].items()}
    inner = {key: field for key, field in fields.items() if "properties" in field}
    yield f"## {f'`{path}:`' if path else 'Top level'}\n"
    if path:
        yield f"{section['description']}\n"
    rows = [
        (_code(_dotted(path, key)), _type(field, definitions), _default(key, field, section), _presets(path, key),
         _description(field))
        for key, field in fields.items()
        if key not in inner
    ]  # fmt: skip
    yield _table(("key", "type", "default", "set by presets", "meaning"), rows)
    for key, field in inner.items():
        yield from _section(_dotted(path, key), field, definitions)


def _dotted(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _resolved(field: Schema, definitions: Schema) -> Schema:
    """Return a field with the definition that it refers to."""
    (target,) = field.get("allOf", [field])
    if "$ref" not in target:
        return field
    return {**field, **definitions[target["$ref"].rpartition("/")[2]]}


_WORDS = {"string": "text", "boolean": "`true` or `false`", "null": "`null`", "array": "list", "object": "mapping"}
_BOUNDS = {
    "minimum": "≥ {}", "exclusiveMinimum": "> {}", "maximum": "≤ {}", "exclusiveMaximum": "< {}",
    "minItems": "{} or more", "maxItems": "{} or fewer",
}  # fmt: skip


def _type(field: Schema, definitions: Schema) -> str:
    """Describe type and bounds: `integer ≥ 1 or null`."""
    field = _resolved(field, definitions)
    if "anyOf" in field:
        return " or ".join(_type(option, definitions) for option in field["anyOf"])
    if "const" in field:
        return _value(field["const"])
    if "enum" in field:
        return " or ".join(_value(value) for value in field["enum"])
    kind = str(field.get("type", "anything"))
    words = _WORDS.get(kind, kind)
    if field.get("items"):
        words += f" of {_type(field['items'], definitions)}"
    bounds = ", ".join(form.format(_short(field[name])) for name, form in _BOUNDS.items() if name in field)
    return f"{words}{', ' if kind == 'array' else ' '}{bounds}" if bounds else words


def _short(bound: float) -> float:
    """Return 1 for 1.0, which pydantic 2.7 writes as the bound of a number."""
    return int(bound) if bound == int(bound) else bound


def _default(key: str, field: Schema, section: Schema) -> str:
    return "required" if key in section.get("required", ()) else _value(field["default"])


def _presets(section: str, key: str) -> str:
    """List the presets that set the key, with its value: `join` (sound), `drop` (reference, paper)."""
    users: dict[str, list[str]] = {}
    for name, preset in PRESETS.items():
        values = preset.sections.get(section, {})
        if key in values:
            users.setdefault(_value(values[key]), []).append(name)
    return ", ".join(f"{value} ({', '.join(names)})" for value, names in users.items())


def _names() -> Iterator[str]:
    yield "## Networks\n"
    yield "The names that `models:` accepts, besides a dotted path `package.module:factory`"
    yield "([your own network](../how-to/own_network.md)).\n"
    yield _table(("name", "network"), [(_code(name), _network(name)) for name in NETWORKS])
    yield "## Datasets\n"
    yield f"The names that `data.name` accepts: {', '.join(_code(name) for name in SOURCES)}.\n"


_VARIANTS = {
    "small_cnn_a": "Build two plain 3×3 convolutions, 16 and 32 channels.",
    "small_cnn_b": "Build three 3×3 convolutions with batch normalisation, 16, 32 and 32 channels.",
    "small_cnn_c": "Build one wide 5×5 convolution, 32 channels.",
    "small_cnn_d": "Build a 3×3 stem and two depthwise separable convolutions with batch normalisation, 24, 48 and 48 "
    "channels.",
    "small_mlp_a": "Build an MLP with one layer of 64, for tables and any floats.",
    "small_mlp_b": "Build an MLP with layers of 128 and 64, for tables and any floats.",
    "small_cnn1d_a": "Build two convolutions over time, 16 and 32 channels, for signals (channels, steps).",
    "small_cnn1d_b": "Build three convolutions over time with batch normalisation, 16, 32 and 32 channels.",
    "small_text_a": "Build an embedding of 64 and its mean, for token ids (length,); id 0 is padding.",
    "small_text_b": "Build the same with a convolution over three neighbours.",
    "shufflenet_v2_x0_5": "Build ShuffleNetV2 ×0.5 with d features.",
}
"""Networks that are a factory with some of its arguments fixed."""

_STEMS = {"resnet8": "the stem, and no max-pooling", "shufflenet": "the stem's convolution", "": "the stem"}
"""The layers that keep the size of small images, by the beginning of a network's name."""


def _network(name: str) -> str:
    whole = name.removesuffix(SMALL_IMAGES)
    if name == whole:
        return _VARIANTS.get(name) or _first_line(NETWORKS[name])
    stem = next(words for start, words in _STEMS.items() if name.startswith(start))
    return f"Build `{whole}` for small images, which differs from the paper: stride 1 in {stem}."


def _algorithms() -> Iterator[str]:
    yield "## Algorithms\n"
    yield (
        "An entry of `algorithms:` is a name, or a mapping with `name`, hyper-parameters, `wire` with keys of\n"
        "`wire:` for this entry and, to distinguish two entries, `label`. A name is one of these, or a dotted\n"
        "path `package.module:SPEC`\n"
        "([add an algorithm](../how-to/add_an_algorithm.md)). The columns named after presets show the value of a key\n"
        "under each preset if the entry does not set it.\n"
    )
    for spec in ALGORITHMS.values():
        yield f"### `{spec.name}`\n"
        yield f"{_first_line(spec.build)}\n"
        fields = TypeAdapter(spec.hyper).json_schema().get("properties", {})
        rows = [
            (_code(key), _type(field, {}), *(_hyper_default(spec, key, field, preset) for preset in PRESETS.values()),
             meaning(spec, key))
            for key, field in fields.items()
        ]  # fmt: skip
        yield _table(("key", "type", *PRESETS, "meaning"), rows) if rows else "It has no hyper-parameters.\n"


def meaning(spec: AlgorithmSpec, key: str) -> str:
    """Return the description in a hyper-parameter's annotation, `Annotated[float, "description"]`."""
    annotated = get_type_hints(spec.hyper, include_extras=True)[key]
    return next((words for words in getattr(annotated, "__metadata__", ()) if isinstance(words, str)), "")


def _hyper_default(spec: AlgorithmSpec, key: str, field: Schema, preset: Preset) -> str:
    if key in FROM_PROTOTYPES:
        return _code(f"prototypes.{key}")
    if key == "global_scale" and preset.global_scale is not None:
        published = preset.global_scale.get(spec.name, {})
        listed = [f"{_value(scale)} on {dataset}" for dataset, scale in published.items()]
        return ", ".join([*listed, "required elsewhere"])
    return _value(preset.hyper_of(spec.name).get(key, field.get("default")))


def _description(field: Schema) -> str:
    mark = _NEUTRAL_WORDS.get(field.get("neutral"))
    return f"{field.get('description', '')}{f' ({mark})' if mark else ''}"


def _first_line(described: object) -> str:
    return (inspect.getdoc(described) or "").partition("\n")[0]


def _value(value: Any) -> str:
    """Return a value in YAML."""
    return _code(yaml.safe_dump(value, default_flow_style=True).removesuffix("\n...\n").strip())


def _code(text: str) -> str:
    return f"`{text}`"


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = list(head)
    lines = [head, ["---"] * len(head), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


if __name__ == "__main__":
    print(reference(), end="")
