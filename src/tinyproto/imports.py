"""Names that users type: loading an object by dotted path, and suggesting a name for a misspelt one."""

from __future__ import annotations

import difflib
import importlib
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tinyproto.errors import TinyProtoError, one_line


def nearest_name(name: str, known: Iterable[str], cutoff: float = 0.5) -> str:
    """Return `, did you mean 'x'?` if a known name is close, else an empty string."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=cutoff)
    return f", did you mean {close[0]!r}?" if close else ""


def unknown(what: str, name: object, known: Iterable[str], also: str = "") -> str:
    """Return the sentence for an unknown name, with the nearest known one and all of them."""
    names = list(known)
    nearest = nearest_name(name, names) if isinstance(name, str) else ""
    return f"unknown {what} {name!r}{f'{nearest} Known' if nearest else '; known'}: {', '.join(names) or 'none'}{also}"


def load_dotted(path: str, error: type[TinyProtoError], what: str) -> Any:
    """Load the object at `package.module:name`; packages in the current folder are found, as under `python -m`."""
    module_name, _, attribute = path.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)
    try:
        found = importlib.import_module(module_name)
    except Exception as cause:
        missing = isinstance(cause, ModuleNotFoundError) and module_name.startswith(cause.name or " ")
        hint = f"; a module of your own has to be in the current folder, {here}" if missing else ""
        raise error(f"{what} {path!r}: importing {module_name!r} failed with {one_line(cause)}{hint}") from cause
    if not hasattr(found, attribute):
        raise error(f"{what} {path!r}: {module_name!r} has no {attribute!r}{nearest_name(attribute, dir(found))}")
    return getattr(found, attribute)
