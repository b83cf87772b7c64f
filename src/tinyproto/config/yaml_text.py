"""YAML as people write it: 1e-2 is a number, a date is text, and a key given twice is a mistake."""

from __future__ import annotations

import re
from collections.abc import Hashable
from typing import Any

import yaml


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
