"""What a file of another system says: which of its privacy parts are made, and with what.

Python files are read and never run. A value is known if it is a literal, arithmetic on known
values, a name that the file gives one value, the default of a command-line option, or an entry of
`[tool.flwr.app.config]` in a pyproject.toml beside the file. All else has to be said by the user.
"""

from __future__ import annotations

import ast
import json
import operator
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedveil.core.errors import ConfigError

_OPERATORS: dict[type[ast.AST], Any] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Pow: operator.pow,
}
_FLAGS = ("store_true", "store_false")  # actions of options that are given or not


@dataclass(frozen=True)
class Unknown:
    """An argument whose value the file does not tell."""

    text: str


@dataclass(frozen=True)
class Call:
    """A part that is made: its class or function, and its arguments in order and by name."""

    name: str
    positional: tuple[Any, ...]
    named: Mapping[str, Any]
    line: int | None = None
    texts: Mapping[str, str] = field(default_factory=dict)  # of arguments that are no literals
    hidden: str = ""  # *args or **kwargs that are not followed: anything may be in them

    @property
    def where(self) -> str:
        return "" if self.line is None else f"line {self.line}"


@dataclass(frozen=True)
class SourceFile:
    """All calls of a file, and every value that a name has in it, with where it stands."""

    path: Path
    calls: tuple[Call, ...]
    values: Mapping[str, tuple[tuple[Any, str], ...]] = field(default_factory=dict)


def read(path: Path) -> SourceFile:
    """The calls and values of a Python, JSON or TOML file."""
    try:
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".py":
            return _python(path, ast.parse(text))
        if path.suffix == ".json":
            return _document(path, json.loads(text))
        if path.suffix == ".toml":
            return _document(path, tomllib.loads(text))
    except (SyntaxError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from None
    raise ConfigError(f"{path}: need a .py, .json or .toml file")


def _document(path: Path, document: Any) -> SourceFile:
    """Every object with a class in it: NVFlare's `path` or `name` with `args`, or our `class`."""
    calls: list[Call] = []
    values: dict[str, list[tuple[Any, str]]] = {}

    def walk(node: Any) -> None:
        if isinstance(node, list):
            for item in node:
                walk(item)
        if not isinstance(node, dict):
            return
        made = node.get("class") or node.get("path") or node.get("name")
        if isinstance(made, str):
            given = node.get("args", {key: node[key] for key in node if key != "class"})
            if isinstance(given, dict):
                calls.append(Call(made.rsplit(".", 1)[-1], (), given))
        for key, item in node.items():
            if isinstance(item, (int, float, str)):
                name = key.replace("-", "_").lower()
                values.setdefault(name, []).append((item, f"{key} in {path.name}"))
            walk(item)

    walk(document)
    return SourceFile(path, tuple(calls), {name: tuple(found) for name, found in values.items()})


def _python(path: Path, tree: ast.Module) -> SourceFile:
    known = _Values(_app_config(path), tree)
    for _ in range(3):  # a name may stand for another one
        known.learn(tree)
    calls, aliases = [], _aliases(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and (name := _last_name(node.func)):
            name = aliases.get(name, name)
            named, hidden = _keywords(node, tree)
            starred = [one for one in node.args if isinstance(one, ast.Starred)]
            hidden += [ast.unparse(one) for one in starred]
            given = () if starred else tuple(known.of(one) for one in node.args)
            texts = {
                word: ast.unparse(value)
                for word, value in named.items()
                if not isinstance(value, ast.Constant)
            }
            values = {word: known.of(value) for word, value in named.items()}
            calls.append(Call(name, given, values, node.lineno, texts, ", ".join(hidden)))
    return SourceFile(path, tuple(calls), known.seen())


def _aliases(tree: ast.Module) -> dict[str, str]:
    """Names that imports give to classes and functions."""
    return {
        one.asname: one.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for one in node.names
        if one.asname is not None
    }


def _keywords(call: ast.Call, tree: ast.Module) -> tuple[dict[str, ast.expr], list[str]]:
    """Arguments by name, those of a `**dictionary` that is written out too; and other `**`."""
    named: dict[str, ast.expr] = {}
    hidden = []
    for word in call.keywords:
        if word.arg:
            named[word.arg] = word.value
        elif (pairs := _dictionary(word.value, tree)) is None:
            hidden.append(f"**{ast.unparse(word.value)}")
        else:
            named |= pairs
    return named, hidden


def _dictionary(node: ast.expr, tree: ast.Module) -> dict[str, ast.expr] | None:
    """A dictionary that is written out, here or where its name is assigned for the only time."""
    if isinstance(node, ast.Name):
        set_to = [
            one.value
            for one in ast.walk(tree)
            if isinstance(one, ast.Assign) and node.id in map(_last_name, one.targets)
        ]
        changed = any(  # kw["x"] = 1, kw.update(...)
            isinstance(one, (ast.Subscript, ast.Attribute)) and _last_name(one.value) == node.id
            for one in ast.walk(tree)
        )
        plain = len(set_to) == 1 and not changed and not isinstance(set_to[0], ast.Name)
        return _dictionary(set_to[0], tree) if plain else None
    if isinstance(node, ast.Call) and _last_name(node.func) == "dict" and not node.args:
        named = {word.arg: word.value for word in node.keywords if word.arg}
        return named if len(named) == len(node.keywords) else None
    if isinstance(node, ast.Dict):
        keys = [one.value if isinstance(one, ast.Constant) else None for one in node.keys]
        known = dict(zip(keys, node.values, strict=True))
        return {str(k): v for k, v in known.items()} if None not in known else None
    return None


class _Values:
    """Names of one file and what they stand for, wherever they are assigned."""

    def __init__(self, config: Mapping[str, Any], tree: ast.Module) -> None:
        self._names: dict[str, dict[str, Any]] = {
            name.replace("-", "_"): {f"{name} in pyproject.toml": value}
            for name, value in config.items()
        }
        self._config = config
        self._free = set(_without_default(tree))  # what they are, only a caller knows

    def learn(self, tree: ast.Module) -> None:
        for node in ast.walk(tree):
            for name, value in _given(node):
                where = f"line {getattr(value, 'lineno', '?')}"
                found = self.of(value)
                # A keyword that is not known says nothing; a name that is set to it is not known.
                if not (isinstance(found, Unknown) and isinstance(node, ast.Call)):
                    self._names.setdefault(name.replace("-", "_"), {})[where] = found
            for name in _changed(node):
                unknown = Unknown(ast.unparse(node).split("\n")[0])
                self._names.setdefault(name, {})[f"line {node.lineno}"] = unknown  # type: ignore[attr-defined]

    def seen(self) -> dict[str, tuple[tuple[Any, str], ...]]:
        found: dict[str, list[tuple[Any, str]]] = {}
        for name, places in self._names.items():
            for where, value in places.items():
                found.setdefault(name.lower(), []).append((value, where))
        return {name: tuple(values) for name, values in found.items()}

    def of(self, node: ast.expr) -> Any:
        """The value of an expression, or `Unknown`."""
        unknown = Unknown(ast.unparse(node))
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return _number(lambda x: -x, unknown, self.of(node.operand))
        if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
            apply = _OPERATORS[type(node.op)]
            return _number(apply, unknown, self.of(node.left), self.of(node.right))
        if isinstance(node, ast.Call) and _last_name(node.func) in ("int", "float"):
            kind = int if _last_name(node.func) == "int" else float
            return _number(kind, unknown, *map(self.of, node.args))
        if isinstance(node, ast.Name) and node.id in self._free:
            return unknown
        if isinstance(node, (ast.Name, ast.Attribute)):
            places = self._names.get(_last_name(node), {})
            values = {repr(value) for value in places.values()}
            return next(iter(places.values())) if len(values) == 1 else unknown
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            return self._config.get(str(node.slice.value), unknown)
        return unknown


def _given(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """Names that this node gives a value: an assignment, a default, an option, a keyword."""
    if isinstance(node, ast.Assign):
        for target in node.targets:
            if isinstance(target, (ast.Name, ast.Attribute)):
                yield _last_name(target), node.value
    elif isinstance(node, ast.AnnAssign) and node.value is not None:
        yield _last_name(node.target), node.value
    elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        yield from _defaults(node.args)
    elif isinstance(node, ast.Call):
        if _last_name(node.func) == "add_argument":
            flags = [str(one.value) for one in node.args if isinstance(one, ast.Constant)]
            names = [flag.lstrip("-") for flag in flags if flag.startswith("--")]
            for word in node.keywords:
                if word.arg == "dest" and isinstance(word.value, ast.Constant):
                    names = [str(word.value.value)]
            for word in node.keywords:
                if word.arg == "default" and names:
                    yield names[0], word.value
                elif word.arg == "action" and names and _flag(word.value) in _FLAGS:
                    unset = ast.Constant(_flag(word.value) == "store_false")
                    yield names[0], ast.copy_location(unset, word.value)
        elif _last_name(node.func).startswith("DEFINE_") and len(node.args) > 1:  # absl
            if isinstance(node.args[0], ast.Constant):
                yield str(node.args[0].value), node.args[1]
        else:
            for word in node.keywords:
                if word.arg:
                    yield word.arg, word.value


def _flag(node: ast.expr) -> str:
    return str(node.value) if isinstance(node, ast.Constant) else ""


def _defaults(given: ast.arguments) -> Iterator[tuple[str, ast.expr]]:
    positional = [*given.posonlyargs, *given.args]
    for one, value in zip(reversed(positional), reversed(given.defaults), strict=False):
        yield one.arg, value
    for one, only in zip(given.kwonlyargs, given.kw_defaults, strict=True):
        if only is not None:
            yield one.arg, only


def _without_default(tree: ast.Module) -> Iterator[str]:
    """Parameters of functions that callers have to give."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            given = node.args
            told = {name for name, _ in _defaults(given)}
            every = (*given.posonlyargs, *given.args, *given.kwonlyargs)
            yield from (one.arg for one in every if one.arg not in told)


def _changed(node: ast.AST) -> Iterator[str]:
    """Names that get values which are not followed here."""
    targets: list[ast.expr] = []
    if isinstance(node, (ast.AugAssign, ast.For)):
        targets = [node.target]
    elif isinstance(node, ast.Assign):
        targets = [one for one in node.targets if isinstance(one, (ast.Tuple, ast.List))]
    for target in targets:
        for part in ast.walk(target):
            if isinstance(part, (ast.Name, ast.Attribute)):
                yield _last_name(part)


def _number(apply: Any, unknown: Unknown, *given: Any) -> Any:
    if not all(isinstance(one, (int, float)) for one in given):
        return unknown
    try:
        return apply(*given)
    except (ArithmeticError, TypeError, ValueError):
        return unknown


def _last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    return node.attr if isinstance(node, ast.Attribute) else ""


def _app_config(path: Path) -> dict[str, Any]:
    """`[tool.flwr.app.config]` of the nearest pyproject.toml, at most two folders up."""
    for folder in list(path.resolve().parents)[:3]:
        project = folder / "pyproject.toml"
        if project.is_file():
            document: Any = tomllib.loads(project.read_text(encoding="utf-8"))
            for key in ("tool", "flwr", "app", "config"):
                document = document.get(key, {}) if isinstance(document, dict) else {}
            return document if isinstance(document, dict) else {}
    return {}
