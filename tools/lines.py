"""Lines of the package by folder, as docs/architecture.md lists them: `python tools/lines.py`.

It puts the present numbers into the table of the page. A line of code is one that is neither blank
nor only a comment, nor part of a docstring.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "fedveil"
PAGE = ROOT / "docs" / "architecture.md"
ROW = re.compile(r"^\| `(\w+)/` \| (.*) \| ([\d,]+) \| ([\d,]+) \|$", re.MULTILINE)

WHOLE = re.compile(r"^\| fedveil now \|.*$", re.MULTILINE)

_NO_CODE = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef)


def lines_of(folder: Path) -> tuple[int, int]:
    """All lines of the Python files below a folder, and those of code."""
    texts = [path.read_text(encoding="utf-8") for path in sorted(folder.rglob("*.py"))]
    return sum(text.count("\n") for text in texts), sum(map(code_in, texts))


@cache
def code_in(text: str) -> int:
    """How many lines of a module are code."""
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _NO_CODE and token.string:
            code |= set(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, _DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            code -= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    return len(code)


def listed() -> dict[str, tuple[int, int]]:
    """What the page says: lines, and lines of code, by folder."""
    rows = ROW.findall(PAGE.read_text(encoding="utf-8"))
    return {name: (_number(lines), _number(code)) for name, _, lines, code in rows}


def _number(shown: str) -> int:
    return int(shown.replace(",", ""))


def _row(found: re.Match[str]) -> str:
    lines, code = lines_of(PACKAGE / found[1])
    return f"| `{found[1]}/` | {found[2]} | {lines:,} | {code:,} |"


if __name__ == "__main__":
    page, (lines, code) = PAGE.read_text(encoding="utf-8"), lines_of(PACKAGE)
    whole = f"| fedveil now | {lines:,} | {code:,} | {len(list(PACKAGE.rglob('*.py')))} |"
    PAGE.write_text(WHOLE.sub(whole, ROW.sub(_row, page)), encoding="utf-8")
    print(whole)
