"""The tree is as docs/architecture.md draws it, and a round enters few of its folders."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest
from tests.paths import ROOT

import fedveil
from fedveil.planning import recipe as recipes
from fedveil.planning.assemble import federation_of, plan_of
from fedveil.run.directory import RunDirectory
from fedveil.run.run import Run

PACKAGE = Path(fedveil.__file__).parent
ROOTS = ("NoisePlacement", "ClipRule")
MOST_FOLDERS = 10
MOST_BORDERS = 20  # pairs of folders with a call from the first into the second
BACKWARDS = {("training", "run")}  # a masked sum takes each update as soon as it is there

RECIPES = {
    "trusted server": {"training.method": "dp-fedavg", "training.sampling": "poisson"},
    "tracked clip, network": {
        "training.method": "dp-fedavg",
        "privacy.clip_quantile": 0.5,
        "model.name": "mlp",
        "model.hidden": [8],
    },
    "masked sum": {
        "training.method": "ddgauss",
        "aggregation.secure": "masked",
        "aggregation.dropout": 0.1,
    },
    "record level": {
        "training.method": "dp-sgd",
        "training.local_steps": 1,
        "training.batch_size": 8,
        "aggregation.secure": "masked",
    },
}


def folder_of(code: CodeType) -> str | None:
    """The package's folder that a function is written in; None for anybody else's."""
    path = Path(code.co_filename)
    return path.relative_to(PACKAGE).parts[0] if path.is_relative_to(PACKAGE) else None


def borders(work: Callable[[], Any]) -> tuple[set[str], Counter[tuple[str, str]]]:
    """The folders that are entered, and how often a call leads from one into another."""
    folders: dict[CodeType, str | None] = {}
    crossed: Counter[tuple[str, str]] = Counter()
    stack: list[str] = []

    def profile(frame: FrameType, event: str, arg: object) -> None:
        code = frame.f_code
        if code not in folders:
            folders[code] = folder_of(code)
        folder = folders[code]
        if folder is None:
            return
        if event == "call":
            if stack and stack[-1] != folder:
                crossed[stack[-1], folder] += 1
            stack.append(folder)
        elif event == "return" and stack:
            stack.pop()

    sys.setprofile(profile)
    try:
        work()
    finally:
        sys.setprofile(None)
    return {folder for folder in folders.values() if folder is not None}, crossed


@pytest.mark.parametrize("name", RECIPES)
def test_a_protected_round_enters_few_folders_and_never_goes_back(
    name: str, tmp_path: Path
) -> None:
    usual = {"training.rounds": 3, "training.local_steps": 2, "privacy.epsilon": 8.0}
    cohort = {"training.cohort": 8, "data.clients": 24}
    recipe = recipes.with_defaults(recipes.parse({}, values=usual | cohort | RECIPES[name]))
    plan = plan_of(recipe, federation_of(recipe.data))
    run = Run(plan, every=100).keep_in(RunDirectory.create(tmp_path / "r", plan, {}))
    reports = iter(run)
    next(reports)
    folders, crossed = borders(lambda: next(reports))
    run.close()
    assert {"run", "training", "privacy"} <= folders  # something was measured
    assert "planning" not in folders  # a plan is data: no round runs code of it
    assert len(folders) <= MOST_FOLDERS, (sorted(folders), crossed)
    assert len(crossed) <= MOST_BORDERS, sorted(crossed)
    height = {name: place for place, name in enumerate(layers())}
    assert {pair for pair in crossed if height[pair[0]] < height[pair[1]]} <= BACKWARDS


def layers() -> list[str]:
    """The folders of the package, lowest first, as `lint-imports` checks them."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contracts = settings["tool"]["importlinter"]["contracts"]
    (folders,) = (one["layers"] for one in contracts if one.get("containers") == ["fedveil"])
    return list(folders[::-1])


def test_the_page_lists_the_folders_in_the_order_that_is_checked() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    assert re.findall(r"^\| `(\w+)/` \|", page, re.MULTILINE) == layers()
    assert set(layers()) == {
        path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()
    }
    assert len(layers()) <= 10


def _asked(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """The classes that code tests an object for, by name, with the line of the test."""

    def names(node: ast.AST, line: int) -> Iterator[tuple[int, str]]:
        for inner in ast.walk(node):
            if isinstance(inner, ast.Name | ast.Attribute):
                yield line, inner.id if isinstance(inner, ast.Name) else inner.attr

    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if node.func.id in ("isinstance", "issubclass") and len(node.args) == 2:
                yield from names(node.args[1], node.lineno)
        elif isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            called = (one.func for one in sides if isinstance(one, ast.Call))
            if any(isinstance(one, ast.Name) and one.id == "type" for one in called):
                for side in sides:
                    yield from names(side, node.lineno)
        elif isinstance(node, ast.MatchClass):
            yield from names(node.cls, node.lineno)


def kinds_asked(paths: Iterable[Path]) -> list[str]:
    """Return where code tests what kind a noise or a clip rule is, outside the files of these."""
    texts = {path: path.read_text(encoding="utf-8") for path in paths}
    bases = {
        (path, name): set(re.findall(r"\w+", above))
        for path, text in texts.items()
        for name, above in re.findall(r"^class (\w+)\((.*?)\):$", text, re.M | re.S)
    }
    known, count = set(ROOTS), 0
    while len(known) > count:
        count = len(known)
        known |= {name for (_, name), above in bases.items() if above & known}
    homes = {path for (path, name) in bases if name in known}
    return [
        f"{path.name}:{line} asks for {name}"
        for path, text in texts.items()
        if path not in homes and any(name in text for name in known)
        for line, name in _asked(ast.parse(text))
        if name in known
    ]


def test_nobody_asks_what_kind_a_noise_or_a_clip_rule_is(tmp_path: Path) -> None:
    """They answer for themselves; only files that define one may know another."""
    assert kinds_asked(ROOT.glob("packages/*/src/**/*.py")) == []
    defining, asking = tmp_path / "defining.py", tmp_path / "asking.py"
    defining.write_text("class A(ClipRule):\n    pass\nclass B(A):\n    pass\n")
    asking.write_text("isinstance(x, A | m.B); type(x) is A\nmatch x:\n    case B(): pass")
    assert len(kinds_asked([defining, asking])) == 4


def test_the_generator_of_all_threads_is_seeded_in_one_place() -> None:
    """Two threads that seed it at once draw each other's first weights; `drawing_from` locks it."""
    found = {
        path.name
        for path in ROOT.glob("packages/*/src/**/*.py")
        if re.search(r"fork_rng\(|torch\.manual_seed\(", path.read_text(encoding="utf-8"))
    }
    assert found == {"structure.py"}
