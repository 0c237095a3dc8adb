"""Count the lines of every package and folder: `python tools/lines.py`.

A line of code is one that is neither blank nor only a comment, nor part of a docstring.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterable
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("fedveil", "fedveil-federation", "fedveil-lab")

_NO_CODE = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef)


def lines_of(*folders: Path) -> tuple[int, int, int]:
    """Return all lines, the lines of code and the number of Python files below some folders."""
    texts = [
        path.read_text(encoding="utf-8") for folder in folders for path in folder.rglob("*.py")
    ]
    return sum(text.count("\n") for text in texts), sum(map(code_in, texts)), len(texts)


@cache
def code_in(text: str) -> int:
    """Return how many lines of a module are code."""
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _NO_CODE and token.string:
            code |= set(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, _DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            code -= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    return len(code)


def _show(name: str, folders: Iterable[Path]) -> None:
    lines, code, files = lines_of(*folders)
    print(f"{name:<34} {lines:>7,} {code:>7,} {files:>5}")


def main() -> None:
    print(f"{'':<34} {'lines':>7} {'code':>7} {'files':>5}")
    homes = [ROOT / "packages" / name for name in PACKAGES]
    for home in homes:
        (source,) = (path for path in (home / "src").iterdir() if (path / "__init__.py").exists())
        for folder in sorted(path for path in source.iterdir() if path.is_dir()):
            if any(folder.rglob("*.py")):
                _show(f"  {source.name}/{folder.name}", [folder])
        _show(home.name, [source])
    _show("all packages", [home / "src" for home in homes])
    _show("tests", [home / "tests" for home in homes])


if __name__ == "__main__":
    main()
