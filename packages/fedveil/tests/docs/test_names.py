"""Names that the pages mention exist: commands and options, keys, Python names, files, targets."""

from __future__ import annotations

import argparse
import ast
import dataclasses
import json
import re
import subprocess
import typing
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.audit.faults import FAULTS
from tests.docs.blocks import ROOT
from tests.neighbours.planted import PLANTED
from tests.paths import PACKAGES, SOURCES

import fedveil as fv
from fedveil.cli import commands, parser_of
from fedveil.planning import recipe as recipes

PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for path in (*ROOT.glob("docs/**/*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md")
}
PAGES |= {
    path.relative_to(ROOT).as_posix(): "\n".join(
        "".join(cell["source"])
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]
        if cell["cell_type"] == "markdown"
    )
    for path in ROOT.glob("notebooks/*.ipynb")
}
KEYS = {
    section: {field.name for field in dataclasses.fields(kind)}
    for section, kind in typing.get_type_hints(recipes.Recipe).items()
    if dataclasses.is_dataclass(kind)
}
# What other systems have, what a page makes, and a placeholder.
OTHERS = (
    "flwr/",
    "opacus/",
    "nvflare/",
    "privacy/analysis/",
    "model.fit",
    "orchard/",
    "north/",
    "results/N",
)
_COMMAND = re.compile(r"\bfedveil ([a-z]+)\b([^`\n]*)")
_OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]+")


def arguments(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    for action in parser._actions:  # argparse has no public list of them
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from arguments(below)
        else:
            yield action


@cache
def options(command: str | None) -> frozenset[str]:
    """What a command and those below it accept; without one, what any of them does."""
    if command is None:
        return frozenset().union(*map(options, commands()))
    return frozenset(o for action in arguments(parser_of(command)) for o in action.option_strings)


def code(text: str) -> Iterator[str]:
    """What stands in backquotes, outside of blocks."""
    outside = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    yield from re.findall(r"`([^`\n]+)`", outside)


def unknown(page: str) -> Iterator[str]:
    text = PAGES[page]
    for command, rest in _COMMAND.findall(text):
        if command in commands():
            given = _OPTION.findall(re.split(r" [|#] ", rest)[0])
            yield from (f"fedveil {command} {one}" for one in given if one not in options(command))
    for name in re.findall(r"\bfv\.(\w+)", text):
        if name not in fv.__all__:
            yield f"fv.{name}"
    for word in code(text):
        if not known(word, (ROOT / page).parent):
            yield word


def known(word: str, folder: Path) -> bool:
    """Whether what looks like a name of ours is one."""
    if word.startswith(OTHERS):
        return True
    if command := re.match(r"fedveil ([a-z]+)\b", word):
        return command[1] in commands()
    if word.startswith("--"):
        given = _OPTION.findall(word)
        return all(
            one in options(None)
            or f'"{one}"' in sources("benchmarks", "tools", "packages/fedveil-federation/tests")
            for one in given
        )
    if target := re.fullmatch(r"make ([a-z-]+)", word):
        return f"\n{target[1]}:" in (ROOT / "Makefile").read_text(encoding="utf-8")
    if test := re.fullmatch(r"(tests/[\w/]+\.py)::(\w+)(?:\[(.+)\])?", word):
        return test[2] in functions_of(test[1]) and (test[3] is None or test[3] in planted(test[1]))
    if word.startswith("tests/") and "::" in word:
        return False
    if re.fullmatch(r"[\w.-]+/[\w./-]+\.(py|md|toml|ipynb|sh)", word):
        packages = [one for path in SOURCES for one in path.iterdir()]
        places = (ROOT, ROOT / "docs", *PACKAGES, *SOURCES, *packages, folder)
        return any((place / word).exists() for place in places)
    if re.fullmatch(r"fedveil(_federation|_lab)?(\.\w+)+", word):  # or a label, as of entry points
        above, code = word.rpartition(".")[0], sources(*map(str, SOURCES))
        return any(importable(one) or f'"{one}' in code for one in (word, above))
    if key := re.fullmatch(rf"({'|'.join(KEYS)})\.([a-z_]+)", word):
        return key[2] in KEYS[key[1]]
    return True


@cache
def functions_of(file: str) -> frozenset[str]:
    """The tests of a file that pytest collects and that are not marked to be skipped."""
    found = [package / file for package in PACKAGES if (package / file).is_file()]
    if not found:
        return frozenset()
    functions = ast.parse(found[0].read_text(encoding="utf-8")).body
    return frozenset(
        one.name
        for one in functions
        if isinstance(one, ast.FunctionDef)
        and one.name.startswith("test_")
        and not any("skip" in ast.unparse(mark) for mark in one.decorator_list)
    )


def planted(file: str) -> frozenset[str]:
    """The bugs that the tests of a file plant."""
    return frozenset(
        {
            "tests/audit/test_audit.py": FAULTS,
            "tests/neighbours/test_neighbours.py": PLANTED,
        }.get(file, ())
    )


def importable(name: str) -> bool:
    try:
        return "." in name and find_spec(name) is not None
    except ModuleNotFoundError:
        return False


@cache
def sources(*folders: str) -> str:
    files = (file for folder in folders for file in (ROOT / folder).rglob("*.py"))
    return "".join(file.read_text(encoding="utf-8") for file in files)


@pytest.mark.parametrize("page", sorted(PAGES))
def test_every_name_on_a_page_exists(page: str) -> None:
    assert list(unknown(page)) == []


def test_no_file_tells_where_it_was_made() -> None:
    """Paths of a machine, in text, notebooks and pictures."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a clone")
    place = re.compile(rb"/(?:work|root|home/(?!fedveil)\w+|Users/\w+)/\w")
    found = [
        name
        for name in listed.stdout.splitlines()
        if (ROOT / name).is_file() and place.search((ROOT / name).read_bytes())
    ]
    assert found == []
