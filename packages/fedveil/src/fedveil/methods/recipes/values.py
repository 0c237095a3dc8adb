"""Tables into dataclasses: every key known, every value of its kind, and hints where it is not."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from fedveil.core.errors import ConfigError
from fedveil.methods.recipes.sections import Recipe

_NAMES: dict[type, str] = {
    int: "a whole number",
    float: "a number",
    str: "a string",
    bool: "true or false",
    dict: "a section",
}


def build(cls: type, table: Any, path: str) -> Any:
    """A dataclass from a table; `path` is where in the recipe it stands."""
    if not isinstance(table, Mapping):
        raise ConfigError(f"recipe: {path} must be a section, not {table!r}")
    hints = typing.get_type_hints(cls)
    values = {}
    for key, value in table.items():
        name = f"{path}.{key}" if path else key
        if key not in hints:
            raise ConfigError(f"recipe: unknown key {name!r}{_nearest(key, path, hints)}")
        kind = hints[key]
        if typing.get_origin(kind) is Mapping:  # the method's own keys: it checks them itself
            kind = dict
        section = isinstance(kind, type) and dataclasses.is_dataclass(kind)
        values[key] = build(kind, value, name) if section else typed(kind, value, name)
    return cls(**values)


def _nearest(key: str, path: str, hints: Mapping[str, Any]) -> str:
    """A hint at the nearest right key, in this section or in another."""
    here = get_close_matches(key, hints, n=1)
    if here:
        return f"; did you mean {f'{path}.{here[0]}' if path else here[0]!r}?"
    sections = typing.get_type_hints(Recipe)
    everywhere = {
        inner: f"{section}.{inner}"
        for section, kind in sections.items()
        if dataclasses.is_dataclass(kind)
        for inner in typing.get_type_hints(kind)
    }
    of_recipe = path.partition(".")[0] in ("", *sections)  # and not of a policy
    near = get_close_matches(key, everywhere, n=1)
    if near and of_recipe:
        return f"; did you mean {everywhere[near[0]]}?"
    return f"; there are {', '.join(hints)}"


def typed(kind: Any, value: Any, name: str) -> Any:
    """The value as what it must be, `kind`; refused by its `name` if it is something else.

    The word "none" unsets a number or a list that may be left out.
    """
    options = _options(kind)
    if value == "none" and type(None) in options and str not in options:
        return None
    for option in options:
        if option is float and isinstance(value, (int, float)) and not isinstance(value, bool):
            return float(value)
        if option is int and isinstance(value, int) and not isinstance(value, bool):
            return value
        if option in (str, bool, dict) and isinstance(value, option):
            return value
        if option is str and name == "data.label" and isinstance(value, list):
            return ",".join(map(str, value))
        columns = ("data.label", "data.client_column", "data.person_column")
        if option is str and name in columns and value is not None:
            return str(value)
        if typing.get_origin(option) is tuple and isinstance(value, (list, tuple)):
            inner = typing.get_args(option)[0]
            return tuple(typed(inner, item, f"{name}[{i}]") for i, item in enumerate(value))
    raise ConfigError(f"recipe: {name} must be {kind_name(kind)}, got {value!r}")


def kind_name(kind: Any) -> str:
    """Return the name of a kind of value, in words."""
    return " or ".join(_option_name(o) for o in _options(kind) if o is not type(None))


def _options(kind: Any) -> tuple[Any, ...]:
    return typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,)


def _option_name(option: Any) -> str:
    if option in _NAMES:
        return _NAMES[option]
    inner = _NAMES[typing.get_args(option)[0]].split(" ", 1)[1]
    return f"a list of {inner}s"
