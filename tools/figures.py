"""Compare this tree with an earlier commit in figures: `python tools/figures.py [COMMIT]`.

The commit is by default the last one before the package was split into three. The tables are in
Markdown, as docs/architecture.md has them.

    python tools/figures.py             lines, files, tests, docstrings, imports, start-up times
    python tools/figures.py --weights   what W1 to W7 have trained after three seeded rounds
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [
    str(ROOT),
    *map(str, ROOT.glob("packages/*/src")),
    str(ROOT / "packages" / "fedveil"),
]

import numpy as np  # noqa: E402
from tests.test_architecture import kinds_asked  # noqa: E402

from benchmarks.before import sources_of, tree_at  # noqa: E402
from benchmarks.startup import COMMANDS, seconds  # noqa: E402
from benchmarks.workloads import WORKLOADS  # noqa: E402
from tools.lines import lines_of  # noqa: E402

BEFORE = "aa505fe4~1"
TRAIN = """
import sys, numpy
import fedveil as fv
from benchmarks.systems import fedveil
from benchmarks.workloads import WORKLOADS

workload = WORKLOADS[sys.argv[1]]
plan = fedveil.plan(workload, fedveil.federation(workload), 3, False)
run = fv.Run(plan, speed=fv.Speed(processes=1, threads=1), every=4)
for report in run:
    pass
numpy.save(sys.argv[2], numpy.stack([plan.start.numpy(), run.weights.numpy()]))
"""


def files_below(folders: Iterable[Path]) -> Iterator[Path]:
    """Yield the Python files below some folders."""
    return (path for folder in folders for path in sorted(folder.rglob("*.py")))


def tests_of(tree: Path) -> list[Path]:
    """Return the folders with a tree's tests."""
    return [path for path in (tree / "tests", *tree.glob("packages/*/tests")) if path.exists()]


def code_of(tree: Path) -> list[Path]:
    """Return a tree's sources; the papers' experiments once had a folder of their own."""
    extra = tree / "reproduction"
    return [*sources_of(tree), *([extra] if extra.exists() else [])]


def matches(pattern: str, folders: Iterable[Path]) -> int:
    """Count a pattern in the Python files below some folders."""
    found = re.compile(pattern, re.MULTILINE)
    return sum(len(found.findall(path.read_text("utf-8"))) for path in files_below(folders))


def documented(folders: Iterable[Path]) -> str:
    """Return the share of public functions with arguments whose docstring has Args or Returns."""
    docs = [
        ast.get_docstring(node) or ""
        for path in files_below(folders)
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.FunctionDef)
        and not node.name.startswith("_")
        and any(one.arg not in ("self", "cls") for one in node.args.args + node.args.kwonlyargs)
    ]
    return f"{sum('Args:' in doc or 'Returns:' in doc for doc in docs) / len(docs):.0%}"


def _lines(folders: Iterable[Path]) -> str:
    _, code, files = lines_of(*folders)
    return f"{code:,} in {files}" if files else "-"


def _package(name: str) -> Callable[[Path], str]:
    return lambda tree: _lines(tree.glob(f"packages/{name}/src"))


def _megabytes(tree: Path) -> str:
    sizes = (path.stat().st_size for path in (tree / "results").rglob("*") if path.is_file())
    return f"{sum(sizes) / 1e6:.1f}"


FIGURES: dict[str, Callable[[Path], object]] = {
    "lines of code, files: all packages": lambda tree: _lines(code_of(tree)),
    "  fedveil": _package("fedveil"),
    "  fedveil-federation": _package("fedveil-federation"),
    "  fedveil-lab": _package("fedveil-lab"),
    "lines of tests": lambda tree: f"{lines_of(*tests_of(tree))[0]:,}",
    "imports of inner modules in tests": lambda tree: matches(
        r"^ *(?:from|import) fedveil(?:_\w+)?\.", tests_of(tree)
    ),
    "code that asks what kind a noise or clip rule is": lambda tree: len(
        kinds_asked(files_below(code_of(tree)))
    ),
    "public functions with Args or Returns": lambda tree: documented(code_of(tree)),
    "MB of results": _megabytes,
}


def trained(tree: Path, workload: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the initial weights of a workload, and those after three rounds with a seed."""
    paths = os.pathsep.join(map(str, [*sources_of(tree), tree]))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "weights.npy"
        words = [sys.executable, "-c", TRAIN, workload, str(file)]
        subprocess.run(words, cwd=tree, env={**os.environ, "PYTHONPATH": paths}, check=True)
        first, last = np.load(file)
    return first, last


def difference(workload: str, before: Path) -> str:
    """Say how far apart the weights are that two trees train, beside how far these were moved."""
    (start, old), (_, new) = (trained(tree, workload) for tree in (before, ROOT))
    if np.array_equal(old, new):
        return "the same, bit for bit"
    apart, moved = np.linalg.norm(new - old), np.linalg.norm(old - start)
    return f"apart by {apart / moved:.1e} of the way they went"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("commit", nargs="?", default=BEFORE)
    parser.add_argument("--weights", action="store_true")
    args = parser.parse_args()
    with tree_at(args.commit) as before:
        if args.weights:
            print("| workload | weights after three seeded rounds |\n|---|---|")
            for name in WORKLOADS:
                print(f"| {name} | {difference(name, before)} |", flush=True)
            return
        print("| | before | now |\n|---|---:|---:|")
        for name, figure in FIGURES.items():
            print(f"| {name} | {figure(before)} | {figure(ROOT)} |", flush=True)
        for name, words in COMMANDS.items():
            turns = [[seconds(tree, words) for tree in (before, ROOT)] for _ in range(5)]
            old, new = (f"{1000 * min(times):.0f}" for times in zip(*turns, strict=True))
            print(f"| ms of processor: `{name}` | {old} | {new} |", flush=True)


if __name__ == "__main__":
    main()
