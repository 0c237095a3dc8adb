"""What a file of another system says: which of its privacy parts are made, and with what.

Python files are read and never run. A value is known if it is a literal, arithmetic on known
values, a name that the file gives one value, the default of a command-line option, or an entry of
`[tool.flwr.app.config]` in a pyproject.toml beside the file. All else has to be said by the user.
"""

from __future__ import annotations

import ast
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
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


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
    line: int
    texts: Mapping[str, str] = field(default_factory=dict)  # of arguments that are no literals
    hidden: str = ""  # *args or **kwargs that are not followed: anything may be in them

    @property
    def where(self) -> str:
        return f"line {self.line}"


def read(path: Path) -> tuple[Call, ...]:
    """All calls of a Python file."""
    if path.suffix != ".py":
        raise ConfigError(f"{path}: need a .py file")
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (SyntaxError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from None
    known = _Values(_app_config(path), tree)
    aliases = {
        one.asname: one.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for one in node.names
        if one.asname is not None
    }
    calls = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and (name := _last_name(node.func)):
            named = {word.arg: word.value for word in node.keywords if word.arg}
            starred = [one.value for one in node.args if isinstance(one, ast.Starred)]
            stars = [f"*{ast.unparse(one)}" for one in starred]
            stars += [f"**{ast.unparse(word.value)}" for word in node.keywords if not word.arg]
            given = () if starred else tuple(known.of(one) for one in node.args)
            texts = {
                word: ast.unparse(value)
                for word, value in named.items()
                if not isinstance(value, ast.Constant)
            }
            values = {word: known.of(value) for word, value in named.items()}
            name = aliases.get(name, name)
            calls.append(Call(name, given, values, node.lineno, texts, ", ".join(stars)))
    return tuple(calls)


class _Values:
    """Names of one file and what they stand for, wherever they are assigned."""

    def __init__(self, config: Mapping[str, Any], tree: ast.Module) -> None:
        self._names: dict[str, list[Any]] = {}
        self._config = config
        self._free = {  # parameters without a default: what they are, only a caller knows
            one.arg
            for node in ast.walk(tree)
            if isinstance(node, _FUNCTIONS)
            for one, default in _parameters(node.args)
            if default is None
        }
        given = [pair for node in ast.walk(tree) for pair in _given(node)]
        for _ in range(3):  # a name may stand for another one
            found: dict[str, list[Any]] = {}
            for name, value in given:
                found.setdefault(name.replace("-", "_"), []).append(self.of(value))
            self._names = found

    def of(self, node: ast.expr) -> Any:
        """The value of an expression, or `Unknown`."""
        unknown = Unknown(ast.unparse(node).split("\n")[0])
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return _number(operator.neg, unknown, self.of(node.operand))
        if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
            apply = _OPERATORS[type(node.op)]
            return _number(apply, unknown, self.of(node.left), self.of(node.right))
        if isinstance(node, ast.Call) and _last_name(node.func) in ("int", "float"):
            kind = int if _last_name(node.func) == "int" else float
            return _number(kind, unknown, *map(self.of, node.args))
        if isinstance(node, (ast.Name, ast.Attribute)):
            if isinstance(node, ast.Name) and node.id in self._free:
                return unknown
            values = self._names.get(_last_name(node), [])
            return values[0] if len(set(map(repr, values))) == 1 else unknown
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            return self._config.get(str(node.slice.value), unknown)
        return unknown


def _given(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """Names that this node gives a value: an assignment, a default or an option.

    A name in a loop, a tuple or an assignment such as `+=` gets a value that is not followed: a
    starred expression, which nothing knows.
    """
    if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            if isinstance(target, (ast.Name, ast.Attribute)):
                yield _last_name(target), node.value
            else:
                yield from _not_followed(target, node)
    elif isinstance(node, (ast.AugAssign, ast.For)):
        yield from _not_followed(node.target, node)
    elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        for one, default in _parameters(node.args):
            if default is not None:
                yield one.arg, default
    elif isinstance(node, ast.Call) and _last_name(node.func) == "add_argument":
        flags = (str(one.value) for one in node.args if isinstance(one, ast.Constant))
        names = [flag.lstrip("-") for flag in flags if flag.startswith("--")]
        words = {word.arg: word.value for word in node.keywords}
        if names and "default" in words and not {"dest", "action"} & words.keys():
            yield names[0], words["default"]


def _not_followed(target: ast.expr, node: ast.stmt) -> Iterator[tuple[str, ast.expr]]:
    for part in ast.walk(target):
        if isinstance(part, (ast.Name, ast.Attribute)):
            yield _last_name(part), ast.copy_location(ast.Starred(part), node)


def _parameters(given: ast.arguments) -> Iterator[tuple[ast.arg, ast.expr | None]]:
    """Parameters of a function, each with its default."""
    positional = [*given.posonlyargs, *given.args]
    bare = [None] * (len(positional) - len(given.defaults))
    yield from zip(positional, [*bare, *given.defaults], strict=True)
    yield from zip(given.kwonlyargs, given.kw_defaults, strict=True)


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
